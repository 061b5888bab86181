"""What the routes of finance share: how long they wait for the database, and how money is written."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import Any, Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from cost.prices import usd
from cost.reports.report_errors import BadQuery
from dashboards.web.gateway import Gateway
from proxy.errors import BadRequest, UsageUnavailable

JSON: Final = "application/json"
_PATIENCE_S: Final = 3.0
_SLOW_READER_S: Final = 30.0
# Money leaves as exact decimal numbers: a float would change the last digits.
_encoder: Final = msgspec.json.Encoder(decimal_format="number")


@contextlib.contextmanager
def sound_query() -> Iterator[None]:
    """What the books refuse to be asked is the caller's mistake."""
    try:
        yield
    except BadQuery as error:
        raise BadRequest(f"`{error.param}` is not valid: {error}.", param=error.param) from error


@contextlib.asynccontextmanager
async def reading(gateway: Gateway, *, on: bool = False) -> AsyncIterator[None]:
    """One look into the books, a few at a time; after what this process has booked so far has reached them, unless it
    only reads `on`.
    """
    try:
        with sound_query():
            # Whoever asks much waits for itself: requests need the database's connections too.
            async with asyncio.timeout(_PATIENCE_S), gateway.reads:
                if not on:
                    await gateway.ledger.drain()
                yield
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise UsageUnavailable("The ledger's database does not answer; nothing is lost, try again shortly.") from error


def known_usd(amount_nanousd: int | None) -> Decimal | None:
    """Exact dollars; what is unknown stays so."""
    return None if amount_nanousd is None else usd(amount_nanousd)


def json_bytes(value: Any) -> bytes:
    """JSON with money as it is."""
    return _encoder.encode(value)


def json_reply(value: Any, status: int = 200) -> Response:
    """A whole reply."""
    return Response(json_bytes(value), status_code=status, media_type=JSON, headers={"vary": "accept"})


class Export(StreamingResponse):
    """A caller that reads nothing for a while is let go, and what it holds with it."""

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(_SLOW_READER_S):
                await send(message)

        await super().stream_response(send_in_time)
