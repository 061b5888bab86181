"""The tables of people: persons, team memberships, sessions, one-time links and failed sign-ins."""

from datetime import datetime
from typing import ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlmodel import Field, SQLModel

from accounts.tables import ID_CHARS, NAME_CHARS, UtcDateTime

EMAIL_CHARS = 254
DIGEST_CHARS = 64


class PersonRow(SQLModel, table=True):
    """A person, who belongs to one organisation. `email` is in lower case and unique over all organisations."""

    __tablename__: ClassVar[str] = "person"
    __table_args__ = (
        UniqueConstraint("email", name="uq_person_email"),
        UniqueConstraint("issuer", "subject", name="uq_person_subject"),
        Index("ix_person_organisation_id", "organisation_id"),
    )

    person_id: str = Field(sa_column=Column(String(ID_CHARS), primary_key=True))
    organisation_id: str = Field(
        sa_column=Column(
            String(ID_CHARS), ForeignKey("organisation.organisation_id", name="fk_person_organisation"), nullable=False
        )
    )
    email: str = Field(sa_column=Column(String(EMAIL_CHARS), nullable=False))
    name: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    role: str = Field(sa_column=Column(String(16), nullable=False, server_default=text("''")))
    """`admin`, `finance`, `operator`, or empty: only the rights of its teams' roles."""
    password: str | None = Field(sa_column=Column(Text, nullable=True))
    """Argon2id in PHC notation; null for a person who signs in elsewhere or has not accepted the invitation yet."""
    issuer: str | None = Field(sa_column=Column(String(NAME_CHARS), nullable=True))
    subject: str | None = Field(sa_column=Column(String(255), nullable=True))
    """The `sub` claim of the OpenID account that signs in as this person; unique with `issuer`."""
    source: str = Field(sa_column=Column(String(16), nullable=False))
    """Origin of the role: `local` or `oidc`."""
    created_at: datetime = Field(sa_column=Column(UtcDateTime(), nullable=False))
    disabled_at: datetime | None = Field(sa_column=Column(UtcDateTime(), nullable=True))
    signed_in_at: datetime | None = Field(sa_column=Column(UtcDateTime(), nullable=True))


class TeamMemberRow(SQLModel, table=True):
    """A person's membership in a team."""

    __tablename__: ClassVar[str] = "team_member"
    __table_args__ = (
        PrimaryKeyConstraint("person_id", "team_id", name="pk_team_member"),
        Index("ix_team_member_team_id", "team_id"),
    )

    person_id: str = Field(
        sa_column=Column(String(ID_CHARS), ForeignKey("person.person_id", name="fk_team_member_person"), nullable=False)
    )
    team_id: str = Field(
        sa_column=Column(String(ID_CHARS), ForeignKey("team.team_id", name="fk_team_member_team"), nullable=False)
    )
    role: str = Field(sa_column=Column(String(16), nullable=False))
    source: str = Field(sa_column=Column(String(16), nullable=False))
    """`local`, or `oidc` where a provider's group gave the membership, which then ends with the group."""


class SessionRow(SQLModel, table=True):
    """A session of a signed-in person. Of the cookie's secret only the digest is stored."""

    __tablename__: ClassVar[str] = "session"
    __table_args__ = (Index("ix_session_person_id", "person_id"), Index("ix_session_expires_us", "expires_us"))

    digest: str = Field(sa_column=Column(String(DIGEST_CHARS), primary_key=True))
    person_id: str = Field(
        sa_column=Column(String(ID_CHARS), ForeignKey("person.person_id", name="fk_session_person"), nullable=False)
    )
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    seen_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Time of the last use, to the minute, in Unix microseconds."""
    expires_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    """Absolute end, in Unix microseconds, that no use extends."""
    via: str = Field(sa_column=Column(String(16), nullable=False))
    address: str = Field(sa_column=Column(String(64), nullable=False))
    agent: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))


class OneTimeLinkRow(SQLModel, table=True):
    """A link that lets its bearer set a password once."""

    __tablename__: ClassVar[str] = "one_time_link"
    __table_args__ = (Index("ix_one_time_link_person_id", "person_id"),)

    digest: str = Field(sa_column=Column(String(DIGEST_CHARS), primary_key=True))
    person_id: str = Field(
        sa_column=Column(
            String(ID_CHARS), ForeignKey("person.person_id", name="fk_one_time_link_person"), nullable=False
        )
    )
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    expires_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    used_us: int | None = Field(sa_column=Column(BigInteger, nullable=True))


class SignInFailureRow(SQLModel, table=True):
    """Recent failed sign-ins by account and by address, counted whether or not the account exists."""

    __tablename__: ClassVar[str] = "sign_in_failure"

    digest: str = Field(sa_column=Column(String(DIGEST_CHARS), primary_key=True))
    """Digest of the e-mail address or of the network address, so that the table does not show who tried."""
    failures: int = Field(sa_column=Column(Integer, nullable=False))
    last_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    locked_until_us: int = Field(sa_column=Column(BigInteger, nullable=False))
