"""Table of refusals: by minute as processes told them, and by hour once they are over."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, Integer, PrimaryKeyConstraint, String
from sqlmodel import Field, SQLModel

_ID = 200


class RefusalCount(SQLModel, table=True):
    """How often something was refused within one minute, or one hour."""

    __tablename__: ClassVar[str] = "refusal_count"
    __table_args__ = (
        PrimaryKeyConstraint(
            "span",
            "start_us",
            "boot_id",
            "organisation_id",
            "team_id",
            "key_id",
            "model",
            "reason",
            "status",
            name="pk_refusal_count",
        ),
        Index("ix_refusal_count_team_id_start_us", "team_id", "start_us"),
    )

    span: str = Field(sa_column=Column(String(8), nullable=False))
    """`minute` or `hour`. What is in an hour is in no minute any more."""
    start_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    boot_id: str = Field(sa_column=Column(String(64), nullable=False))
    """The process that refused; empty for an hour, where all are together."""
    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    key_id: str = Field(sa_column=Column(String(64), nullable=False))
    model: str = Field(sa_column=Column(String(_ID), nullable=False))
    reason: str = Field(sa_column=Column(String(64), nullable=False))
    status: int = Field(sa_column=Column(Integer, nullable=False))
    refusals: int = Field(sa_column=Column(BigInteger, nullable=False))
