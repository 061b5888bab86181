"""The database table of live processes, for gateways without Redis."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, String
from sqlmodel import Field, SQLModel


class LiveProcess(SQLModel, table=True):
    """A serving process and its last heartbeat, by the database's clock in microseconds."""

    # As it is called in the databases that there are.
    __tablename__: ClassVar[str] = "replica"

    boot_id: str = Field(sa_column=Column(String(64), primary_key=True))
    seen_us: int = Field(sa_column=Column(BigInteger, nullable=False))
