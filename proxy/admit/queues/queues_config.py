"""The `queues` section of the configuration: the most work of our own targets in flight, and the longest waits."""

from collections.abc import Mapping
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from providers.target import Tier
from settings.types import Finite, Section

_BACKLOG_TIMES: Final = 10

QueueName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class MaxWait(Section):
    """The longest wait by tier. A request that would wait longer is refused, or goes elsewhere, when it comes."""

    interactive: Finite = Field(
        default=10.0,
        ge=0,
        le=600,
        description="Seconds.",
    )
    batch: Finite = Field(
        default=600.0,
        ge=0,
        le=86_400,
        description="Seconds; its connection is held open.",
    )

    def of(self, tier: Tier) -> float:
        return self.batch if tier == "batch" else self.interactive


class QueueConfig(Section):
    """One queue before targets that share the same machines. A target in no queue has none."""

    targets: tuple[str, ...] = Field(
        min_length=1, max_length=100, description="The models that it stands before; each in one queue at most."
    )
    tokens_in_flight: int = Field(
        default=0,
        ge=0,
        le=1_000_000_000,
        description="Tokens (prompts and expected answers) that run at once over all processes, about what the "
        "engines' caches hold. 0 before pools: the capacity of their ready replicas.",
    )
    requests_in_flight: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Requests that run at once, as a further bound.",
    )
    max_waiting: int = Field(
        default=1_000,
        ge=0,
        le=1_000_000,
        description="Requests that one process lets wait. Beyond it the least urgent go.",
    )
    max_waiting_tokens: int | None = Field(
        default=None,
        ge=0,
        le=100_000_000_000,
        description=f"Tokens that one process lets wait; {_BACKLOG_TIMES} times `tokens_in_flight` when not set.",
    )
    max_wait_s: MaxWait = Field(default=MaxWait(), description="The longest wait by tier.")
    aging_s: Finite = Field(
        default=60.0,
        ge=0.1,
        le=86_400,
        description="A batch request that waited this long counts as interactive; within a team it outweighs "
        "one step of priority.",
    )
    light_share: Finite = Field(
        default=0.1,
        ge=0,
        le=0.9,
        description="Capacity kept for teams below their fair share. A team alone for a minute uses all of it.",
    )
    interactive_share: Finite = Field(
        default=0.1,
        ge=0,
        le=0.9,
        description="Capacity that batch work leaves free for interactive work.",
    )

    @model_validator(mode="after")
    def _something_is_left(self) -> Self:
        if self.light_share + self.interactive_share >= 1:
            raise ValueError(
                "light_share and interactive_share together leave nothing for the batch work of a heavy team"
            )
        return self

    @property
    def most_waiting_tokens(self) -> int:
        return _BACKLOG_TIMES * self.tokens_in_flight if self.max_waiting_tokens is None else self.max_waiting_tokens


def _check_distinct_targets(queues: Mapping[str, QueueConfig]) -> Mapping[str, QueueConfig]:
    """Reject a target that is in two queues, or twice in one: a request waits in one line. Raises ValueError."""
    owners: dict[str, str] = {}
    for name, queue in queues.items():
        for target in queue.targets:
            if target in owners:
                where = (
                    f"twice in the queue `{name}`" if owners[target] == name else f"in `{owners[target]}` and `{name}`"
                )
                raise ValueError(f"`{target}` is {where}; a request waits in one line")
            owners[target] = name
    return queues


QueuesSection = Annotated[dict[QueueName, QueueConfig], Field(max_length=100), AfterValidator(_check_distinct_targets)]


def queue_of_target(queues: Mapping[str, QueueConfig]) -> dict[str, str]:
    """Return queue names by target id."""
    return {target: name for name, queue in queues.items() for target in queue.targets}
