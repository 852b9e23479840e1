"""Set before torch and Ray are imported.

One thread, which sleeps when it waits: the networks here are so small that a second thread costs
more than it does, and threads that spin slow a busy machine by up to 15 times. A folder of our own
for Ray: by it the tests tell the processes that they started from any other's.
"""

import os
import shutil
import tempfile

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Short, for Ray's sockets lie in it.
os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="rs-")


def pytest_unconfigure():
    shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)
