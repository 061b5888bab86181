"""What is made once for all processes of a run, because making it takes seconds."""

import fcntl
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

Made = TypeVar("Made")


def common_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder that the run's processes share."""
    own = factory.getbasetemp()
    # Each of several processes has its own folder in the run's.
    return own.parent if own.name.startswith("popen-") else own


def folder_once(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], object]) -> Path:
    """Return a folder that the first process to ask has filled; the others wait for that."""
    folder = common_folder(factory) / name
    done = folder.with_suffix(".done")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir()
            fill(folder)
            done.touch()
    return folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Made]) -> Made:
    """Return what the first process to ask has made; the others read a copy."""
    path = folder_once(factory, name, lambda folder: _keep(folder / "made", make())) / "made"
    made: Made = pickle.loads(path.read_bytes())  # noqa: S301 - our own
    return made


def _keep(path: Path, made: object) -> None:
    path.write_bytes(pickle.dumps(made))
