# pyright: basic
"""Connects to Ray, safely: one of our own on this machine, or a cluster that is up.

A Ray of our own listens on all interfaces of the machine, and whoever reaches it may run code: so
token authentication is on, and the connection is given up where it is not. The dashboard stays off.
"""

from __future__ import annotations

# Ray reads these when it is loaded; its worker processes inherit them.
import os

os.environ.setdefault("RAY_AUTH_MODE", "token")
# Ray's agents wait so long for a head that is gone, when the driver was killed (60 s as it comes).
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "20")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray's C++ parts write into the user's terminal; losses are told by us, with the worker's log.
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
# After its end, a stray call must not start another Ray.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
# Large pages for what workers allocate.
os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
# What is stored is the truth; Tune's own snapshots of the experiment are never read.
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1000000")

import gc
import logging
import math
import secrets
import socket
import stat
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address
from ray._private.utils import get_num_cpus
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raystitch import __version__
from raystitch.errors import EngineError, RaystitchError
from raystitch.files import write_text
from raystitch.results.store import Storage
from raystitch.run.planning import Context, Say
from raystitch.sweep.execution import Execution

OBJECT_STORE_BYTES = 200 * 2**20
"""Shared memory of a Ray of our own: only small things pass through it."""

REACH_SECONDS = 10.0
"""Time for a cluster's head to answer."""

NODE_SECONDS = 60.0
"""Time for a node to look at the storage."""

TOKEN_FILE = Path(".ray") / "auth_token"
"""Under the home folder: where Ray keeps its token, and its own command line tools find it."""


@dataclass(frozen=True)
class Cluster:
    """What a sweep has of Ray: ``slots`` workers at once, each with so many CPUs and GPUs.

    device: where networks run, the same for all workers.
    """

    slots: int
    cpus: float
    gpus: float
    device: str

    def context(self, context: Context) -> Context:
        """The sweep's context as workers on any node need it: no relative path, one device."""
        execution = context.sweep.execution.model_copy(update={"device": self.device})
        sweep = context.sweep.model_copy(update={"execution": execution})
        return replace(context, sweep=sweep, storage=Storage(context.storage.root.resolve()))

    def close(self) -> None:
        """End the Ray of our own with all its processes, or leave the cluster as it was."""
        # Another thread's garbage collection may find references to Ray's objects meanwhile, and
        # give them back to a Ray that is half gone: that would end this process.
        gc.collect()
        gc.freeze()
        try:
            ray.shutdown()
        finally:
            gc.unfreeze()


def connect(context: Context, address: str | None, say: Say) -> Cluster:
    """Start a Ray on this machine, or join the cluster at ``address``.

    Raises `EngineError` where that fails or a node does not reach the storage, and `RaystitchError`
    where there is no room for a single worker.
    """
    execution = context.sweep.execution
    own = address is None
    if ray.is_initialized():
        raise EngineError(
            "this process is connected to a Ray already: end that first (`ray.shutdown()`)."
        )
    _quieten()
    if own:
        _start(execution)
    else:
        _join(address)
    try:
        cluster = _take(execution)
        if not own:
            _check_storage(context.storage.root.resolve())
    except BaseException:
        ray.shutdown()
        raise
    say(
        f"Ray {ray.__version__}: {'on this machine' if own else f'cluster at {address}'}, "
        f"{cluster.slots} slots on {cluster.device}"
    )
    return cluster


def usable_cpus() -> int:
    """CPUs that this process may use, the container's limit included."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else math.inf
    return max(1, int(min(allowed, get_num_cpus())))


def slots_here(execution: Execution, device: str, gpus: int) -> int:
    """Slots of a Ray of our own on this machine, which has so many GPUs."""
    here = {"CPU": float(_own_cpus(execution)), "GPU": float(gpus)}
    room = _slots(here, execution.threads, execution.gpus_per_unit if device == "cuda" else 0.0)
    return max(1, min(room, execution.slots or room))


def _own_cpus(execution: Execution) -> int:
    """CPUs of a Ray of our own: at least those of the workers that are asked for."""
    return max(usable_cpus(), execution.threads * (execution.slots or 1))


def _start(execution: Execution) -> None:
    if os.environ["RAY_AUTH_MODE"] != "token":
        raise EngineError(
            f"RAY_AUTH_MODE is {os.environ['RAY_AUTH_MODE']!r}: a Ray without a token lets anyone "
            "who reaches this machine run code on it. Unset RAY_AUTH_MODE, or pass --local."
        )
    raylet: Any = vars(ray)["_raylet"]
    # Ray keeps its settings as they were when it was loaded: perhaps before this module was.
    raylet.Config.initialize("")
    assert raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN
    make_token()
    try:
        with _muted():
            ray.init(
                address="local",
                num_cpus=_own_cpus(execution),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
            )
    except Exception as error:
        raise EngineError(
            f"Ray could not be started on this machine: {last_line(error)}. "
            "`--local` runs the sweep without Ray."
        ) from error


def _join(address: str) -> None:
    try:
        _reach(address)
        with _muted():
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:
        raise EngineError(
            f"no Ray cluster could be joined at {address}: {last_line(error)}. See that it is up "
            "(`ray start --head`), and that its token is in ~/.ray/auth_token here; without "
            "--address the sweep runs on a Ray of its own."
        ) from error


def _reach(address: str) -> None:
    """Raise unless something answers there: Ray would end this process where nothing does."""
    if "://" in address:
        raise ValueError("an address is HOST:PORT, as `ray start --head` says it, or auto")
    found = canonicalize_bootstrap_address(address)
    if found is None:
        raise ConnectionError("there is none")
    host, _, port = found.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()


def make_token() -> None:
    """Ray's token, for this user's eyes alone. Ray itself would write it readable for all.

    Nothing is made where the environment names a token.
    """
    if "RAY_AUTH_TOKEN" in os.environ:
        return
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / TOKEN_FILE
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        temporary = path.with_name(f"{path.name}-{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as handle:
            handle.write(secrets.token_hex(32))
        try:
            # Whole at once, and never over the token of another Ray that starts now.
            path.hardlink_to(temporary)
        except FileExistsError:
            return
        finally:
            temporary.unlink()
    elif stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o600)


def _take(execution: Execution) -> Cluster:
    """The slots that there is room for."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    device = _device(execution.device, nodes)
    gpus = execution.gpus_per_unit if device == "cuda" else 0.0
    room = sum(_slots(node, execution.threads, gpus) for node in nodes)
    if not room:
        raise RaystitchError(
            f"no node has room for a worker of {execution.threads} CPUs"
            + (f" and {gpus:g} GPUs" if gpus else "")
            + ": lower `execution.threads`, or use a larger cluster."
        )
    return Cluster(min(room, execution.slots or room), execution.threads, gpus, device)


def _device(wanted: str, nodes: list[Mapping[str, float]]) -> str:
    there = any(node.get("GPU", 0) for node in nodes)
    if wanted == "cuda" and not there:
        raise RaystitchError(
            "execution.device is cuda, but no node has a GPU; use `device: cpu` or `auto`."
        )
    return "cuda" if there and wanted != "cpu" else "cpu"


def _slots(node: Mapping[str, float], cpus: int, gpus: float) -> int:
    by_cpu = int(node.get("CPU", 0) // cpus)
    if not gpus:
        return by_cpu
    # A share of one GPU never spans two: whole workers on each.
    return min(by_cpu, int(node.get("GPU", 0)) * int(1 / gpus + 1e-9))


@ray.remote(num_cpus=0)
def _look(probe: str, answer: str) -> str:
    """Read the probe where the driver wrote it, and write beside it."""
    write_text(Path(answer), Path(probe).read_text(encoding="utf-8"))
    return __version__


def _check_storage(root: Path) -> None:
    """Raise `EngineError` unless every node reads and writes the storage at the same path."""
    probe = root / f".probe-{secrets.token_hex(8)}"
    write_text(probe, secrets.token_hex(8))
    try:
        for node in ray.nodes():
            if node["Alive"]:
                _check_node(node, probe)
    finally:
        probe.unlink(missing_ok=True)


def _check_node(node: Mapping[str, Any], probe: Path) -> None:
    name, answer = node["NodeManagerHostname"], probe.with_name(f"{probe.name}-{node['NodeID']}")
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    try:
        seen = _look.options(scheduling_strategy=there).remote(str(probe), str(answer))
        version = ray.get(seen, timeout=NODE_SECONDS)
        same = answer.read_text(encoding="utf-8") == probe.read_text(encoding="utf-8")
    except Exception as error:
        raise EngineError(
            f"the node {name} does not reach the storage {probe.parent}: {last_line(error)}. "
            "A cluster needs a folder that all its nodes share, under the same path, and raystitch "
            "installed on each."
        ) from error
    finally:
        answer.unlink(missing_ok=True)
    if not same:
        raise EngineError(f"the node {name} has another folder at {probe.parent}: share one.")
    if version != __version__:
        raise EngineError(f"the node {name} has raystitch {version}, this machine {__version__}.")


def _quieten() -> None:
    """Keep Ray's own log out of the user's terminal: losses are told by us, once."""
    for name in ("ray", "ray.data", "ray.tune", "ray._private"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _muted() -> Generator[None]:
    """Let nothing onto the terminal meanwhile: Ray's C++ parts greet on the descriptor itself."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def last_line(error: BaseException) -> str:
    """An error of Ray in one line: what it is about stands at its end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")
