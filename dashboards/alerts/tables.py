"""The table of alerts."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Index, Integer, String, text
from sqlmodel import Field, SQLModel


class AlertRule(SQLModel, table=True):
    """An alert of an organisation, or of one of its teams."""

    __tablename__: ClassVar[str] = "alert_rule"
    __table_args__ = (Index("ix_alert_rule_organisation_id", "organisation_id"),)

    alert_id: str = Field(sa_column=Column(String(64), primary_key=True))
    organisation_id: str = Field(sa_column=Column(String(64), nullable=False))
    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    """Empty for the whole organisation."""
    name: str = Field(sa_column=Column(String(100), nullable=False))
    measure: str = Field(sa_column=Column(String(16), nullable=False))
    threshold: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Threshold in the measure's unit: nano-dollars, parts of a million, microseconds, or a count."""
    window_s: int = Field(sa_column=Column(Integer, nullable=False))
    destination: str = Field(sa_column=Column(String(64), nullable=False))
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    address: str = Field(sa_column=Column(String(2_000), nullable=False, server_default=text("''")))
    """A team's own address, sealed, for it may hold a secret: pages show its host alone."""
