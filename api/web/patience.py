"""Limits on how long a route waits for the database before it answers that the database does not."""

import asyncio
from contextvars import ContextVar

_TIMES: ContextVar[float] = ContextVar("weighbridge_patience", default=1.0)


def patience(seconds: float) -> asyncio.Timeout:
    """Return a timeout of `seconds`, times the factor that `be_more_patient` set in this context."""
    return asyncio.timeout(seconds * _TIMES.get())


def be_more_patient(times: float) -> None:
    """Multiply the limits of every server that is started from this context, such as one on a machine known to be slow."""
    _TIMES.set(times)
