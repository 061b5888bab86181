"""What is limited, and what a caller is told of it."""

from typing import Final, Literal, Protocol

import msgspec

from accounts.caller import Caller

Scope = Literal["organisation", "team", "key", "model"]
Kind = Literal["requests", "tokens", "concurrency"]
PERIOD_S: Final = 60.0
"""Rates are a minute's."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one organisation, team, key or model may use. None means no limit.

    A bucket holds its burst at most, a minute's worth where none is set, and fills up by the rate.
    """

    requests_per_minute: int | None = None
    request_burst: int | None = None
    tokens_per_minute: int | None = None
    token_burst: int | None = None
    concurrency: int | None = None


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket that a request draws from. For concurrency `rate` is 0, and `burst` is how many may be in flight."""

    key: str
    """Unique among all buckets, such as `team/team_a//tokens`; the scope's id and the model are escaped."""
    scope: Scope
    kind: Kind
    rate: int
    """A minute."""
    burst: int


class Remaining(msgspec.Struct, frozen=True):
    """One limit as the caller's headers tell it: `x-ratelimit-{limit,remaining,reset}-…`."""

    limit: int
    remaining: int
    reset_s: float


class Admission(Protocol):
    """What was taken. Held until `settle`, which never waits and does something only the first time."""

    @property
    def requests(self) -> Remaining | None:
        """The tightest of the request buckets, after this request; None without such a limit."""
        ...

    @property
    def tokens(self) -> Remaining | None: ...

    def settle(self, used_tokens: int) -> None:
        """Corrects the estimate to the truth, as a refund or a debt, and ends the request's concurrency."""
        ...


class Limiter(Protocol):
    """Takes from every bucket that a request falls under, or from none."""

    async def admit(self, caller: Caller, model: str, tokens: int, *, guessed: int = 0) -> Admission:
        """`model` is what the caller named, `tokens` the estimate of prompt and answer. Raises RateLimited.

        `guessed` of the tokens are for an answer whose length nobody said: they alone make no request too large.
        """
        ...
