"""The table of traffic: by minute as processes reported it, and by quarter of an hour once that is over."""

from typing import ClassVar

from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, String
from sqlmodel import Field, SQLModel


class TrafficRow(SQLModel, table=True):
    """The requests that ended within one minute in one process, or within a quarter of an hour in all."""

    __tablename__: ClassVar[str] = "traffic"
    __table_args__ = (PrimaryKeyConstraint("span", "start_us", "boot_id", name="pk_traffic"),)

    span: str = Field(sa_column=Column(String(8), nullable=False))
    """`minute` or `quarter`. A request in a quarter is in no minute any more."""
    start_us: int = Field(sa_column=Column(BigInteger, nullable=False))
    boot_id: str = Field(sa_column=Column(String(64), nullable=False))
    """The process; empty for a quarter, where all are together."""
    mark: int = Field(sa_column=Column(BigInteger, nullable=False))
    requests: int = Field(sa_column=Column(BigInteger, nullable=False))
    errors: int = Field(sa_column=Column(BigInteger, nullable=False))
    refusals: int = Field(sa_column=Column(BigInteger, nullable=False))
    output_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    priced_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cost_nanousd: int = Field(sa_column=Column(BigInteger, nullable=False))
    waiting: int = Field(sa_column=Column(BigInteger, nullable=False))
    ttft: str = Field(sa_column=Column(String(1_000), nullable=False))
    """Counts of the ranges of waiting times, as a JSON list."""
