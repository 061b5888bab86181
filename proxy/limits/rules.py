"""An exception that people made from the configured limits."""

from typing import Final, get_args

import msgspec

from accounts.tables import ID_CHARS
from proxy.limits.limit import Limits, Scope
from proxy.limits.limit_tables import MODEL_CHARS

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
ANY_ID: Final = "*"
"""Stands where a model's rule has nobody's id."""
LEAST: Final = {
    "requests_per_minute": 0,
    "request_burst": 1,
    "tokens_per_minute": 0,
    "token_burst": 1,
    "concurrency": 0,
}
"""A rate and a concurrency of 0 lift that limit; a burst of 0 would let nothing through."""
MOST: Final = {
    "requests_per_minute": 100_000_000,
    "request_burst": 100_000_000,
    "tokens_per_minute": 100_000_000_000,
    "token_burst": 100_000_000_000,
    "concurrency": 1_000_000,
}
"""Far below where a double stops to count one by one."""


class LimitError(Exception):
    """Something about a limit that its reader can mend. The message says what."""


class BadLimit(LimitError):
    """It cannot be kept like this."""


class UnknownLimit(LimitError):
    """There is no such rule."""


class Place(msgspec.Struct, frozen=True):
    """Whom a rule is for. `model` is empty for all models together."""

    scope: Scope
    scope_id: str
    model: str = ""

    def __str__(self) -> str:
        if self.scope == "model":
            return f"model {self.model}"
        return f"{self.scope} {self.scope_id}" + (f" on model {self.model}" if self.model else "")


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one place. None takes the configuration's value, 0 lifts that limit."""

    place: Place
    limits: Limits
    updated_us: int = 0


def check_place(place: Place) -> None:
    """Raises BadLimit for what no request could ever be counted under."""
    if place.scope not in SCOPES:
        raise BadLimit(f"a limit is for one of {', '.join(SCOPES)}, not {str(place.scope)[:80]!r}")
    if not 0 < len(place.scope_id) <= ID_CHARS or not place.scope_id.isprintable():
        raise BadLimit(f"the id of a limit's {place.scope} has 1 to {ID_CHARS} printable characters")
    if (place.scope == "model") != (place.scope_id == ANY_ID):
        raise BadLimit(f"only a model's limit is for everybody together, under the id {ANY_ID!r}")
    if place.scope == "model" and not place.model:
        raise BadLimit("a model's limit names the model")
    if len(place.model) > MODEL_CHARS or (place.model and not place.model.isprintable()):
        raise BadLimit(f"a model's name has 1 to {MODEL_CHARS} printable characters")


def check_limits(place: Place, limits: Limits) -> None:
    """Raises BadLimit."""
    for name, value in msgspec.structs.asdict(limits).items():
        if value is not None and not LEAST[name] <= value <= MOST[name]:
            raise BadLimit(f"{name} is a whole number from {LEAST[name]} to {MOST[name]}, not {str(value)[:40]}")
    if place.scope != "model" and place.model:
        # The configuration has no rate for one of these on one model.
        for burst, rate, kind in (
            (limits.request_burst, limits.requests_per_minute, "request"),
            (limits.token_burst, limits.tokens_per_minute, "token"),
        ):
            if burst is not None and rate is None:
                raise BadLimit(f"{kind}_burst does nothing for {place} without {kind}s_per_minute")


def says_nothing(limits: Limits) -> bool:
    """Whether every value is the configuration's."""
    return limits == Limits()


def over(own: Limits, default: Limits) -> Limits:
    """One's own values, and the default's where there is none. A value of 0 is one's own."""
    return Limits(
        requests_per_minute=default.requests_per_minute if own.requests_per_minute is None else own.requests_per_minute,
        request_burst=default.request_burst if own.request_burst is None else own.request_burst,
        tokens_per_minute=default.tokens_per_minute if own.tokens_per_minute is None else own.tokens_per_minute,
        token_burst=default.token_burst if own.token_burst is None else own.token_burst,
        concurrency=default.concurrency if own.concurrency is None else own.concurrency,
    )
