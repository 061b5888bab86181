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


def give_back_freed_memory() -> bool:
    """Keeps both thresholds where they are at the start of a process. False where the allocator is not glibc's, or takes no such order.

    It costs whoever frees and takes large blocks a call of the kernel each time: not for a process that callers wait for.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return all(mallopt(parameter, _KEPT_BYTES) == 1 for parameter in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))
