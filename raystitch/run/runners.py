"""How a runner is come by: this process alone, or Ray. What each needs is loaded when it starts."""

from __future__ import annotations

from collections.abc import Callable

from raystitch.run.planning import Context, Say
from raystitch.run.work import Runner

Start = Callable[[Context, Say], Runner]


def local(context: Context, say: Say) -> Runner:
    """The in-process runner."""
    say("loading torch …")
    from raystitch.run.local import LocalRunner

    return LocalRunner(context)


def on_ray(address: str | None) -> Start:
    """Ray: one of our own on this machine, or the cluster at that address (``auto``: the one up).

    Raises `RaystitchError` where there is no such cluster, or where it cannot be used.
    """

    def start(context: Context, say: Say) -> Runner:
        own = address is None
        say("starting Ray on this machine …" if own else f"joining the cluster at {address} …")
        # Before anything else of Ray is loaded: it sets what Ray reads from the environment.
        from raystitch.run import cluster
        from raystitch.run.engine import RayRunner

        return RayRunner(context, cluster.connect(context, address, say), say)

    return start
