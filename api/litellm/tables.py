"""The table of what LiteLLM's clients say of an object and nothing here has a use for."""

from datetime import datetime
from typing import ClassVar

from sqlalchemy import Column, String, Text
from sqlmodel import Field, SQLModel

from accounts.tables import ID_CHARS, UtcDateTime


class LitellmFields(SQLModel, table=True):
    """Fields of a key, team or person that are given back as they came: metadata, who a key is for, how it was called there."""

    __tablename__: ClassVar[str] = "litellm_fields"

    kind: str = Field(sa_column=Column(String(16), primary_key=True))
    object_id: str = Field(sa_column=Column(String(ID_CHARS), primary_key=True))
    organisation_id: str = Field(sa_column=Column(String(ID_CHARS), nullable=False))
    fields: str = Field(sa_column=Column(Text, nullable=False))
    updated_at: datetime = Field(sa_column=Column(UtcDateTime(), nullable=False))
