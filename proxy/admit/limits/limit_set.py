"""Limit sets: the buckets of a request with their script keys and arguments, prepared once per combination of limits."""

from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.admit.limits.limit import Kind, Limit

_MOST_DRAWS: Final = 10_000


class Outcome(msgspec.Struct, frozen=True):
    """The buckets' answer to one request. `figures` follow `LimitSet.limits`: bucket levels, then totals in flight.

    They are those after the request where it was admitted, and untouched ones where it was not.
    """

    admitted: bool
    now_us: float
    figures: Sequence[float]


class LimitSet:
    """The limits of a request in the order that the scripts take: requests, tokens, concurrency."""

    __slots__ = (
        "admit_args",
        "admit_keys",
        "counted",
        "counted_keys",
        "given",
        "kinds",
        "largest",
        "limits",
        "rated",
        "release_args",
        "release_keys",
        "requests",
        "settle_args",
        "settle_keys",
        "tokens",
    )

    def __init__(self, given: tuple[Limit, ...], prefix: str) -> None:
        requests = tuple(limit for limit in given if limit.kind == "requests")
        tokens = tuple(limit for limit in given if limit.kind == "tokens")
        counted = tuple(limit for limit in given if limit.kind == "concurrency")
        self.given = given
        self.requests = len(requests)
        self.tokens = tokens
        self.rated = requests + tokens
        self.counted = counted
        self.limits = self.rated + counted
        self.kinds: tuple[tuple[Kind, tuple[int, ...]], ...] = tuple(
            (kind, tuple(index for index, limit in enumerate(self.rated) if limit.kind == kind))
            for kind in dict.fromkeys(limit.kind for limit in self.rated)
        )
        """The positions of the request limits and the token limits among `rated`; only kinds that have any."""
        self.largest: Limit | None = min(tokens, key=lambda limit: limit.burst, default=None)
        """The token limit with the smallest burst; a request above it can never be admitted."""
        token_keys = tuple(bucket_key(prefix, limit.key) for limit in tokens)
        totals = tuple(f"{prefix}total:{limit.key}".encode() for limit in counted)
        fields = tuple(limit.key.encode() for limit in counted)
        holders = (f"{prefix}holders".encode(),) if counted else ()
        self.counted_keys = fields
        self.admit_keys = (*(bucket_key(prefix, limit.key) for limit in self.rated), *totals, *holders)
        self.admit_args = (
            *_numbers(len(requests), len(self.rated), len(counted)),
            *_rates(self.rated),
            *(text for limit, field in zip(counted, fields, strict=True) for text in (b"%d" % limit.burst, field)),
        )
        self.settle_keys = token_keys + totals
        self.settle_args = (*_numbers(len(tokens), len(counted)), *_rates(tokens), *fields)
        self.release_keys = totals
        self.release_args = (*_numbers(0, len(counted)), *fields)

    @property
    def has_tokens(self) -> bool:
        return self.largest is not None


class LimitSetCache:
    """A cache of limit sets by the identity of the limits' tuple, which the limit book keeps as long as nothing
    changes.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: dict[int, LimitSet] = {}

    def of(self, limits: tuple[Limit, ...]) -> LimitSet:
        # A draw holds its tuple, so that no other tuple can have that id while the draw is remembered.
        draw = self._known.get(id(limits))
        if draw is None:
            if len(self._known) >= _MOST_DRAWS:
                del self._known[next(iter(self._known))]
            draw = self._known[id(limits)] = LimitSet(limits, self._prefix)
        return draw


def bucket_key(prefix: str, key: str) -> bytes:
    return f"{prefix}bucket:{key}".encode()


def _numbers(*numbers: int) -> tuple[bytes, ...]:
    return tuple(b"%d" % number for number in numbers)


def _rates(limits: Sequence[Limit]) -> tuple[bytes, ...]:
    return tuple(text for limit in limits for text in _numbers(limit.rate, limit.burst))
