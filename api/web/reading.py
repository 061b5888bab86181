"""Reads of the books with a timeout, and JSON with exact amounts, shared by the finance routes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from decimal import Decimal
from typing import Any, Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from api.web.gateway import Gateway
from api.web.patience import patience
from cost.prices import usd
from cost.reports.report_errors import BadQuery
from proxy.errors import BadRequest, UsageUnavailable

JSON: Final = "application/json"
_PATIENCE_S: Final = 3.0
_SLOW_READER_S: Final = 30.0
# Decimals are written as exact JSON numbers: a float would change the last digits.
_encoder: Final = msgspec.json.Encoder(decimal_format="number")


@contextlib.contextmanager
def sound_query() -> Iterator[None]:
    """Map BadQuery to BadRequest."""
    try:
        yield
    except BadQuery as error:
        raise BadRequest(f"`{error.param}` is not valid: {error}.", param=error.param) from error


@contextlib.asynccontextmanager
async def reading(gateway: Gateway, *, on: bool = False) -> AsyncIterator[None]:
    """Bound the number of concurrent reads of the books, with a timeout. Waits first until the bookings of this host's
    processes have reached them, unless `on`. Raises UsageUnavailable.
    """
    try:
        with sound_query():
            # Heavy readers queue among themselves: requests need database connections too.
            async with patience(_PATIENCE_S), gateway.finance.reads:
                if not on:
                    await gateway.finance.drain.drain_now()
                yield
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise UsageUnavailable("The ledger's database does not answer; nothing is lost, try again shortly.") from error


def known_usd(amount_nanousd: int | None) -> Decimal | None:
    """Return exact dollars; None stays None."""
    return None if amount_nanousd is None else usd(amount_nanousd)


def json_bytes(value: Any) -> bytes:
    """Return the JSON with Decimals as exact numbers."""
    return _encoder.encode(value)


def json_reply(value: Any, status: int = 200) -> Response:
    """Return a JSON reply with exact amounts."""
    return Response(json_bytes(value), status_code=status, media_type=JSON, headers={"vary": "accept"})


class Export(StreamingResponse):
    """A streamed reply that disconnects a client that stops reading, to free its resources."""

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(_SLOW_READER_S):
                await send(message)

        try:
            await super().stream_response(send_in_time)
        finally:
            # A generator that is broken off would keep its file until the collector comes by.
            if isinstance(self.body_iterator, AsyncGenerator):
                await self.body_iterator.aclose()
