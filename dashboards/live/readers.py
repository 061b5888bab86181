"""What operators' pages of one process share. Nothing of it runs while nobody looks."""

import contextlib
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncEngine

from dashboards.live.drift import DriftReader
from dashboards.live.recent import RecentReader
from dashboards.live.tail import DecisionTail


class Operations(NamedTuple):
    """The readers behind the pages and GET /v1/operations."""

    recent: RecentReader
    drift: DriftReader
    tail: DecisionTail


def open_operations(engine: AsyncEngine, stack: contextlib.AsyncExitStack) -> Operations:
    """Ready at once; the ledger is asked when somebody looks."""
    tail, drift = DecisionTail(engine), DriftReader(engine)
    stack.push_async_callback(tail.aclose)
    stack.push_async_callback(drift.aclose)
    return Operations(RecentReader(engine), drift, tail)
