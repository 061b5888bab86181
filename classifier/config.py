"""The `classifier` section of the configuration."""

from decimal import Decimal
from pathlib import Path

from pydantic import Field

from settings.types import Given, Reloadable, Section


class LearningSection(Section):
    """Learning from the teams' own traffic, as far as each team allows it."""

    keep_days: Reloadable[int] = Field(
        default=30, ge=1, le=3_650, description="What was kept of a request to learn from is deleted after this."
    )
    poll_s: float = Field(
        default=15.0, ge=1, le=3_600, description="How often a server looks whether another tuning was accepted."
    )


class ShadowSection(Section):
    """Shadow evaluation, for teams that chose a share of their requests for it."""

    judge_target: str | None = Field(
        default=None,
        min_length=1,
        description="The model that compares two answers, best a third one. Without it nothing is sent.",
    )
    max_concurrent: int = Field(default=2, ge=1, le=64, description="Comparisons that run at once, a process.")
    max_per_minute: int = Field(default=30, ge=1, le=10_000, description="Comparisons that begin a minute, a process.")
    daily_limit_usd: Decimal = Field(
        default=Decimal(5),
        ge=0,
        le=1_000_000,
        decimal_places=9,
        description="Most that comparisons may cost a day (UTC) and process.",
    )


class ClassifierSection(Section):
    """Classification of prompts, learning from traffic and shadow evaluation."""

    enabled: bool = Field(default=True, description="When false, the structural heuristic scores every prompt.")
    artifact_dir: Given[Path | None] = Field(
        default=None, description="Folder that `classifier train` wrote; the packaged model when left out."
    )
    learning: LearningSection = Field(
        default=LearningSection(), description="Learning from the teams' own traffic, as far as each team allows it."
    )
    shadow: ShadowSection = Field(
        default=ShadowSection(), description="Compares answers with the baseline model's, for teams that want it."
    )
