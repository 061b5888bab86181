"""The tables of organisations, teams and keys."""

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    false,
    true,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

ID_CHARS = 64
NAME_CHARS = 200


class UtcDateTime(TypeDecorator[datetime]):
    """A timestamp in UTC. SQLite drops time zones, so UTC is set again on reading; a naive value raises ValueError."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Return the value in UTC; raises ValueError for a naive one."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment needs its time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any | None, _dialect: Dialect) -> datetime | None:
        """Return the value with UTC as its zone."""
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class Organisation(SQLModel, table=True):
    """A company, or a part of one, that is billed."""

    __tablename__: ClassVar[str] = "organisation"

    organisation_id: str = Field(sa_column=Column(String(ID_CHARS), primary_key=True))
    name: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    created_at: datetime = Field(sa_column=Column(UtcDateTime(), nullable=False))


class Team(SQLModel, table=True):
    """The unit that usage is booked to. `allowed_models` is null when the team may use every model."""

    __tablename__: ClassVar[str] = "team"

    team_id: str = Field(sa_column=Column(String(ID_CHARS), primary_key=True))
    organisation_id: str = Field(
        sa_column=Column(
            String(ID_CHARS),
            ForeignKey("organisation.organisation_id", name="fk_team_organisation"),
            nullable=False,
            index=True,
        )
    )
    name: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    allowed_models: list[str] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True), nullable=True))
    quality_floor: float | None = Field(default=None, sa_column=Column(Float(53), nullable=True))
    # The database's own defaults are what a team gets that was made before it could choose.
    escalation: str = Field(default="off", sa_column=Column(String(16), nullable=False, server_default="off"))
    learning: str = Field(default="numbers", sa_column=Column(String(16), nullable=False, server_default="numbers"))
    shadow_share: float = Field(default=0.0, sa_column=Column(Float(53), nullable=False, server_default="0"))
    weight: float = Field(default=1.0, sa_column=Column(Float(53), nullable=False, server_default="1"))
    spill_over: bool = Field(default=True, sa_column=Column(Boolean, nullable=False, server_default=true()))
    continue_streams: bool = Field(default=False, sa_column=Column(Boolean, nullable=False, server_default=false()))
    cache: str = Field(default="default", sa_column=Column(String(16), nullable=False, server_default="default"))
    cache_ttl_s: int | None = Field(default=None, sa_column=Column(Integer, nullable=True))
    cache_epoch: int = Field(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    created_at: datetime = Field(sa_column=Column(UtcDateTime(), nullable=False))
    blocked_at: datetime | None = Field(default=None, sa_column=Column(UtcDateTime(), nullable=True))
    """Since when its keys are refused for now; null while they work."""


WHOLE_ORGANISATION = ""
"""In place of a team, where something is a whole organisation's. No team has it as its id."""


class GuardRules(SQLModel, table=True):
    """The guard's rules that an organisation adds to the configuration's, and a team to both; a JSON list of `guard.rules`."""

    __tablename__: ClassVar[str] = "guard_rules"

    organisation_id: str = Field(sa_column=Column(String(ID_CHARS), primary_key=True))
    team_id: str = Field(sa_column=Column(String(ID_CHARS), primary_key=True))
    rules: str = Field(sa_column=Column(Text, nullable=False))
    updated_at: datetime = Field(sa_column=Column(UtcDateTime(), nullable=False))


class ApiKey(SQLModel, table=True):
    """An issued key: its digest, and what identifies it in a list. The key itself is not stored."""

    __tablename__: ClassVar[str] = "api_key"
    __table_args__ = (UniqueConstraint("digest", name="uq_api_key_digest"), Index("ix_api_key_team_id", "team_id"))

    key_id: str = Field(sa_column=Column(String(ID_CHARS), primary_key=True))
    team_id: str = Field(
        sa_column=Column(String(ID_CHARS), ForeignKey("team.team_id", name="fk_api_key_team"), nullable=False)
    )
    name: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    digest: str = Field(sa_column=Column(String(64), nullable=False))
    pepper_id: str = Field(sa_column=Column(String(32), nullable=False))
    last4: str = Field(sa_column=Column(String(4), nullable=False))
    role: str = Field(default="member", sa_column=Column(String(16), nullable=False, server_default="member"))
    models: list[str] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True), nullable=True))
    """The only models that it may use, of those of its team; null for all of those."""
    created_at: datetime = Field(sa_column=Column(UtcDateTime(), nullable=False))
    revoked_at: datetime | None = Field(default=None, sa_column=Column(UtcDateTime(), nullable=True))
    expires_at: datetime | None = Field(default=None, sa_column=Column(UtcDateTime(), nullable=True))
    blocked_at: datetime | None = Field(default=None, sa_column=Column(UtcDateTime(), nullable=True))
    """Since when it is refused for now; null while it works."""
    read_day_us: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    """Start of the UTC day of its last request that asked no model; null for none."""
