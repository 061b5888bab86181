"""The rows of a trained model's table, read without the model: for those who only ask which there are."""

import importlib.resources
from pathlib import Path
from typing import Final

import msgspec

from classifier.tuning import Ability

MANIFEST_FILE: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 2**20


class _Rows(msgspec.Struct):
    abilities: dict[str, Ability]


def shipped_rows(folder: Path | None = None) -> dict[str, Ability]:
    """Return the rows by name of the artifact in `folder`, or of the packaged one; none where it cannot be read, which loading it
    would tell.
    """
    if folder is None:
        with importlib.resources.as_file(importlib.resources.files("classifier") / "artifacts") as packaged:
            return shipped_rows(packaged)
    try:
        with (folder / MANIFEST_FILE).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_MANIFEST_BYTES), type=_Rows).abilities
    except (OSError, msgspec.DecodeError):
        return {}
