"""Types of rate limits: configured limits, buckets, admissions and the limiter's interface."""

from typing import Final, Literal, Protocol

import msgspec

from accounts.caller import Caller

Scope = Literal["organisation", "team", "key", "end_user", "model"]
Kind = Literal["requests", "tokens", "concurrency"]
PERIOD_S: Final = 60.0
"""The period that rates refer to."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one organisation, team, key, end user or model. None means no limit.

    A bucket holds its burst at most, a minute's worth where none is set, and fills up by the rate.
    """

    requests_per_minute: int | None = None
    request_burst: int | None = None
    tokens_per_minute: int | None = None
    token_burst: int | None = None
    concurrency: int | None = None


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket that a request draws from. For concurrency `rate` is 0, and `burst` is the number that may be in
    flight.
    """

    key: str
    """The bucket's unique name, such as `team/team_a//tokens`; the scope's id and the model are escaped."""
    scope: Scope
    kind: Kind
    rate: int
    """Units per minute."""
    burst: int
    whose: str = ""
    """The scope's id, of an end user's limit."""


class Remaining(msgspec.Struct, frozen=True):
    """The state of a limit for the headers `x-ratelimit-{limit,remaining,reset}-…`."""

    limit: int
    remaining: int
    reset_s: float


class Admission(Protocol):
    """The use of limits that one request was admitted with. `settle` must follow; it never blocks and only its first
    call counts.
    """

    @property
    def lines(self) -> bytes:
        """The `x-ratelimit-*` headers as lines of the reply's head: the tightest request bucket and token bucket after this
        request, where there are such.
        """
        ...

    def settle(self, used_tokens: int) -> None:
        """Correct the estimated tokens to `used_tokens`, as a refund or a debt, and end the request's concurrency."""
        ...


class Limiter(Protocol):
    """A door that admits a request by taking from all of its buckets, or refuses it and takes from none."""

    async def admit(
        self, caller: Caller, model: str, tokens: int, *, guessed: int = 0, end_user: str = ""
    ) -> Admission:
        """Take `tokens`, the estimate of prompt and answer. `model` is the name the caller sent. `guessed` of the
        tokens are for an answer of unknown length: they alone make no request too large. `end_user` is as it is booked.
        Raises RateLimited.
        """
        ...
