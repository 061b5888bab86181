"""The table of kept responses and conversations."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, String
from sqlmodel import Field, SQLModel

from accounts.tables import ID_CHARS


class StoredResponse(SQLModel, table=True):
    """A response with its whole input, or a conversation; compressed and sealed: without the pepper nobody can read it."""

    __tablename__: ClassVar[str] = "stored_response"
    __table_args__ = (
        Index("ix_stored_response_expires_us", "expires_us"),
        Index("ix_stored_response_team_created", "team_id", "created_us"),
    )

    team_id: str = Field(sa_column=Column(String(ID_CHARS), primary_key=True))
    response_id: str = Field(sa_column=Column(String(80), primary_key=True))
    pepper_id: str = Field(sa_column=Column(String(64), nullable=False))
    """The pepper that the team's key is made of."""
    sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    size: int = Field(sa_column=Column(Integer, nullable=False))
    """The bytes of `sealed`."""
    version: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    """The number of changes, so that of two that are made at once none is lost. A response has none."""
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The moment at which it was kept, or last changed."""
    expires_us: int = Field(sa_column=Column(BigInteger, nullable=False))
