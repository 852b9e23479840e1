"""Settings of a process that computes: torch's threads, its arithmetic, and the C allocator."""

from __future__ import annotations

import ctypes
import resource
import sys

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 2**30


def prepare(threads: int) -> None:
    """Make this process compute as every other process of a sweep does.

    threads: of torch. The bits of a trained network depend on their number.
    """
    torch.set_num_threads(threads)
    # TF32 would round what the CPU does not: rows of one key must not depend on the device so much.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    _keep_freed_memory()


def peak_bytes() -> int:
    """The most memory that this process ever held: resident, with the pages of mapped files."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _keep_freed_memory() -> None:
    """Keep freed memory for the next tensors instead of giving it back to the system each time.

    glibc returns large blocks at once, and every batch then pays for fresh pages: a fifth of the
    time of a small network. Other allocators have no `mallopt`, and are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
