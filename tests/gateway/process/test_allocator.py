"""The allocator: what threads freed does not stay in the process."""

import subprocess
import sys
from typing import Final

import pytest

_THREADS_THAT_COME_AND_GO: Final = """
import ctypes, sys, threading
from pathlib import Path
from gateway.process.allocator import give_back_freed_memory

if sys.argv[1] == "told" and not give_back_freed_memory():
    sys.exit("not glibc")
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
# A large block that is freed once raises the thresholds.
libc.free(libc.malloc(24 << 20))
met = threading.Barrier(8)

def work():
    met.wait()
    # Pages of a database's cache: 4 MB in small blocks.
    blocks = [libc.malloc(4_400) for _ in range(1_000)]
    for block in blocks:
        ctypes.memset(block, 1, 4_400)
    met.wait()
    for block in blocks:
        libc.free(block)

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096

before = resident()
threads = [threading.Thread(target=work) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print((resident() - before) / 1e6)
"""


def _left_mb(how: str, program: str = _THREADS_THAT_COME_AND_GO) -> float:
    done = subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True, check=False)
    if done.stderr.strip() == "not glibc":
        pytest.skip("another allocator")
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told")
def test_what_threads_freed_goes_back() -> None:
    """Of some 32 MB that eight threads took and freed next to nothing stays, and nearly all of it where nobody tells glibc."""
    told, left_alone = _left_mb("told"), _left_mb("left alone")
    assert told < 8
    assert left_alone > 16


_ANSWERS_THAT_GROW: Final = """
import sys
from pathlib import Path
from gateway.process.allocator import give_back_large_blocks

if sys.argv[1] == "told" and not give_back_large_blocks():
    sys.exit("not glibc")

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096

before = resident()
kept = []
for _ in range(4):
    grown = [bytearray() for _ in range(12)]
    for _ in range(150):
        for each in grown:
            each += b"a" * 130_000
    kept.append(bytes(200_000))
    grown.clear()
    del each
print((resident() - before) / 1e6)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told")
def test_answers_that_grew_side_by_side_go_back() -> None:
    """Of 234 MB that grow in twelve blocks, again and again, a worker keeps less than the heap that it may."""
    assert _left_mb("told", _ANSWERS_THAT_GROW) < 100
