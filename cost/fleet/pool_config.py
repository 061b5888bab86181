"""The `cost.pools` section of the configuration: our own GPUs, what an hour of them costs, and how work is weighed."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from cost.fleet.fleet_errors import UnknownPool
from cost.prices import nanousd
from settings.types import Section

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_MOST_USD: Final = Decimal(10_000)
_MOST_SECONDS: Final = Decimal(1_000_000)
MOST_REPLICAS: Final = 10_000


def _as_written(value: Any) -> Any:
    """Convert a YAML number to the decimal that was written: 2.95, not the nearest binary fraction."""
    return Decimal(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _whole_nanousd(value: Decimal) -> Decimal:
    nanousd(value)
    return value


UsdPerHour = Annotated[
    Decimal,
    BeforeValidator(_as_written),
    Field(ge=0, le=_MOST_USD, allow_inf_nan=False),
    AfterValidator(_whole_nanousd),
]
_Seconds = Annotated[
    Decimal,
    BeforeValidator(_as_written),
    Field(
        ge=0, le=_MOST_SECONDS, decimal_places=6, allow_inf_nan=False, json_schema_extra={"unit": "seconds, 6 decimals"}
    ),
]
_Overhead = Annotated[
    Decimal,
    BeforeValidator(_as_written),
    Field(ge=1, le=100, decimal_places=6, allow_inf_nan=False, json_schema_extra={"unit": "number"}),
]


def _known_price(value: Any) -> Any:
    if value not in ("margin", "average"):
        raise ValueError(
            "must be `margin` (what one more request costs, by the pool's room) or `average` (the price under `prices`); "
            "what tokens cost is set with the model, under `prices`"
        )
    return value


PoolPrice = Annotated[Literal["margin", "average"], BeforeValidator(_known_price)]


class SecondsPerMillion(Section):
    """Measured seconds that one fully busy replica takes for a million tokens of each kind."""

    input: _Seconds = Field(description="Of the prompt, not cached.")
    cached_input: _Seconds = Field(default=Decimal(0), description="Of the prompt, found in the replica's cache.")
    output: _Seconds = Field(description="Generated.")


class PoolSection(Section):
    """The replicas that serve one or more targets, and what their GPUs cost while they are up."""

    name: str = Field(min_length=1, max_length=64, pattern=_NAME, description="Its name in the books.")
    targets: tuple[str, ...] = Field(min_length=1, max_length=100, description="The models that it serves.")
    replicas: int = Field(
        default=1,
        ge=0,
        le=MOST_REPLICAS,
        description="Replicas up in hours with no record or entry.",
    )
    gpus_per_replica: int = Field(default=1, ge=1, le=1_024, description="GPUs that one replica keeps busy.")
    usd_per_gpu_hour: UsdPerHour = Field(description="One GPU for an hour up, idle or not.")
    overhead: _Overhead = Field(
        default=Decimal(1), description="Factor for storage, network and staff: 1.3 is 30 % more."
    )
    organisation: str = Field(
        default="default", min_length=1, max_length=64, description="Who pays for the hours that nobody used."
    )
    up_since: date | None = Field(
        default=None,
        description="First UTC day that `replicas` counts for; default the first booked or recorded use.",
    )
    seconds_per_million: SecondsPerMillion = Field(description="The measured weights that the hours are shared by.")
    price: PoolPrice = Field(
        default="margin",
        description="What `auto` compares its targets by: `margin` (nearly nothing while the pool has room, "
        "rising with the wait) or `average` (the price under `prices`). Books have the average "
        "either way.",
    )


def _refuse_duplicates(pools: Sequence[PoolSection]) -> Sequence[PoolSection]:
    """Refuse two pools of one name and a target in two pools: a token is paid for once. Raises ValueError."""
    names: set[str] = set()
    owners: dict[str, str] = {}
    for pool in pools:
        if pool.name in names:
            raise ValueError(f"two pools are called `{pool.name}`")
        names.add(pool.name)
        for target in pool.targets:
            if target in owners:
                raise ValueError(f"`{target}` is in the pools `{owners[target]}` and `{pool.name}`; one pays for it")
            owners[target] = pool.name
    return pools


Pools = Annotated[tuple[PoolSection, ...], Field(max_length=100), AfterValidator(_refuse_duplicates)]


def pool_named(pools: Sequence[PoolSection], name: str) -> PoolSection:
    """Return the pool of this name. Raises UnknownPool, which names those that there are."""
    for pool in pools:
        if pool.name == name:
            return pool
    known = ", ".join(pool.name for pool in pools) or "none"
    raise UnknownPool(f"there is no pool `{name[:80]}`; the configuration has under `cost.pools`: {known}")


def pool_of_target(pools: Sequence[PoolSection]) -> dict[str, str]:
    """Return the pool name of each target."""
    return {target: pool.name for pool in pools for target in pool.targets}
