"""Workers, nodes and drivers lost at random moments: the undisturbed run's cells, none twice."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import sweeping
from raystitch.results.store import Storage
from test_engine import equal, none_left, on_ray, processes, ray_processes, stored

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRAINING = {**sweeping.SMALL["training"], "epochs": 25, "min_epochs": 25}
IRIS = {**sweeping.SMALL["iris"], "steps": 300, "tolerance": 0}
SWEEP = {
    "training": TRAINING,
    "iris": IRIS,
    "execution": {**sweeping.SMALL["execution"], "state_seconds": 0},
}
COUNT = 2 * (4 + 4 + 3)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    path = sweeping.write(folder, **SWEEP)
    return sweeping.run(path, folder / "runs"), path


class Killer(threading.Thread):
    """Kills so many processes with ``part`` in their command line, a while after they start."""

    def __init__(self, part, times):
        super().__init__(daemon=True)
        self.part, self.times, self.killed = part, times, 0
        self.dice, self.ended = random.Random(times), threading.Event()

    def run(self):
        while self.killed < self.times and not self.ended.is_set():
            if found := processes(self.part):
                time.sleep(self.dice.uniform(0.1, 2))
                try:
                    os.kill(self.dice.choice(found), signal.SIGKILL)
                    self.killed += 1
                except ProcessLookupError:
                    continue
                time.sleep(self.dice.uniform(1, 5))
            time.sleep(0.05)


@pytest.mark.parametrize("part", ["ray::TrainUnit", "ray::MapWorker(MapBatches(BuildShard))"])
def test_killed_workers_are_replaced(undisturbed, tmp_path, part):
    outcome, path = undisturbed
    killer = Killer(part, 2)  # within the retries of any one piece of work
    killer.start()
    try:
        on_ray(path, tmp_path / "runs")
    finally:
        killer.ended.set()
        killer.join()
    assert killer.killed
    again = on_ray(path, tmp_path / "runs")
    equal(again, outcome)
    rows = stored(tmp_path / "runs")
    assert rows["key"].n_unique() == len(rows) == COUNT


def test_a_driver_killed_three_times(undisturbed, tmp_path):
    outcome, path = undisturbed
    root, before, dice = tmp_path / "runs", set(ray_processes()), random.Random(5)
    for _ in range(3):
        child = subprocess.Popen(command(path, root), stderr=subprocess.DEVNULL)
        time.sleep(dice.uniform(15, 45))
        child.send_signal(signal.SIGKILL)
        child.wait()
    equal(on_ray(path, root), outcome)
    rows = stored(root)
    assert rows["key"].n_unique() == len(rows) == COUNT
    assert not none_left(before, 150)


def command(path, root):
    code = "from raystitch.cli import main; main()"
    return [sys.executable, "-c", code, "sweep", str(path), "--storage", str(root)]


def test_ctrl_c_stores_what_is_finished_and_leaves_no_process(undisturbed, tmp_path):
    outcome, path = undisturbed
    root, before = tmp_path / "runs", set(ray_processes())
    child = subprocess.Popen(command(path, root), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while child.poll() is None and time.monotonic() < deadline:
        if any(Storage(root).states("small").glob("*.safetensors")):
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 130, errors
    assert "Traceback" not in errors
    assert "Run the same command again" in errors
    assert not none_left(before)
    equal(sweeping.run(path, root), outcome)


TWO_NODES = """
import sys
from ray.cluster_utils import Cluster
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
second = nodes.add_node(num_cpus=1)
nodes.wait_for_nodes()
print(nodes.address, flush=True)
sys.stdin.readline()
nodes.remove_node(second, allow_graceful=False)
sys.stdin.readline()
nodes.shutdown()
"""


@pytest.mark.parametrize("lost", [False, True])
def test_two_nodes_and_the_loss_of_one(undisturbed, tmp_path, lost):
    """Two nodes of one CPU on this machine; one of them may go while stitches are trained."""
    from raystitch.run import cluster

    outcome, path = undisturbed
    cluster.make_token()
    root, before = tmp_path / "runs", set(ray_processes())
    # In a process group of its own: Ray ends the whole group of a cluster's process.
    nodes = subprocess.Popen(
        [sys.executable, "-c", TWO_NODES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "RAY_AUTH_MODE": "token"},
    )
    try:
        address = nodes.stdout.readline().strip()
        child = subprocess.Popen(
            [*command(path, root), "--address", address], stderr=subprocess.PIPE, text=True
        )
        while child.poll() is None:
            if lost and any(Storage(root).states("small").glob("*.safetensors")):
                nodes.stdin.write("remove\n")
                nodes.stdin.flush()
                break
            time.sleep(0.02)
        _, errors = child.communicate(timeout=600)
        assert child.returncode == 0, errors
        assert "2 slots on cpu" in errors
    finally:
        nodes.communicate("end\nend\n", timeout=60)
    equal(sweeping.run(path, root), outcome)
    rows = stored(root)
    assert rows["key"].n_unique() == len(rows) == COUNT
    assert not none_left(before, 90)
