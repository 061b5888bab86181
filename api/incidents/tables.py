"""The tables of incidents, and of those whom each hurt."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, Integer, PrimaryKeyConstraint, String, Text
from sqlmodel import Field, SQLModel


class IncidentRow(SQLModel, table=True):
    """An incident, open or closed."""

    __tablename__: ClassVar[str] = "incident"
    __table_args__ = (Index("ix_incident_closed_us", "closed_us"),)

    incident_id: str = Field(sa_column=Column(String(64), primary_key=True))
    place: str = Field(sa_column=Column(String(300), nullable=False))
    places: str = Field(sa_column=Column(Text, nullable=False))
    """All places at fault, a line each."""
    targets: str = Field(sa_column=Column(Text, nullable=False))
    """The targets whose faults hurt requests, a line each."""
    kind: str = Field(sa_column=Column(String(16), nullable=False))
    severity: str = Field(sa_column=Column(String(8), nullable=False))
    subject: str = Field(sa_column=Column(String(300), nullable=False))
    text: str = Field(sa_column=Column(Text, nullable=False))
    advice: str = Field(sa_column=Column(Text, nullable=False))
    href: str = Field(sa_column=Column(String(500), nullable=False))
    also: str = Field(sa_column=Column(Text, nullable=False))
    """What followed from it, a line each."""
    opened_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    seen_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    seen_by: str = Field(sa_column=Column(String(64), nullable=False))
    """The control plane that saw it last."""
    closed_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """0 while it is open."""
    requests: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    refused: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    teams: int | None = Field(default=None, sa_column=Column(Integer, nullable=True))
    keys: int | None = Field(default=None, sa_column=Column(Integer, nullable=True))
    part_of: str = Field(sa_column=Column(String(64), nullable=False))
    """The incident that it turned out to be a part of; empty for most."""


class IncidentShare(SQLModel, table=True):
    """The requests of one team for one model that an incident hurt."""

    __tablename__: ClassVar[str] = "incident_share"
    __table_args__ = (
        PrimaryKeyConstraint("incident_id", "organisation_id", "team_id", "model", name="pk_incident_share"),
        Index("ix_incident_share_team_id", "team_id"),
    )

    incident_id: str = Field(sa_column=Column(String(64), nullable=False))
    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    model: str = Field(sa_column=Column(String(200), nullable=False))
    requests: int = Field(sa_column=Column(BigInteger, nullable=False))
    refused: int = Field(sa_column=Column(BigInteger, nullable=False))
