"""The clock that all processes on one PostgreSQL agree about, because their hosts' clocks may differ."""

from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, literal_column

DATABASE_US: Final[ColumnElement[Any]] = literal_column(
    "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)", BigInteger
)
"""Microseconds since 1970 at the moment of the row, not of the transaction's beginning. SQLite has no such clock, and
needs none: its processes share a machine.
"""
