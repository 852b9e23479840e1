"""Set before torch and Ray are imported.

One thread, which sleeps when it waits: the networks here are so small that a second thread costs
more than it does, and threads that spin slow a busy machine by up to 15 times. A folder of our own
for Ray, by which the tests tell the processes that they started from any other's, and for all
temporary files, so that no activations are found that another run has kept.
"""

import os
import shutil
import tempfile

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Short, for Ray's sockets lie in it.
os.environ["RAY_TMPDIR"] = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="rs-")
tempfile.tempdir = os.environ["TMPDIR"]


def pytest_unconfigure():
    shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)
