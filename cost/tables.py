"""The ledger's table: a column for each field of an Entry."""

from typing import ClassVar

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, PrimaryKeyConstraint, String, Text, text
from sqlmodel import Field, SQLModel

_ID = 200
"""Wider than any id that the gateway makes itself; some come from callers and configurations."""


class LedgerEntry(SQLModel, table=True):
    """One entry. Nothing is ever updated or deleted; its key makes writing it twice harmless."""

    __tablename__: ClassVar[str] = "ledger_entry"
    __table_args__ = (
        PrimaryKeyConstraint("request_id", "attempt", "entry", name="pk_ledger_entry"),
        Index("ix_ledger_entry_team_id_at_us", "team_id", "at_us"),
        # Recovery asks for the reserves of one dead process, and for nothing else of it.
        Index(
            "ix_ledger_entry_reserves",
            "boot_id",
            sqlite_where=text("entry = 'reserve'"),
            postgresql_where=text("entry = 'reserve'"),
        ),
    )

    request_id: str = Field(sa_column=Column(String(_ID), nullable=False))
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    entry: str = Field(sa_column=Column(String(16), nullable=False))
    at_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    boot_id: str = Field(sa_column=Column(String(64), nullable=False))
    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    key_id: str = Field(sa_column=Column(String(64), nullable=False))
    tier: str = Field(sa_column=Column(String(32), nullable=False))
    alias: str = Field(sa_column=Column(String(_ID), nullable=False))
    target_id: str = Field(sa_column=Column(String(_ID), nullable=False))
    deployment_id: str = Field(sa_column=Column(String(_ID), nullable=False))
    provider: str = Field(sa_column=Column(String(_ID), nullable=False))
    price_version: str = Field(sa_column=Column(String(_ID), nullable=False))
    input_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cached_input_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cache_write_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    output_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    reasoning_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cost_nanousd: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    baseline_nanousd: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    usage_source: str = Field(sa_column=Column(String(16), nullable=False))
    flags: str = Field(sa_column=Column(Text, nullable=False))
    """A JSON array of names, as text: read by people and by `Entry`, never searched."""
    status: int = Field(sa_column=Column(Integer, nullable=False))
    stream: bool = Field(sa_column=Column(Boolean, nullable=False))
    complexity: float | None = Field(sa_column=Column(Float(53), nullable=True))
    reason: str = Field(sa_column=Column(Text, nullable=False))
    ttft_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    duration_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))
