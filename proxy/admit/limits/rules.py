"""Limit rules: exceptions from the configured limits, and their validation."""

from typing import Final, get_args

import msgspec

from accounts.tables import ID_CHARS
from proxy.admit.limits.limit import Limits, Scope
from proxy.admit.limits.limit_tables import MODEL_CHARS
from settings.key_ids import first_id

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
ANY_ID: Final = "*"
"""The scope id of a rule for a model."""
LEAST: Final = {
    "requests_per_minute": 0,
    "request_burst": 1,
    "tokens_per_minute": 0,
    "token_burst": 1,
    "concurrency": 0,
}
"""The lowest values. A rate or concurrency of 0 lifts the limit; a burst of 0 would let nothing through."""
MOST: Final = {
    "requests_per_minute": 100_000_000,
    "request_burst": 100_000_000,
    "tokens_per_minute": 100_000_000_000,
    "token_burst": 100_000_000_000,
    "concurrency": 1_000_000,
}
"""The highest values, far below 2**53, where a double stops counting one by one."""


class LimitError(Exception):
    """An error about a limit that the user can correct. The message says how."""


class BadLimit(LimitError):
    """The rule is invalid."""


class UnknownLimit(LimitError):
    """No such rule."""


class Place(msgspec.Struct, frozen=True):
    """The subject of a rule. `model` is empty for all models together."""

    scope: Scope
    scope_id: str
    model: str = ""

    def __post_init__(self) -> None:
        if self.scope == "key":
            # A rotated key goes on with the limits of the first, and with what it used of them.
            msgspec.structs.force_setattr(self, "scope_id", first_id(self.scope_id))

    def __str__(self) -> str:
        if self.scope == "model":
            return f"model {self.model}"
        return f"{self.scope} {self.scope_id}" + (f" on model {self.model}" if self.model else "")


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one place. None takes the configuration's value, 0 lifts the limit."""

    place: Place
    limits: Limits
    updated_us: int = 0


def check_place(place: Place) -> None:
    """Check a place. Raises BadLimit."""
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
    """Check the values of limits. Raises BadLimit."""
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
    """Return True when no value is set."""
    return limits == Limits()


def over(own: Limits, default: Limits) -> Limits:
    """Merge limits: own values, and the default's where own is None. An own 0 is kept."""
    return Limits(
        requests_per_minute=default.requests_per_minute if own.requests_per_minute is None else own.requests_per_minute,
        request_burst=default.request_burst if own.request_burst is None else own.request_burst,
        tokens_per_minute=default.tokens_per_minute if own.tokens_per_minute is None else own.tokens_per_minute,
        token_burst=default.token_burst if own.token_burst is None else own.token_burst,
        concurrency=default.concurrency if own.concurrency is None else own.concurrency,
    )
