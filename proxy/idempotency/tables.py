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
    """Of the request that is served for all who send this key."""
    boot_id: str = Field(sa_column=Column(String(64), nullable=False))
    """The process that serves it."""
    status: int = Field(sa_column=Column(Integer, nullable=False))
    """0 while it is in flight."""
    headers: str = Field(sa_column=Column(Text, nullable=False))
    """A JSON array of pairs."""
    body: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    claimed_until_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """While it is in flight, its process lifts this again and again; later, nobody serves it any more."""
    expires_us: int = Field(sa_column=Column(BigInteger, nullable=False))
