"""The table of the searches that people keep."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String
from sqlmodel import Field, SQLModel

NAME_CHARS = 100
QUERY_CHARS = 1_000


class SavedView(SQLModel, table=True):
    """A person's search of a team's requests, by the name that the person gave it."""

    __tablename__: ClassVar[str] = "saved_view"
    __table_args__ = (PrimaryKeyConstraint("person_id", "team_id", "name", name="pk_saved_view"),)

    person_id: str = Field(sa_column=Column(String(64), nullable=False))
    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    name: str = Field(sa_column=Column(String(NAME_CHARS), nullable=False))
    query: str = Field(sa_column=Column(String(QUERY_CHARS), nullable=False))
    """Parameters of the page's address."""
    created_us: int = Field(sa_column=Column(BigInteger, nullable=False))
