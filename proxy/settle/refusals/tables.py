"""Tables of refusals: counts by minute and by hour, and the latest refused requests of each team."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, Integer, PrimaryKeyConstraint, String, text
from sqlmodel import Field, SQLModel

_ID = 200


class RefusalCount(SQLModel, table=True):
    """The number of refusals of a kind within one minute, or one hour."""

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
    """`minute` or `hour`. A refusal in an hour is in no minute any more."""
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


class RefusedRequestRow(SQLModel, table=True):
    """A request that was refused before a model was asked. Nothing of its prompt is here."""

    __tablename__: ClassVar[str] = "refused_request"
    __table_args__ = (
        PrimaryKeyConstraint("team_id", "request_id", name="pk_refused_request"),
        Index("ix_refused_request_team_id_at_us", "team_id", "at_us"),
    )

    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    request_id: str = Field(sa_column=Column(String(_ID), nullable=False))
    at_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    key_id: str = Field(sa_column=Column(String(64), nullable=False))
    model: str = Field(sa_column=Column(String(_ID), nullable=False))
    reason: str = Field(sa_column=Column(String(64), nullable=False))
    status: int = Field(sa_column=Column(Integer, nullable=False))
    message: str = Field(sa_column=Column(String(500), nullable=False))
    """The message that the caller was sent, without text that it may have typed itself."""
    end_user: str = Field(sa_column=Column(String(64), nullable=False, server_default=text("''")))
