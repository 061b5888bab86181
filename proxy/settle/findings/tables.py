"""Tables of what the guard found: counts by hour and by day, and the latest requests of each team. Nothing of a text is here."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, PrimaryKeyConstraint, String, Text
from sqlmodel import Field, SQLModel

NAME_CHARS = 64
REQUEST_CHARS = 200


class GuardFinding(SQLModel, table=True):
    """How often something was found within one hour or day, and in how many requests."""

    __tablename__: ClassVar[str] = "guard_finding"
    __table_args__ = (
        PrimaryKeyConstraint(
            "span",
            "start_us",
            "boot_id",
            "organisation_id",
            "team_id",
            "name",
            "label",
            "action",
            "side",
            name="pk_guard_finding",
        ),
        Index("ix_guard_finding_organisation_id_start_us", "organisation_id", "start_us"),
        Index("ix_guard_finding_team_id_start_us", "team_id", "start_us"),
    )

    span: str = Field(sa_column=Column(String(8), nullable=False))
    """`process` for an hour in one process, `hour` for all together, `day` for one of the organisation. What is in one is in no other."""
    boot_id: str = Field(sa_column=Column(String(64), nullable=False))
    """The process that counted; empty where all are together."""
    start_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    name: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    label: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    action: str = Field(sa_column=Column(String(16), nullable=False))
    side: str = Field(sa_column=Column(String(8), nullable=False))
    requests: int = Field(sa_column=Column(BigInteger, nullable=False))
    findings: int = Field(sa_column=Column(BigInteger, nullable=False))


class GuardedRequestRow(SQLModel, table=True):
    """A request in which something was found: names and counts."""

    __tablename__: ClassVar[str] = "guarded_request"
    __table_args__ = (
        PrimaryKeyConstraint("team_id", "request_id", name="pk_guarded_request"),
        Index("ix_guarded_request_team_id_at_us", "team_id", "at_us"),
    )

    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    request_id: str = Field(sa_column=Column(String(REQUEST_CHARS), nullable=False))
    at_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    findings: str = Field(sa_column=Column(Text, nullable=False))
    """A JSON list of name, label, action, count and side."""
