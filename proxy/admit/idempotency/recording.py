"""Recording of replies under an Idempotency-Key, and their replay.

A reply is seen piece by piece on its way to the caller. It is kept before its last piece goes out, so that a caller
with a whole answer gets the same one again, also if this process dies in that moment. The pieces are seen whether or
not the caller still listens: one that hung up sends its key again and gets the answer it missed.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from proxy.admit.idempotency.claims import Claim, Header, Replay
from proxy.http.reply import Reply

_log: Final = logging.getLogger("weighbridge.idempotency")

REPLAYED_HEADER: Final = b"idempotent-replayed"
ORIGINAL_HEADER: Final = b"x-weighbridge-original-request-id"
_SHOULD_RETRY: Final = b"x-should-retry"
_TYPE: Final = b"content-type"
_EVENTS: Final = b"text/event-stream"
_OWN: Final = b"x-weighbridge-"
_PIECE_BYTES: Final = 64 * 1024
"""The piece size of a replayed stream: after each, back-pressure from a slow reader applies."""
_FIRST_ERROR: Final = 400
_COME_AGAIN: Final = frozenset({402, 429, 503})


def is_worth_keeping(status: int, *, may_have_cost: bool) -> bool:
    """Return True when an answer is final for its key: it succeeded, or an attempt at it may have cost something.

    An answer without cost frees the key, because a retry is meant to succeed: a refusal, or an outage of all targets.
    So does one that asks to come again, also when an attempt before it cost something: a process that had to stop, a
    spent limit.
    """
    if status in _COME_AGAIN:
        return False
    return status < _FIRST_ERROR or may_have_cost


class Recording:
    """A recording of one reply on its way out. `close` must follow in any case."""

    __slots__ = ("_chunks", "_claim", "_headers", "_size", "_worth", "status", "too_large", "whole")

    def __init__(self, claim: Claim, worth: Callable[[int], bool]) -> None:
        """`worth(status)` decides, once the answer is complete, whether it is kept."""
        self._claim = claim
        self._worth = worth
        self._headers: tuple[Header, ...] = ()
        self._chunks: list[bytes] = []
        self._size = 0
        self.status = 0
        self.too_large = False
        self.whole = False

    def began(self, status: int, headers: Iterable[Header]) -> None:
        """Record the head of the reply before it is sent."""
        self.status = status
        self._headers = tuple(_worth_repeating(headers))

    async def wrote(self, data: bytes, *, last: bool) -> None:
        """Record a piece of the body before it is sent. Before the last one the answer is stored. Never raises."""
        self._record_body(data)
        if last and not self.whole:
            self.whole = True
            await self._conclude()

    async def close(self) -> None:
        """End the recording. An incomplete answer cannot be replayed, so its key is freed."""
        if self.whole:
            return
        self._drop()
        if self.status:
            _log.warning("request %s broke off; its Idempotency-Key is free again", self._claim.request_id)
        await self._claim.free()

    async def _conclude(self) -> None:
        if not self._worth(self.status):
            self._drop()
            await self._claim.free()
            return
        body = None if self.too_large else b"".join(self._chunks)
        # The claim has it now, and the memory that was reserved for it.
        self._chunks.clear()
        await self._claim.keep(self.status, self._headers, body)

    def _record_body(self, data: bytes) -> None:
        if self.too_large or not data:
            return
        self._size += len(data)
        if self._size > self._claim.max_answer_bytes or not self._claim.hold(len(data)):
            self.too_large = True
            self._drop()
        else:
            self._chunks.append(data)

    def _drop(self) -> None:
        self._chunks.clear()
        self._claim.let_go()


async def replay(reply: Reply, found: Replay) -> None:
    """Send a kept answer again: the same status and bytes, under a new request id."""
    try:
        await _give(reply, found)
    finally:
        found.given()


async def _give(reply: Reply, found: Replay) -> None:
    names = dict(found.headers)
    headers = [(name, value) for name, value in found.headers if name != _TYPE]
    headers += [(REPLAYED_HEADER, b"true"), (ORIGINAL_HEADER, found.request_id.encode())]
    if found.status >= _FIRST_ERROR and _SHOULD_RETRY not in names:
        # A repeat of this key gets this very error again.
        headers.append((_SHOULD_RETRY, b"false"))
    if not names.get(_TYPE, b"").startswith(_EVENTS):
        await reply.whole(found.status, found.body, headers)
        return
    reply.begin_events(headers)
    last = max(0, (len(found.body) - 1) // _PIECE_BYTES * _PIECE_BYTES)
    for start in range(0, last, _PIECE_BYTES):
        await reply.events(found.body[start : start + _PIECE_BYTES])
    await reply.end(found.body[last:])


def _worth_repeating(headers: Iterable[Header]) -> Iterable[Header]:
    """Filter the headers that describe the answer; limits and ids describe the moment."""
    return ((name, value) for name, value in headers if name in {_TYPE, _SHOULD_RETRY} or name.startswith(_OWN))
