"""The Lua scripts that run atomically inside Redis, one file each, called by their hash."""

import functools
import hashlib
from pathlib import Path
from typing import Final

import msgspec

_FOLDER: Final = Path(__file__).parent


class Script(msgspec.Struct, frozen=True):
    """A script's text and the SHA-1 by which Redis knows it once loaded."""

    name: str
    text: str
    sha: str


@functools.cache
def script(name: str) -> Script:
    """Read `<name>.lua` beside this file; cached."""
    text = (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
    # SHA-1 is the name that Redis gives to a script; nothing is kept safe by it.
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
