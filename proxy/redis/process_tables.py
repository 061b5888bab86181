"""The table of processes that live, for those that have no Redis to tell each other by."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, String
from sqlmodel import Field, SQLModel


class LiveProcess(SQLModel, table=True):
    """A process that serves, and when it was last known to live, by the database's clock."""

    # As it is called in the databases that there are.
    __tablename__: ClassVar[str] = "replica"

    boot_id: str = Field(sa_column=Column(String(64), primary_key=True))
    seen_us: int = Field(sa_column=Column(BigInteger, nullable=False))
