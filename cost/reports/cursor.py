"""Page cursors: opaque texts that belong to one query.

A cursor carries no right to anything: whatever somebody writes into one, a reader's scope stands in its WHERE clause.
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from cost.reports.report_errors import BadQuery

_MAX_CHARS: Final = 4_096
_MAX_TEXT_CHARS: Final = 400


def encode_cursor(query: Any, last: Sequence[str | int]) -> str:
    """Encode the place after `last`, the key of a page's last row."""
    packed = msgspec.json.encode([_fingerprint(query), *last])
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def decode_cursor(cursor: str, query: Any, kinds: Sequence[type]) -> tuple[str | int, ...]:
    """Return the key that `encode_cursor` was given for the same query. Raises BadQuery for anything else."""
    values = _unpacked(cursor)
    if len(values) != len(kinds) + 1 or values[0] != _fingerprint(query):
        raise BadQuery("it belongs to another query; begin again without it", param="page")
    for value, kind in zip(values[1:], kinds, strict=True):
        if type(value) is not kind or not _storable(value):
            raise BadQuery("it is not one of ours", param="page")
    return tuple(values[1:])


def _unpacked(cursor: str) -> list[str | int]:
    try:
        if len(cursor) > _MAX_CHARS:
            raise BadQuery("it is too long to be one of ours", param="page")
        packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(packed, type=list[str | int])
    except (binascii.Error, ValueError) as failure:
        raise BadQuery("it is not one of ours", param="page") from failure


def _storable(value: str | int) -> bool:
    """Return True for what PostgreSQL can compare: no NUL, at most 64 bits, not too long."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return len(value) <= _MAX_TEXT_CHARS and "\x00" not in value


def _fingerprint(query: Any) -> str:
    return hashlib.blake2b(msgspec.json.encode(query), digest_size=8).hexdigest()
