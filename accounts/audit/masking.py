"""An object's state as an audit entry may store it: plain values, bounded, with every secret masked."""

import hashlib
import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec

from accounts.secret_shapes import MASK, mask_text

CHANGED: Final = "••• (changed)"
"""Mask of a secret that was changed; two plain masks would look as if nothing had happened."""
MAX_TEXT_CHARS: Final = 2_000
MAX_DEPTH: Final = 6

_WORDS: Final = re.compile(r"[a-z]+|[A-Z][a-z]*|[0-9]+")
# Any of these words in a name makes it a secret's; of the second kind only the last one does, as in
# `metrics_token`, since `token_burst` and `password_min_chars` are no secrets.
_SECRET_WORDS: Final = frozenset({"secret", "secrets", "passphrase", "plaintext", "credential", "credentials"})
_SECRET_LAST_WORDS: Final = frozenset(
    {"password", "passwd", "token", "digest", "pepper", "peppers", "cookie", "cookies", "authorization", "key"}
)


def plain(value: Any, depth: int = 0) -> Any:
    """Return the value as JSON types in one canonical order, not masked yet. Values that differ stay different.

    Raises ValueError for nesting deeper than MAX_DEPTH, TypeError for a type that has no plain form.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"the audit log keeps nothing that is nested deeper than {MAX_DEPTH} times")
    match value:
        case msgspec.Struct():
            return plain(msgspec.structs.asdict(value), depth)
        case Mapping():
            return {_bounded(str(name)): plain(value[name], depth + 1) for name in sorted(value, key=str)}
        case set() | frozenset():
            return [plain(item, depth + 1) for item in sorted(value, key=str)]
        case list() | tuple():
            return [plain(item, depth + 1) for item in value]
        case _:
            return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case str():
            return _bounded(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            return f"{value:f}"
        case date():
            at = value.astimezone(UTC) if isinstance(value, datetime) else value
            return at.isoformat().replace("+00:00", "Z")
    raise TypeError(f"the audit log keeps no {type(value).__name__}")


def masked(value: Any, beside: Any = None, name: str = "") -> Any:
    """Return a plain value with its secrets masked; a secret that differs from `beside`, the other state, is marked as
    changed.
    """
    match value:
        case str():
            if value and _is_secret(name):
                return CHANGED if beside is not None and beside != value else MASK
            shown = mask_text(value)
            differs = isinstance(beside, str) and beside != value
            # Two keys that differ only where they are masked.
            return f"{shown} (changed)" if differs and mask_text(beside) == shown else shown
        case dict():
            fields = beside if isinstance(beside, dict) else {}
            return {each: masked(item, fields.get(each), each) for each, item in value.items()}
        case list():
            others = beside if isinstance(beside, list) and len(beside) == len(value) else [None] * len(value)
            return [masked(item, other, name) for item, other in zip(value, others, strict=True)]
        case _:
            return value


def one_line(text: str, limit: int) -> str:
    """Return the text on one printable line of at most `limit` characters, secrets masked: fit for a column and a log line."""
    shown = "".join(char if char.isprintable() else " " for char in mask_text(text[: 4 * limit])).strip()
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _is_secret(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    return bool(words) and (words[-1] in _SECRET_LAST_WORDS or not _SECRET_WORDS.isdisjoint(words))


def _bounded(text: str) -> str:
    """Return the text without lone surrogates, which no encoding accepts, cut to MAX_TEXT_CHARS with the rest's hash."""
    whole = text.encode("utf-8", "replace").decode()
    if len(whole) <= MAX_TEXT_CHARS:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()
    return f"{whole[:MAX_TEXT_CHARS]}… ({len(whole) - MAX_TEXT_CHARS} more characters, sha256 {digest[:16]})"
