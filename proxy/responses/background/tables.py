"""The tables of responses that are made in the background, and of the events that were written of them."""

from typing import ClassVar

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, String
from sqlmodel import Field, SQLModel

from accounts.tables import ID_CHARS


class BackgroundResponse(SQLModel, table=True):
    """A request and its progress. Times are microseconds since 1970."""

    __tablename__: ClassVar[str] = "background_response"
    __table_args__ = (
        Index("ix_background_response_state", "state", "held_until_us"),
        Index("ix_background_response_team", "team_id", "state"),
    )

    response_id: str = Field(sa_column=Column(String(80), primary_key=True))
    team_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    key_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    state: str = Field(sa_column=Column(String(16), nullable=False))
    """`queued`, `in_progress`, or the ending: `completed`, `incomplete`, `failed`, `cancelled`."""
    streams: bool = Field(sa_column=Column(Boolean, nullable=False))
    """True for a response whose events are kept."""
    generation: int = Field(sa_column=Column(Integer, nullable=False))
    """The number of its beginnings."""
    failures: int = Field(sa_column=Column(Integer, nullable=False))
    events: int = Field(sa_column=Column(Integer, nullable=False))
    """The number of events that were written, which is the next one's sequence number."""
    held_until_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """The moment at which it may be begun: the end of a wait, or of the lease of its process."""
    pepper_id: str = Field(sa_column=Column(String(64), nullable=False))
    sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """The request, sealed; empty once it ended."""
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    ended_us: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))


class BackgroundEvents(SQLModel, table=True):
    """Events that follow each other, sealed together."""

    __tablename__: ClassVar[str] = "background_events"

    response_id: str = Field(sa_column=Column(String(80), primary_key=True))
    first: int = Field(sa_column=Column(Integer, primary_key=True))
    """The sequence number of the first of them."""
    count: int = Field(sa_column=Column(Integer, nullable=False))
    pepper_id: str = Field(sa_column=Column(String(64), nullable=False))
    sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
