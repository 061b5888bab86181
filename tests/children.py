"""The processes that another one has started."""

import contextlib
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """The living children of a process."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if int(parent) == pid and state != "Z":
                    found.append(int(folder.name))
    return sorted(found)
