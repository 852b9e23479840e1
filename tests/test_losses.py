"""Workers, nodes and drivers lost at random moments: the undisturbed run's cells, none twice."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

import raying
import sweeping
from raystitch.results.store import Storage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRAINING = {**sweeping.SMALL["training"], "epochs": 25, "min_epochs": 25}
# Eight shards of IRIs, so that some are left when workers are lost.
IRIS = {**sweeping.SMALL["iris"], "steps": 400, "tolerance": 0, "batch": 8}
SWEEP = {
    "training": TRAINING,
    "iris": IRIS,
    "execution": {**sweeping.SMALL["execution"], "state_seconds": 0, "retries": 3},
}
COUNT = 2 * (4 + 4 + 3)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    path = sweeping.write(folder, **SWEEP)
    return sweeping.run(path, folder / "runs"), path


def states(root):
    return list(Storage(root).states("small").glob("[!.]*.safetensors"))


@pytest.mark.parametrize("part", ["ray::TrainUnit", "ray::MapWorker(MapBatches(BuildShard))"])
def test_workers_killed_three_times(undisturbed, tmp_path, capsys, part):
    outcome, path = undisturbed
    root = tmp_path / "runs"
    with raying.Killer(part, 3) as killer:  # within the retries of any one piece of work
        child = subprocess.Popen(
            raying.command(path, root), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        _, said = child.communicate(timeout=600)
    assert killer.killed == 3
    with capsys.disabled():
        print(
            f"\n{part}: killed 3 times",
            *(s for s in said.splitlines() if "goes on" in s),
            sep="\n  ",
        )
    raying.assert_equal(raying.on_ray(path, root), outcome)
    raying.assert_each_once(root, COUNT)


def test_a_driver_killed_three_times(undisturbed, tmp_path, capsys):
    outcome, path = undisturbed
    root, dice, said = tmp_path / "runs", random.Random(5), []
    for _ in range(3):
        child = subprocess.Popen(raying.command(path, root), stderr=subprocess.PIPE, text=True)
        # From the first worker's start on; each stage takes its share of the time.
        raying.wait_for(child, lambda: raying.processes("ray::"))
        time.sleep(dice.uniform(1, 25))
        assert child.poll() is None
        child.send_signal(signal.SIGKILL)
        said += [line for line in child.communicate()[1].splitlines() if "goes on" in line]
    with capsys.disabled():
        print("\ndriver killed 3 times", *said, sep="\n  ")
    raying.assert_equal(raying.on_ray(path, root), outcome)
    raying.assert_each_once(root, COUNT)
    assert raying.none_left(150)


@pytest.mark.parametrize("stage", ["IRIs", "stitches"])
def test_ctrl_c_stores_what_is_finished_and_leaves_no_process(undisturbed, tmp_path, stage):
    outcome, path = undisturbed
    root = tmp_path / "runs"
    # In a process group of its own, all of which gets the signal, as from a terminal.
    child = subprocess.Popen(
        raying.command(path, root), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    begun = {
        "IRIs": lambda: any((root / "artifacts" / "iris").glob("*/part-*")),
        "stitches": lambda: states(root),
    }
    raying.wait_for(child, begun[stage])
    os.killpg(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 130, errors
    assert "Traceback" not in errors
    assert "Run the same command again" in errors
    assert raying.none_left()
    raying.assert_equal(sweeping.run(path, root), outcome)


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
    root = tmp_path / "runs"
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
            raying.command(path, root, "--address", address), stderr=subprocess.PIPE, text=True
        )
        if lost:
            raying.wait_for(child, lambda: states(root))
            nodes.stdin.write("remove\n")
            nodes.stdin.flush()
        _, errors = child.communicate(timeout=600)
        assert child.returncode == 0, errors
        assert "2 slots on cpu" in errors
        assert ("lost, to be tried again" in errors) is lost
    finally:
        nodes.communicate("end\nend\n", timeout=60)
    raying.assert_equal(sweeping.run(path, root), outcome)
    raying.assert_each_once(root, COUNT)
    assert raying.none_left(90)
