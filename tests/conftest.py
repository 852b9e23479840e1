"""Settings of the test process, made before anything loads torch."""

import os

# Small networks on a busy machine: threads that spin at OpenMP's barriers made the same training
# 15 times slower on two shared cores than threads that sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
