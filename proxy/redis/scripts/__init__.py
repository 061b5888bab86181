"""What runs inside Redis: one Lua file a script, atomic there, and called by its hash."""

import functools
import hashlib
from pathlib import Path
from typing import Final

import msgspec

_FOLDER: Final = Path(__file__).parent


class Script(msgspec.Struct, frozen=True):
    """A script as it is sent. Redis knows it by the hash of its text, once it was loaded there."""

    name: str
    text: str
    sha: str


@functools.cache
def script(name: str) -> Script:
    """The script in `<name>.lua` beside this file, read once."""
    text = (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
    # SHA-1 is the name that Redis gives to a script; nothing is kept safe by it.
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
