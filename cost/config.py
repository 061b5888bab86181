"""The `cost` section of the configuration."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class CostSection(BaseModel):
    """The books: where they are written, how safely, and what savings are measured against."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reference_target: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="The model whose price makes the baseline; without one no savings are claimed.",
    )
    journal_dir: Path = Field(
        default=Path("var/journal"), description="Where entries are kept until the database has them. One a machine."
    )
    journal_sync: Literal["process", "power"] = Field(
        default="process",
        description="What an entry survives: `process` a kill -9 of the gateway, `power` also a loss of power (slower).",
    )
    max_journal_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=64 * 1024,
        le=16 * 1024**3,
        description="A journal that the database lags behind this much refuses new requests; running ones are still booked.",
    )
    drain_batch: int = Field(default=500, ge=1, le=10_000, description="Entries written to the database at once.")
    drain_interval_s: float = Field(
        default=0.15, gt=0, le=60.0, description="How long entries may wait for a fuller batch."
    )
