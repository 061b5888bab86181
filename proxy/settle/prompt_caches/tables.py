"""The table of what was lost of providers' prompt caches: sums by day. Nothing of a text is here."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String
from sqlmodel import Field, SQLModel

TARGET_CHARS = 128


class PromptCacheLoss(SQLModel, table=True):
    """Requests of a team to a target on one UTC day that read less from the provider's prompt cache than they could, for one cause."""

    __tablename__: ClassVar[str] = "prompt_cache_loss"
    __table_args__ = (PrimaryKeyConstraint("team_id", "day_us", "target_id", "cause", name="pk_prompt_cache_loss"),)

    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    day_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    target_id: str = Field(sa_column=Column(String(TARGET_CHARS), nullable=False))
    cause: str = Field(sa_column=Column(String(16), nullable=False))
    """A cause, or `looked` for all that were looked at and `skipped` for those that were not."""
    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    requests: int = Field(sa_column=Column(BigInteger, nullable=False))
    tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))
    unpriced: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Of the requests, those at a target without a known price, so that their money is in no sum."""
