"""The tables of the outbox and of teams' signing secrets."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, Integer, String, Text
from sqlmodel import Field, SQLModel


class WebhookMessage(SQLModel, table=True):
    """A message, sent until its destination accepts it. Its id is its idempotency key."""

    __tablename__: ClassVar[str] = "webhook_message"
    __table_args__ = (Index("ix_webhook_message_due", "next_try_us"),)

    message_id: str = Field(sa_column=Column(String(200), primary_key=True))
    destination: str = Field(sa_column=Column(String(64), nullable=False))
    type: str = Field(sa_column=Column(String(64), nullable=False))
    url: str | None = Field(default=None, sa_column=Column(String(2_000), nullable=True))
    """The address of a callback; None for a configured destination."""
    team_id: str | None = Field(default=None, sa_column=Column(String(64), nullable=True))
    """The team whose secret signs a callback."""
    body: str = Field(sa_column=Column(Text, nullable=False))
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    tries: int = Field(sa_column=Column(Integer, nullable=False))
    next_try_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    """Time of the next attempt; while one is in flight, the end of its lease. None when delivered or given up."""
    delivered_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    last_status: int | None = Field(sa_column=Column(Integer, nullable=True))
    """HTTP status of the last attempt; 0 for no reply, None before the first."""


class CallbackSecret(SQLModel, table=True):
    """The version of a team's signing secret, once it was rotated."""

    __tablename__: ClassVar[str] = "callback_secret"

    team_id: str = Field(sa_column=Column(String(64), primary_key=True))
    version: int = Field(sa_column=Column(Integer, nullable=False))
    rotated_us: int = Field(sa_column=Column(BigInteger, nullable=False))
