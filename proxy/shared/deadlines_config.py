"""The configuration file's `deadlines:` section."""

from typing import Self

from pydantic import Field, model_validator

from providers.target import Tier
from settings.types import Seconds, Section

_TO_FIRST = "To the first token: bounds the wait in our queues. null: as long as the queue allows."
_ANSWER = (
    "The caller's time where neither caller nor client says one; a later whole answer is 504, a stream owes its first "
    "token by then. null: `providers.timeouts.total_s`."
)


class TierDeadlines(Section):
    """Deadlines of the tier interactive."""

    first_token_s: Seconds | None = Field(default=1.0, description=_TO_FIRST)
    answer_s: Seconds | None = Field(default=600.0, description=_ANSWER)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first_token_s is not None and self.answer_s is not None and self.first_token_s > self.answer_s:
            raise ValueError("first_token_s is longer than answer_s, so it would mean nothing")
        return self


class BatchDeadlines(TierDeadlines):
    """Deadlines of the tier batch."""

    first_token_s: Seconds | None = Field(default=120.0, description=_TO_FIRST)


class DeadlinesSection(Section):
    """Deadlines of requests whose caller does not set one."""

    interactive: TierDeadlines = Field(default=TierDeadlines(), description="Requests that somebody waits for.")
    batch: BatchDeadlines = Field(default=BatchDeadlines(), description="Requests that can wait.")

    def of(self, tier: Tier) -> TierDeadlines:
        return self.interactive if tier == "interactive" else self.batch
