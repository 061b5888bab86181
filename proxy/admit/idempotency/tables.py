"""The table of idempotent requests."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, String, Text
from sqlmodel import Field, SQLModel

from accounts.tables import ID_CHARS


class IdempotentRequest(SQLModel, table=True):
    """A request that was sent with an Idempotency-Key: in flight, or answered.

    The key and the body are digests; the answer is kept as it was sent, because its caller asked for that.
    """

    __tablename__: ClassVar[str] = "idempotent_request"
    __table_args__ = (
        Index("ix_idempotent_request_expires_us", "expires_us"),
        Index("ix_idempotent_request_boot_id", "boot_id"),
    )

    team_id: str = Field(sa_column=Column(String(ID_CHARS), primary_key=True))
    key_digest: str = Field(sa_column=Column(String(64), primary_key=True))
    body_digest: str = Field(sa_column=Column(String(64), nullable=False))
    request_id: str = Field(sa_column=Column(String(64), nullable=False))
    """The id of the request that is served for all senders of this key."""
    boot_id: str = Field(sa_column=Column(String(64), nullable=False))
    """The process that serves the request."""
    status: int = Field(sa_column=Column(Integer, nullable=False))
    """The HTTP status of the answer; 0 (IN_FLIGHT) while the request is served."""
    headers: str = Field(sa_column=Column(Text, nullable=False))
    """The answer's headers as a JSON array of [name, value] pairs; `null` when it was too large to keep."""
    body: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    claimed_until_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The time, in microseconds, until which the serving process holds the key; extended while it serves, 0 once
    answered.
    """
    expires_us: int = Field(sa_column=Column(BigInteger, nullable=False))
