"""Buckets in Redis: one script call decides all limits of a request, in one round trip."""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final
from uuid import uuid4

from proxy.admit.limits.limit_set import LimitSet, Outcome, bucket_key
from proxy.admit.limits.local import UnsentTake
from proxy.shared.redis.scripts import script
from proxy.shared.redis.shared_state import Argument, ScriptRunner

_ADMIT: Final = script("admit")
_SETTLE: Final = script("settle")
_CHARGE: Final = script("charge")
_COUNT: Final = script("count")
MOST_AT_ONCE: Final = 500
"""The most buckets in one script call, as Redis runs nothing else meanwhile."""


class SharedBuckets:
    """A runner of the bucket scripts. `clock_us` is empty, for Redis's own clock, except in tests."""

    def __init__(self, link: ScriptRunner, *, clock_us: Callable[[], bytes] = bytes) -> None:
        self._link = link
        self._clock_us = clock_us
        self._born_key = f"{link.prefix}born"
        self._charged_key = f"{link.prefix}charged:{uuid4().hex}"
        self._charges = 0
        self._untold: tuple[int, list[UnsentTake]] | None = None

    async def admit(self, draw: LimitSet, tokens: int, unwanted: Callable[[Outcome, str], None]) -> Outcome:
        """Take from all buckets, or from none. `unwanted` is given the outcome, and its holder, of a request whose
        caller hung up meanwhile. Raises SharedStateUnavailable, after which rate tokens may have been taken all the
        same.
        """
        holder = self._link.holder
        return outcome_of(
            await self._link.call(
                _ADMIT,
                self._keys(draw, holder),
                (holder, self._clock_us(), b"1", tokens, *draw.admit_args),
                unwanted=lambda reply: unwanted(outcome_of(reply), holder),
            )
        )

    async def peek(self, draw: LimitSet) -> Outcome:
        """Return the figures without taking anything."""
        keys = self._keys(draw, self._link.holder)
        return outcome_of(await self._link.call(_ADMIT, keys, (b"", self._clock_us(), b"0", 0, *draw.admit_args)))

    def settle(self, draw: LimitSet, correction: int, holder: str = "") -> bool:
        """Correct the token buckets and end the concurrency, without waiting. Return False when the message could not
        be sent.
        """
        corrects = correction != 0 and draw.has_tokens
        if not corrects and not draw.counted:
            return True
        keys = draw.settle_keys if corrects else draw.release_keys
        args = draw.settle_args if corrects else draw.release_args
        if draw.counted:
            keys = (*keys, self._held(holder or self._link.holder))
        return self._link.tell(_SETTLE, keys, (self._clock_us(), correction, *args))

    async def charge_all(self, asking: ScriptRunner, owed: Callable[[float], Iterator[UnsentTake]]) -> None:
        """Charge Redis for the tokens taken without it, and restore levels that it has forgotten. `owed` is given the
        time since when Redis has its memory, and its rows count as told. So a charge whose reply was lost is told
        again, with the same number, which Redis executes once.
        """
        rows = owed(await self._charge(asking, b"", ()))
        while True:
            if self._untold is None:
                some = list(islice(rows, MOST_AT_ONCE))
                if not some:
                    return
                self._charges += 1
                self._untold = (self._charges, some)
            number, told = self._untold
            await self._charge(asking, b"%d" % number, told)
            self._untold = None

    async def _charge(self, asking: ScriptRunner, number: bytes, rows: Sequence[UnsentTake]) -> float:
        return float(await asking.call(_CHARGE, self._charge_keys(rows), (self._clock_us(), number, *_rows(rows))))

    def charge(self, rows: Sequence[UnsentTake]) -> bool:
        """Send one batch of charges without waiting. Return False when it could not be sent."""
        return self._link.tell(_CHARGE, self._charge_keys(rows), (self._clock_us(), b"", *_rows(rows)))

    async def count_all(self, asking: ScriptRunner, in_flight: Mapping[str, int]) -> None:
        """Register all requests that this process has in flight under a new holder."""
        counts = list(in_flight.items())
        for first in range(0, len(counts), MOST_AT_ONCE):
            await asking.call(*self._count(asking, counts[first : first + MOST_AT_ONCE]))

    def count(self, more: Sequence[tuple[str, int]]) -> bool:
        """Adjust the holder's counts in flight, without waiting. Return False when the message could not be sent."""
        return self._link.tell(*self._count(self._link, more))

    def _count(
        self, asking: ScriptRunner, more: Sequence[tuple[str, int]]
    ) -> tuple[Any, Sequence[str | bytes], Sequence[Argument]]:
        prefix = self._link.prefix
        keys: list[str | bytes] = [f"{prefix}holders", f"{prefix}held:{asking.holder}"]
        keys += [f"{prefix}total:{key}" for key, _ in more]
        return _COUNT, keys, (asking.holder, *(word for each in more for word in each))

    def _charge_keys(self, rows: Sequence[UnsentTake]) -> list[str | bytes]:
        keys: list[str | bytes] = [self._born_key, self._charged_key]
        keys += [bucket_key(self._link.prefix, row.key) for row in rows]
        return keys

    def _keys(self, draw: LimitSet, holder: str) -> Sequence[bytes]:
        return (*draw.admit_keys, self._held(holder)) if draw.counted else draw.admit_keys

    def _held(self, holder: str) -> bytes:
        return f"{self._link.prefix}held:{holder}".encode()


def outcome_of(reply: bytes) -> Outcome:
    admitted, now_us, *figures = struct.unpack(f"<{len(reply) // 8}d", reply)
    return Outcome(admitted == 1.0, now_us, figures)


def _rows(rows: Sequence[UnsentTake]) -> tuple[Argument, ...]:
    return tuple(word for row in rows for word in (row.rate, row.burst, row.amount, row.known, row.told_us))
