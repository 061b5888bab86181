"""The database table of limit rules."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Integer, String
from sqlmodel import Field, SQLModel

from accounts.tables import ID_CHARS

MODEL_CHARS = 128
SCOPE_ID_CHARS = 2 * ID_CHARS + 1


class LimitRule(SQLModel, table=True):
    """A rule: limits of one organisation, team, key, end user or model that override the configuration.

    `scope_id` is the organisation's, the team's or the key's id, of an end user `team/end user` (`team/*` for each one of a team),
    and `*` for a model. `model` is empty for all models
    together; with a name, the rule is for that model (as callers name it) alone. A null column takes the
    configuration's value, and 0 lifts that limit.
    """

    __tablename__: ClassVar[str] = "limit_rule"

    scope: str = Field(sa_column=Column(String(16), primary_key=True))
    scope_id: str = Field(sa_column=Column(String(SCOPE_ID_CHARS), primary_key=True))
    model: str = Field(sa_column=Column(String(MODEL_CHARS), primary_key=True))
    requests_per_minute: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    request_burst: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    tokens_per_minute: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    token_burst: int | None = Field(sa_column=Column(BigInteger, nullable=True))
    concurrency: int | None = Field(sa_column=Column(Integer, nullable=True))
    updated_us: int = Field(sa_column=Column(BigInteger, nullable=False))
