"""PostgreSQL's clock, which all processes on one database share while their hosts' clocks may differ."""

from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, literal_column

DATABASE_US: Final[ColumnElement[Any]] = literal_column(
    "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)", BigInteger
)
"""Microseconds since 1970 when the row is evaluated, not when the transaction began.

SQLite has no such clock, and needs none: its processes share a machine.
"""
