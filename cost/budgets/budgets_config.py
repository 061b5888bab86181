"""The `cost.budgets` section of the configuration."""

from pydantic import Field

from settings.types import Section


class BudgetsConfig(Section):
    """Settings of budgets."""

    patience_s: float = Field(
        default=2.0,
        gt=0,
        le=30.0,
        description="How long a request under a hard budget waits for the database.",
    )
    poll_s: float = Field(
        default=2.0,
        ge=0.1,
        le=60.0,
        description="How often a process reads budgets and what was spent; a new limit holds everywhere after "
        "this time.",
    )
