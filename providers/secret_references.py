"""References to secrets in a configuration: their places, and whether the secrets are set."""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from settings.secret_ref import is_reference

_MAX_SECRET_BYTES: Final = 64 * 1024
_REFERENCE = re.compile(r"(?:env:|os\.environ/)([A-Za-z_][A-Za-z0-9_]*)\Z")


class Secret(msgspec.Struct, frozen=True):
    """A reference to a secret in the configuration, and whether the secret exists."""

    key: tuple[str | int, ...]
    reference: str
    is_set: bool

    @property
    def name(self) -> str:
        """The environment variable, or the `file:` reference."""
        return _secret_name(self.reference)

    def __str__(self) -> str:
        return f"{self.reference.replace('os.environ/', 'env:')} ({'set' if self.is_set else 'NOT SET'})"


def _secret_name(reference: str) -> str:
    found = _REFERENCE.match(reference)
    return found[1] if found is not None else reference


def read_secret_file(reference: str) -> str:
    """Return the secret in the file of a `file:` reference. Raises OSError, also for what is no file or too long, and ValueError for what
    is no text.
    """
    # A pipe would be waited at for ever.
    with os.fdopen(os.open(reference.removeprefix("file:"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        found = file.read(_MAX_SECRET_BYTES + 1)
    if len(found) > _MAX_SECRET_BYTES:
        raise OSError(errno.EFBIG, f"is longer than {_MAX_SECRET_BYTES:,} bytes")
    return found.decode().strip()


def secrets_in(value: Any, secrets_from: Mapping[str, str], key: tuple[str | int, ...] = ()) -> Iterator[Secret]:
    """Yield every reference to a secret within a configuration value; `secrets_from` is the environment."""
    if isinstance(value, str):
        if _REFERENCE.match(value):
            yield Secret(key, value, bool(secrets_from.get(_secret_name(value))))
        elif value.startswith("file:") and is_reference(value):
            yield Secret(key, value, Path(value.removeprefix("file:")).is_file())
    else:
        for name, inner in inside(value):
            yield from secrets_in(inner, secrets_from, (*key, name))


def inside(value: Any) -> Iterable[tuple[str | int, Any]]:
    """Return the items of a configuration value as (key or index, value); none for a scalar."""
    if isinstance(value, BaseModel):
        return iter(value)
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, set | frozenset):
        return enumerate(sorted(value, key=str))
    return enumerate(value) if isinstance(value, list | tuple) else ()


_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


def settings_as_shown(value: Any, secrets_from: Mapping[str, str]) -> Any:
    """Return the configuration as plain values that are safe to show: a secret appears as its reference and whether it is set."""
    if isinstance(value, BaseModel | Mapping):
        return {str(name): settings_as_shown(inner, secrets_from) for name, inner in inside(value)}
    if isinstance(value, list | tuple | set | frozenset):
        return [settings_as_shown(inner, secrets_from) for _, inner in inside(value)]
    if isinstance(value, str):
        return next((str(secret) for secret in secrets_in(value, secrets_from)), _USER_INFO.sub("***@", value))
    if value is None or isinstance(value, bool | int | float):
        return value
    # For reading only: YAML knows no Decimal, and a float prints the same digits.
    return float(value) if isinstance(value, Decimal) else str(value)
