"""The table of the outbox."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, Integer, String, Text
from sqlmodel import Field, SQLModel


class WebhookMessage(SQLModel, table=True):
    """A message is sent until its destination has taken it. Its id is also what makes it unique."""

    __tablename__: ClassVar[str] = "webhook_message"
    __table_args__ = (Index("ix_webhook_message_due", "next_try_us"),)

    message_id: str = Field(sa_column=Column(String(200), primary_key=True))
    destination: str = Field(sa_column=Column(String(64), nullable=False))
    type: str = Field(sa_column=Column(String(64), nullable=False))
    body: str = Field(sa_column=Column(Text, nullable=False))
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    tries: int = Field(sa_column=Column(Integer, nullable=False))
    next_try_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    """None when it was taken, or given up. While it is being sent: when another process may try."""
    delivered_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    last_status: int | None = Field(sa_column=Column(Integer, nullable=True))
    """What the last try was answered; 0 for no answer, None before the first."""
