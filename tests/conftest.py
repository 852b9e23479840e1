"""Set before torch is imported: one thread, which sleeps when it waits.

The networks here are so small that a second thread costs more than it does, and threads that spin
slow a busy machine by up to 15 times.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
