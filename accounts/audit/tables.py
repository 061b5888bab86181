"""The tables of the audit log: its entries, and the head of their chain."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, Integer, String, Text, text
from sqlmodel import Field, SQLModel

from accounts.tables import ID_CHARS, NAME_CHARS


class AuditEntryRow(SQLModel, table=True):
    """One entry: actor, action, object, and the object's state before and after. Rows are never deleted, and only changed where a person
    is erased.
    """

    __tablename__: ClassVar[str] = "audit_entry"
    __table_args__ = (
        Index("ix_audit_entry_organisation_id_number", "organisation_id", "number"),
        Index("ix_audit_entry_team_id_number", "team_id", "number"),
        # Days are turned into numbers first, by this alone.
        Index("ix_audit_entry_organisation_id_at_us", "organisation_id", "at_us", "number"),
    )

    number: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    """1, 2, 3, … without a gap, over all organisations."""
    at_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    organisation_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    """The organisation whose log the entry is in."""
    team_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    actor_kind: str = Field(sa_column=Column(String(16), nullable=False))
    actor_id: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    actor_name: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    address: str = Field(sa_column=Column(String(64), nullable=False))
    action: str = Field(sa_column=Column(String(64), nullable=False))
    """Object kind and verb, such as `key.revoked`."""
    object_kind: str = Field(sa_column=Column(String(32), nullable=False))
    object_id: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    reason: str = Field(sa_column=Column(Text, nullable=False))
    before: str = Field(sa_column=Column(Text, nullable=False))
    """JSON, or empty where the object did not exist. Secrets are masked already."""
    after: str = Field(sa_column=Column(Text, nullable=False))
    previous_hash: str = Field(sa_column=Column(String(64), nullable=False))
    hash: str = Field(sa_column=Column(String(64), nullable=False))
    """SHA-256 of the previous hash, of everything above and of the salt."""
    salt: str = Field(default="", sa_column=Column(String(32), nullable=False, server_default=text("''")))
    redacted: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default="0"))
    """The entry that vouches for this one since personal data was taken out of it; 0 where nothing was."""


class AuditHeadRow(SQLModel, table=True):
    """The last entry's number and hash, in one row. Writers update it first, which serialises them."""

    __tablename__: ClassVar[str] = "audit_head"

    only: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    number: int = Field(sa_column=Column(BigInteger, nullable=False))
    hash: str = Field(sa_column=Column(String(64), nullable=False))
