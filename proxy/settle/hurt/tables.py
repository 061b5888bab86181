"""The table of requests that ill targets hurt: counts by minute and by hour."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, PrimaryKeyConstraint, String
from sqlmodel import Field, SQLModel

MODEL_CHARS = 200
TARGETS_CHARS = 500


class HurtRow(SQLModel, table=True):
    """The number of requests of a caller that the same targets hurt in the same way within one minute, or one hour."""

    __tablename__: ClassVar[str] = "hurt_count"
    __table_args__ = (
        PrimaryKeyConstraint(
            "span",
            "start_us",
            "boot_id",
            "organisation_id",
            "team_id",
            "key_id",
            "model",
            "targets",
            "fate",
            name="pk_hurt_count",
        ),
        Index("ix_hurt_count_start_us", "start_us"),
    )

    span: str = Field(sa_column=Column(String(8), nullable=False))
    """`minute` or `hour`. What is in an hour is in no minute any more."""
    start_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    boot_id: str = Field(sa_column=Column(String(64), nullable=False))
    """The process that counted; empty for an hour, where all are together."""
    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    key_id: str = Field(sa_column=Column(String(64), nullable=False))
    model: str = Field(sa_column=Column(String(MODEL_CHARS), nullable=False))
    targets: str = Field(sa_column=Column(String(TARGETS_CHARS), nullable=False))
    """The targets at fault, sorted, a line each."""
    fate: str = Field(sa_column=Column(String(16), nullable=False))
    requests: int = Field(sa_column=Column(BigInteger, nullable=False))
