"""Bounds on the number of values in a JSON body, checked before it is decoded: a value costs memory and time, however
short it is.

A body of 20 MB may be one long text, which is read in milliseconds, or ten million empty objects, which take seconds
and a gigabyte. The signs between the texts tell them apart, so these are counted. Bodies of usual size are not checked.
"""

import asyncio
from collections.abc import Callable, Sized
from typing import Final, TypeVar

from proxy.errors import BadRequest

_T = TypeVar("_T")
_FREE_BYTES: Final = 128 * 1024
"""The size up to which reading any body takes no longer than a turn of the loop may."""
_LONG_BYTES: Final = 1024 * 1024
_FEW_CONTAINERS: Final = 8_192
_FEW_VALUES: Final = 50_000

MOST_CONTAINERS: Final = 32_768
"""The most objects and lists: 4,096 messages with a few parts each, and thousands of tools' parameters."""
MOST_NAMES: Final = 131_072
"""The most names in objects."""
MOST_VALUES: Final = 500_000
"""The most commas, and so about the most values: OpenAI embeds 300,000 tokens at once."""
MOST_FIELDS: Final = 256
"""The most fields of the body itself."""
_SPARE: Final = 64
_BYTES_OF_CONTAINER: Final = 32
_BYTES_OF_VALUE: Final = 8
_OTHERS: Final = bytes(set(range(256)) - set(b'{}[]:,"'))


def is_heavy(body: bytes) -> bool:
    """Return True when reading the body may take longer than a turn of the loop should, so that it is read beside the
    loop. Text counts as if it were structure. Any other body is within the bounds of `check_structure`.
    """
    if len(body) <= _FREE_BYTES:
        return False
    if len(body) > _LONG_BYTES:
        return True
    marks = body.translate(None, _OTHERS)
    return marks.count(b"{") + marks.count(b"[") > _FEW_CONTAINERS or marks.count(b",") > _FEW_VALUES


def check_structure(body: bytes, times: int = 1) -> None:
    """Check the number of values, objects and names in a JSON body, whatever they are. `times` is for a body that
    holds many requests. Raises BadRequest.
    """
    if len(body) <= _FREE_BYTES or _fits(body.translate(None, _OTHERS), times):
        return
    marks = _without_escapes(body).translate(None, _OTHERS)
    # Each text is a value or a name. No more is taken apart than there may be of these.
    if marks.count(b'"') > 2 * times * (MOST_VALUES + MOST_NAMES) or not _fits(_outside(marks), times):
        raise BadRequest(
            f"The request body has too many values: at most {times * MOST_CONTAINERS} objects and lists, "
            f"{times * MOST_NAMES} names and {times * MOST_VALUES} values are accepted. Send fewer or longer parts, or several requests.",
            code="too_many_values",
        )


def is_dense(part: bytes) -> bool:
    """Return True for JSON that has more values than texts. What stands encoded within a text of a body is none of the values that
    `check_structure` counts, so it is read only where it costs little more than its bytes.
    """
    most_containers, most_values = _SPARE + len(part) // _BYTES_OF_CONTAINER, _SPARE + len(part) // _BYTES_OF_VALUE
    if part.count(b"{") + part.count(b"[") <= most_containers and part.count(b",") <= most_values:
        return False
    marks = _outside(_without_escapes(part).translate(None, _OTHERS))
    return marks.count(b"{") + marks.count(b"[") > most_containers or marks.count(b",") > most_values


def _without_escapes(body: bytes) -> bytes:
    """Return a body in which every quote begins or ends a text."""
    return body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body


def _outside(marks: bytes) -> bytes:
    return b"".join(marks.split(b'"')[::2])


def _fits(marks: bytes, times: int) -> bool:
    return (
        marks.count(b"{") + marks.count(b"[") <= times * MOST_CONTAINERS
        and marks.count(b":") <= times * MOST_NAMES
        and marks.count(b",") <= times * MOST_VALUES
    )


def check_fields(fields: Sized) -> None:
    """Check the number of a body's fields. Raises BadRequest."""
    if len(fields) > MOST_FIELDS:
        raise BadRequest(f"The request body has {len(fields)} fields; at most {MOST_FIELDS} are accepted.")


class BodyReader:
    """Reads the bodies of one process: what would hold up all streams on a thread, one after the other."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()

    async def read(self, body: bytes, read: Callable[[], _T]) -> _T:
        """Return what `read` makes of the body. Raises BadRequest, before any of it is decoded, where there is too much in it."""
        if not is_heavy(body):
            return read()
        async with self._reading:
            await asyncio.to_thread(check_structure, body)
            return await asyncio.to_thread(read)
