"""The folder in which the processes of one `weighbridge serve` meet: two sockets, and the metrics of all workers."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_LONGEST_SOCKET_PATH: Final = 100
"""Bytes; the kernel takes 107 and macOS's 103."""


class RuntimeFolder(NamedTuple):
    """Paths in the folder. Only the user who serves may look into it."""

    path: Path

    @property
    def link(self) -> Path:
        """The socket of messages between the planes."""
        return self.path / "link"

    @property
    def web(self) -> Path:
        """The socket of the control plane's HTTP server."""
        return self.path / "web"

    @property
    def reloads(self) -> Path:
        """The folder of what each process made of its last reload."""
        return self.path / "reloads"

    @property
    def metrics(self) -> Path:
        """The folder of the files that all processes count in."""
        return self.path / "metrics"


@contextlib.contextmanager
def runtime_folder(parent: Path | None = None) -> Iterator[RuntimeFolder]:
    """Yield a new folder and remove it at the end. Raises OSError when none can be made."""
    made = Path(tempfile.mkdtemp(prefix="weighbridge-", dir=parent))
    if len(str(made / "link").encode()) > _LONGEST_SOCKET_PATH:
        made.rmdir()
        made = Path(tempfile.mkdtemp(prefix="weighbridge-", dir="/tmp"))
    try:
        (made / "metrics").mkdir()
        yield RuntimeFolder(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)
