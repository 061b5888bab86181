"""The tables of learning: classified requests, verdicts on their answers, and tunings."""

from typing import ClassVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Text,
    text,
)
from sqlmodel import Field, SQLModel

ID_CHARS = 200
NAME_CHARS = 64


class WeighingRow(SQLModel, table=True):
    """One answered `auto` request of a team that allows learning. It is deleted after `classifier.learning.keep_days`."""

    __tablename__: ClassVar[str] = "weighing"
    __table_args__ = (
        # The team comes first: no row is ever looked for without its team.
        PrimaryKeyConstraint("team_id", "request_id", name="pk_weighing"),
        Index("ix_weighing_at_us", "at_us"),
        # A team's newest requests are what its own curves are made of.
        Index("ix_weighing_team_id_at_us", "team_id", "at_us"),
        # Texts that may not stay are found without reading what has none.
        Index(
            "ix_weighing_texts",
            "team_id",
            sqlite_where=text("prompt IS NOT NULL"),
            postgresql_where=text("prompt IS NOT NULL"),
        ),
    )

    team_id: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    request_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    at_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    organisation_id: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    target_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    artifact: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    vector: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    complexity: float = Field(sa_column=Column(Float(53), nullable=False))
    group_id: str | None = Field(sa_column=Column(String(ID_CHARS), nullable=True))
    input_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    output_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cost_nanousd: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    conversation: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    """Digest of the caller's conversation id, which may itself be confidential."""
    request_digest: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    prompt: str | None = Field(sa_column=Column(Text, nullable=True))
    """JSON of a `Prompt` cut to a limit; null unless the team's learning is `prompts`."""
    usual_tokens: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default="0"))
    """Median length of gpt-4o's answer to such a prompt, as it was told; 0 of rows that are older than this column."""


class VerdictRow(SQLModel, table=True):
    """One source's verdict on one target's answer; a new one of the same source and signal replaces it."""

    __tablename__: ClassVar[str] = "verdict"
    __table_args__ = (
        PrimaryKeyConstraint("team_id", "request_id", "target_id", "source", "signal", name="pk_verdict"),
        Index("ix_verdict_at_us", "at_us"),
    )

    team_id: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    request_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    target_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    source: str = Field(sa_column=Column(String(16), nullable=False))
    signal: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    at_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    organisation_id: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    adequate: float = Field(sa_column=Column(Float(53), nullable=False))
    weight: float = Field(sa_column=Column(Float(53), nullable=False))
    better_target: str | None = Field(sa_column=Column(String(ID_CHARS), nullable=True))


class TuningRow(SQLModel, table=True):
    """One version of a tuning. None is ever changed or deleted; at most one is active."""

    __tablename__: ClassVar[str] = "tuning"

    version: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    at_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    artifact: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    body: str = Field(sa_column=Column(Text, nullable=False))
    """JSON of a `Tuning`."""
    metrics: str = Field(sa_column=Column(Text, nullable=False))
    """JSON of its effect on the held-out part."""
    note: str = Field(sa_column=Column(Text, nullable=False))
    active: bool = Field(sa_column=Column(Boolean, nullable=False))
