"""The limit of open files, in a process of its own."""

import subprocess
import sys

_CODE = """
import resource
from gateway.process.open_files import allow_many_sockets
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
told = allow_many_sockets()
assert told == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64 or hard <= 64
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
assert allow_many_sockets() == 64
"""


def test_the_soft_limit_is_raised_as_far_as_the_hard_one_lets() -> None:
    """And a hard limit is taken as it is."""
    subprocess.run([sys.executable, "-c", _CODE], check=True, timeout=60)
