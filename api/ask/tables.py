"""The tables of Ask: whose usage its questions are booked to, and how many each person asked. No question is kept."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Integer, String
from sqlmodel import Field, SQLModel


class AskSettingRow(SQLModel, table=True):
    """An organisation that switched Ask on."""

    __tablename__: ClassVar[str] = "ask_setting"

    organisation_id: str = Field(sa_column=Column(String(64), primary_key=True))
    team_id: str = Field(sa_column=Column(String(64), nullable=False))
    key_id: str = Field(sa_column=Column(String(64), nullable=False))
    questions_an_hour: int = Field(sa_column=Column(Integer, nullable=False))
    set_us: int = Field(sa_column=Column(BigInteger, nullable=False))


class AskCount(SQLModel, table=True):
    """The questions of one person or key in one hour."""

    __tablename__: ClassVar[str] = "ask_count"

    organisation_id: str = Field(sa_column=Column(String(64), primary_key=True))
    principal: str = Field(sa_column=Column(String(80), primary_key=True))
    """`person/…` or `key/…`."""
    hour_us: int = Field(sa_column=Column(BigInteger, primary_key=True))
    questions: int = Field(sa_column=Column(Integer, nullable=False))
