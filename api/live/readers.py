"""Readers shared by the operators' pages of one process. They do no work while no page is open."""

import contextlib
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncEngine

from api.incidents.history import History
from api.live.drift import DriftReader
from api.live.first_seen import FirstSeen
from api.live.recent import RecentReader
from api.live.tail import DecisionTail


class Operations(NamedTuple):
    """Readers behind the operators' pages and GET /v1/operations."""

    recent: RecentReader
    drift: DriftReader
    tail: DecisionTail
    first_seen: FirstSeen
    """The beginnings of incidents."""
    unwell: FirstSeen
    """The beginnings of states that are not well."""
    history: History


def open_operations(engine: AsyncEngine, stack: contextlib.AsyncExitStack) -> Operations:
    """Return the readers, ready at once: the ledger is queried on first use. `stack` closes them."""
    tail, drift = DecisionTail(engine), DriftReader(engine)
    stack.push_async_callback(tail.aclose)
    stack.push_async_callback(drift.aclose)
    return Operations(RecentReader(engine), drift, tail, FirstSeen(), FirstSeen(), History(engine))
