"""glibc's allocator, told to give freed memory back to the system.

Each thread has an arena of its own, and a connection to SQLite is a thread. An arena gives back what is free at its end, but only what is
beyond a threshold, and by default glibc raises that: to twice the largest block that was ever freed, 64 MB at most. Then threads that come
and go leave megabytes behind in one arena after the other, which nobody uses and `malloc_trim` does not reach.
"""

import ctypes
import sys
from typing import Final

# Of malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 128 * 1024
"""glibc's own thresholds at the start. To set one ends the raising."""
_LARGE_BLOCK_BYTES: Final = 1024 * 1024
_KEPT_BY_WORKERS: Final = 64 * 1024 * 1024


def give_back_freed_memory() -> bool:
    """Keep both thresholds where they are at the start of a process. False where the allocator is not glibc's, or takes no such order.

    It costs whoever frees and takes large blocks a call of the kernel each time: not for a process that callers wait for.
    """
    return _set(_KEPT_BYTES, _KEPT_BYTES)


def give_back_large_blocks() -> bool:
    """Have blocks of a megabyte and more returned as soon as they are free, and nothing else: for a process that callers wait for.
    False as above.

    Left to itself glibc keeps such blocks in its heap from the first one on, where bodies and answers that grow side by side leave
    hundreds of megabytes in crumbs.
    """
    return _set(_KEPT_BY_WORKERS, _LARGE_BLOCK_BYTES)


def _set(trim_bytes: int, mmap_bytes: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, trim_bytes) == mallopt(_MMAP_THRESHOLD, mmap_bytes) == 1)
