"""The database table of limit rules."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Integer, String
from sqlmodel import Field, SQLModel

from accounts.tables import ID_CHARS

MODEL_CHARS = 128


class LimitRule(SQLModel, table=True):
    """A rule: limits of one organisation, team, key or model that override the configuration.

    `scope_id` is the organisation's, the team's or the key's id, and `*` for a model. `model` is empty for all models
    together; with a name, the rule is for that model (as callers name it) alone. A null column takes the
    configuration's value, and 0 lifts that limit.
    """

    __tablename__: ClassVar[str] = "limit_rule"

    scope: str = Field(sa_column=Column(String(16), primary_key=True))
    scope_id: str = Field(sa_column=Column(String(ID_CHARS), primary_key=True))
    model: str = Field(sa_column=Column(String(MODEL_CHARS), primary_key=True))
    requests_per_minute: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    request_burst: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    tokens_per_minute: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    token_burst: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    concurrency: int | None = Field(sa_column=Column(Integer, nullable=True))
    updated_us: int = Field(sa_column=Column(BigInteger, nullable=False))
