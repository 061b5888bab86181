"""Folders and files for the account alone that the gateway runs under: what it keeps is nobody else's to read."""

import contextlib
import os
from pathlib import Path
from typing import Final

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
_OF_OTHERS: Final = 0o077


def private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing; those that are there stay as they are. Raises OSError."""
    for each in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        each.mkdir(mode=FOLDER_MODE, exist_ok=True)


def private_file(path: Path) -> None:
    """Make an empty file where there is none, and take others' rights from one that is there and ours.

    A file that is there is not opened: closing it would let go of every lock that this process has on it. What a disk or
    another owner forbids is left as it is.
    """
    with contextlib.suppress(OSError):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
        except FileExistsError:
            found = path.stat()
            if found.st_uid == os.geteuid() and found.st_mode & _OF_OTHERS:
                path.chmod(FILE_MODE)
