"""Body and reply types of the admin API's limits."""

from typing import Annotated

import msgspec

from api.web.api_types import Reason, RequestBody
from cost.times import iso
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.rules import MOST, Rule

Rate = Annotated[
    int, msgspec.Meta(ge=0, le=MOST["tokens_per_minute"], description="0: no limit; null: the configuration's.")
]

Burst = Annotated[int, msgspec.Meta(ge=1, le=MOST["token_burst"], description="null: a minute's worth.")]


class PutLimit(RequestBody, frozen=True):
    """Limits per minute and at once. Omitted values fall back to the configuration's."""

    requests_per_minute: Rate | None = None
    request_burst: Burst | None = None
    tokens_per_minute: Rate | None = None
    token_burst: Burst | None = None
    concurrency: Rate | None = None
    reason: Reason = ""

    def limits(self) -> Limits:
        """Return the body as stored limits."""
        return Limits(**{name: getattr(self, name) for name in Limits.__struct_fields__})


class LimitOut(msgspec.Struct, frozen=True, kw_only=True):
    """The limits set for one place. null is the configuration's, 0 no limit."""

    scope: str
    scope_id: str
    model: str | None
    requests_per_minute: int | None
    request_burst: int | None
    tokens_per_minute: int | None
    token_burst: int | None
    concurrency: int | None
    updated_at: str
    object: str = "limit"


def limit_out(rule: Rule) -> LimitOut:
    """Return a rule as the API returns it."""
    place = rule.place
    return LimitOut(
        scope=place.scope,
        scope_id=place.model if place.scope == "model" else place.scope_id,
        model=None if place.scope == "model" else place.model or None,
        **msgspec.structs.asdict(rule.limits),
        updated_at=iso(rule.updated_us),
    )
