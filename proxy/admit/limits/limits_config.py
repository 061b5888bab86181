"""The `limits` section of the configuration."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

from proxy.admit.limits.limit import Limits
from proxy.admit.limits.limit_tables import MODEL_CHARS
from proxy.admit.limits.rules import MOST, Place, over
from settings.types import Finite, Section

_MAX_MODELS: Final = 1_000


def _check_bursts(limits: Limits) -> None:
    """Reject a burst without a rate, which would have no effect. Raises ValueError."""
    for burst, rate, names in (
        (limits.request_burst, limits.requests_per_minute, ("request_burst", "requests_per_minute")),
        (limits.token_burst, limits.tokens_per_minute, ("token_burst", "tokens_per_minute")),
    ):
        if burst is not None and rate is None:
            raise ValueError(f"`{names[0]}` does nothing without `{names[1]}`")


class EachLimits(Section):
    """Limits of each organisation, team, key, end user or model, unless a rule says otherwise."""

    requests_per_minute: int | None = Field(
        default=None, ge=1, le=MOST["requests_per_minute"], description="Requests a minute; no limit when not set."
    )
    request_burst: int | None = Field(
        default=None,
        ge=1,
        le=MOST["request_burst"],
        description="Requests at once after a pause; default a minute's worth.",
    )
    tokens_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=MOST["tokens_per_minute"],
        description="Tokens a minute, prompt and answer together; no limit when not set.",
    )
    token_burst: int | None = Field(
        default=None,
        ge=1,
        le=MOST["token_burst"],
        description="Tokens at once after a pause; default a minute's worth. A larger request is never admitted.",
    )
    concurrency: int | None = Field(
        default=None, ge=1, le=MOST["concurrency"], description="Requests in flight at once; no limit when not set."
    )

    @model_validator(mode="after")
    def _no_burst_alone(self) -> Self:
        _check_bursts(self.limits())
        return self

    def limits(self) -> Limits:
        """Convert the section to Limits."""
        return Limits(**dict(self))


class ModelLimits(Section):
    """Limits of one model, all callers together. A value that is not set is as for each model."""

    requests_per_minute: int | None = Field(
        default=None,
        ge=0,
        le=MOST["requests_per_minute"],
        description="Requests a minute. Default: `limits.model`; 0: none.",
    )
    request_burst: int | None = Field(
        default=None,
        ge=1,
        le=MOST["request_burst"],
        description="Requests at once after a pause. Default: `limits.model`.",
    )
    tokens_per_minute: int | None = Field(
        default=None,
        ge=0,
        le=MOST["tokens_per_minute"],
        description="Tokens a minute. Default: `limits.model`; 0: none.",
    )
    token_burst: int | None = Field(
        default=None,
        ge=1,
        le=MOST["token_burst"],
        description="Tokens at once after a pause. Default: `limits.model`.",
    )
    concurrency: int | None = Field(
        default=None,
        ge=0,
        le=MOST["concurrency"],
        description="Requests in flight. Default: `limits.model`; 0: none.",
    )

    def limits(self) -> Limits:
        """Convert the section to Limits, as a rule for this model would hold them."""
        return Limits(**dict(self))


_ModelName = Annotated[str, Field(min_length=1, max_length=MODEL_CHARS)]


class LimitsSection(Section):
    """Rate and concurrency limits. `weighbridge limits set` makes exceptions without a restart."""

    moved_keys: ClassVar[Mapping[str, str]] = {
        "requests_per_minute": "key.requests_per_minute",
        "tokens_per_minute": "key.tokens_per_minute",
    }
    """The new places of keys that an older version had."""

    organisation: EachLimits = Field(default=EachLimits(), description="For each organisation, all its teams together.")
    team: EachLimits = Field(default=EachLimits(), description="For each team, all its keys together.")
    key: EachLimits = Field(default=EachLimits(), description="For each key.")
    end_user: EachLimits = Field(
        default=EachLimits(), description="For each end user of each team, as its requests name them."
    )
    model: EachLimits = Field(
        default=EachLimits(), description="For each name that callers may send as `model`, all callers together."
    )
    models: dict[_ModelName, ModelLimits] = Field(
        default_factory=dict, max_length=_MAX_MODELS, description="For these models, all callers together."
    )
    poll_s: Finite = Field(
        default=2.0,
        ge=0.1,
        le=60.0,
        description="How often a process reads limits set by `weighbridge limits`.",
    )

    @model_validator(mode="after")
    def _no_model_with_a_burst_alone(self) -> Self:
        for name in self.models:
            try:
                _check_bursts(self.of_model(name))
            except ValueError as error:
                raise ValueError(f"of the model `{name}`: {error}") from None
        return self

    def default_of(self, place: Place) -> Limits:
        """Return the configured limits of a place, before any rule."""
        if place.scope == "model":
            return self.of_model(place.model)
        if place.model:
            # There is nothing here about one team on one model.
            return Limits()
        each = {"organisation": self.organisation, "team": self.team, "key": self.key, "end_user": self.end_user}
        return each[place.scope].limits()

    def of_model(self, name: str) -> Limits:
        """Return the configured limits of one model."""
        own = self.models.get(name)
        return self.model.limits() if own is None else over(own.limits(), self.model.limits())
