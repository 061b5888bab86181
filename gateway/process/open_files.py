"""The limit of open files: a shell's usual 1,024 allow only a few hundred streams."""

import resource
from typing import Final

_WANTED: Final = 65_536


def allow_many_sockets() -> int:
    """Raise this process's limit of open files as far as the hard limit allows; return the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
