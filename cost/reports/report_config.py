"""The `cost.report` section of the configuration."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from settings.types import Kept, Section


class ReportSection(Section):
    """Daily report for every team and for the organisation."""

    at: str = Field(
        default="06:00",
        pattern=r"^([01]\d|2[0-3]):[0-5]\d$",
        description="When the day before is reported, UTC; quote it.",
    )
    folder: Kept[Path | None] = Field(
        default=None,
        description="Where reports are written, as `<day>/<team>.html` and `.csv`.",
    )
    webhook: str | None = Field(
        default=None, min_length=1, max_length=64, description="The destination of `webhooks` that gets the figures."
    )

    @model_validator(mode="after")
    def _require_destination(self) -> Self:
        if self.folder is None and self.webhook is None:
            raise ValueError("name a `folder`, a `webhook`, or both")
        return self

    @property
    def at_minute(self) -> int:
        """Minute of the UTC day at which reports are made."""
        hours, minutes = self.at.split(":")
        return int(hours) * 60 + int(minutes)
