"""A pepper in a file of its own, for a gateway whose operator configured none."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from accounts.errors import UnusablePepper
from accounts.keys import MIN_PEPPER_BYTES, Pepper
from settings.private import private_folder

_REMEDY: Final = "Put the file back from a backup; where no key was made yet, delete it, and a start makes one"


def read_or_make_pepper(path: Path, *, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> Pepper:
    """Return the pepper in `path`, created at the first start. Processes that start at once agree on one.

    Its id is derived from its content, so a replaced file is a different pepper. Raises UnusablePepper.
    """
    found = read_pepper(path)
    if found is None:
        _create(path, random_bytes)
        found = read_pepper(path)
    if found is None:
        raise UnusablePepper(f"{path} was made and is not there")
    return found


def read_pepper(path: Path) -> Pepper | None:
    """Return the pepper in `path`, or None where there is no such file. Raises UnusablePepper."""
    try:
        secret = bytes.fromhex(path.read_text("ascii").strip())
    except FileNotFoundError:
        return None
    except ValueError as failure:
        raise UnusablePepper(f"{path} holds no pepper: hexadecimal digits are expected. {_REMEDY}") from failure
    if len(secret) < MIN_PEPPER_BYTES:
        what = "is cut short" if secret else "is empty"
        raise UnusablePepper(f"{path} {what}: {2 * MIN_PEPPER_BYTES} hexadecimal digits are expected. {_REMEDY}")
    return Pepper(id=pepper_id(secret), secret=secret)


def pepper_id(secret: bytes) -> str:
    """Return a pepper's public id. A digest of 32 random bytes tells nothing about them."""
    return "p" + hashlib.sha256(b"weighbridge pepper id" + secret).hexdigest()[:8]


def _create(path: Path, random_bytes: Callable[[int], bytes]) -> None:
    private_folder(path.parent)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(random_bytes(MIN_PEPPER_BYTES).hex() + "\n")
        file.flush()
        # Losing the pepper to a power cut would lock every key out.
        os.fsync(file.fileno())
    # A link refuses to replace: whoever comes second reads the first one's pepper.
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
