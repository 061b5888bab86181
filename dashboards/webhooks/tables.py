"""The outbox's table."""

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
    body: str = Field(sa_column=Column(Text, nullable=False))
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    tries: int = Field(sa_column=Column(Integer, nullable=False))
    next_try_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    """Time of the next attempt; while one is in flight, the end of its lease. None when delivered or given up."""
    delivered_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    last_status: int | None = Field(sa_column=Column(Integer, nullable=True))
    """HTTP status of the last attempt; 0 for no reply, None before the first."""
