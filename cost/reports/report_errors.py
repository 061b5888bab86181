"""Errors of the readers."""

from sqlalchemy.ext.asyncio import AsyncConnection

from cost.ledger.archived import archived_months, told_months


class BadQuery(Exception):
    """The query is not valid. `param` names the wrong parameter; the message says what is wrong with it."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


async def refuse_archived(connection: AsyncConnection, start_us: int, end_us: int) -> None:
    """Raise BadQuery where what is summed up from entries, and not from roll-ups, would lack those that are archived."""
    if months := await archived_months(connection, start_us, end_us):
        raise BadQuery(f"this needs the entries themselves, and {told_months(months)}", param="start_time")
