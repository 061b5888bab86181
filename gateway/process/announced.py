"""Which gateways run on this machine: in the data folder stands a file for each, locked by its supervisor for as long.

`weighbridge health` asks a few times a minute, so little is imported here.
"""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from settings.decoding import DECODE_ERRORS

SERVING: Final = Path("var/serving")
"""The folder of those files, as `cost.journal_dir` is written."""


class Gateway(msgspec.Struct, frozen=True):
    """A gateway that runs on this machine."""

    pid: int
    """Of its supervisor."""
    config: str
    runtime: str
    """The folder in which its processes meet."""
    url: str = ""
    """Where it listens, whatever its file says: the command line and the environment go before it, and a port may be the system's choice."""


@contextlib.contextmanager
def announced(folder: Path, gateway: Gateway) -> Iterator[None]:
    """Let commands find the gateway while the block runs. Where the folder cannot be written, they do not find it."""
    path = folder / str(gateway.pid)
    begun = path.with_name(f".{path.name}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = begun.open("wb")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(msgspec.json.encode(gateway))
        file.flush()
        # In its place only once it is whole and locked: who finds it without a lock deletes it.
        begun.replace(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running(folder: Path, config: Path) -> list[Gateway]:
    """Return the gateways that run with this configuration; files that killed ones left behind are deleted."""
    found = []
    for path in sorted(folder.glob("[0-9]*")):
        with contextlib.suppress(OSError, *DECODE_ERRORS), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                gateway = msgspec.json.decode(file.read(), type=Gateway)
                if gateway.config == str(config.absolute()):
                    found.append(gateway)
            else:
                path.unlink()
    return found
