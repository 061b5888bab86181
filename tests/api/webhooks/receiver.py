"""A receiver of webhooks on a real socket, and a gateway's side of it with a clock that the test turns."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from aiohttp import web
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from api.webhooks.outbox import Outbox
from api.webhooks.sender import Destination, Sender
from api.webhooks.signature import signing_key
from api.webhooks.tables import WebhookMessage
from api.webhooks.webhook_metrics import Result

SECRET = "whsec_" + "c2l4IHRpbWVzIGZpdmUgaXMgdGhpcnR5IGJ5dGVz"
OLDER_SECRET = "whsec_" + "dGhlIHNlY3JldCB0aGF0IHdhcyB0aGVyZSBiZWZvcmU="
START_US = 1_790_000_000_000_000


class Received(msgspec.Struct, frozen=True):
    """One request as it came."""

    headers: dict[str, str]
    body: bytes

    @property
    def message_id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    """Answers with what `answers` holds, first to last, then with 204."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: list[web.Response] = []
        self.url = ""
        self.taken: Callable[[], Awaitable[object]] | None = None
        """What happens when a message has come and is not answered yet."""

    async def take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(headers, await request.read()))
        if self.taken is not None:
            await self.taken()
        return self.answers.pop(0) if self.answers else web.Response(status=204)

    @property
    def ids(self) -> list[str]:
        return [each.message_id for each in self.received]


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/hooks", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    receiver.url = f"http://{host}:{port}/hooks"
    try:
        yield receiver
    finally:
        await runner.cleanup()


class Bench:
    """An outbox, senders to one destination `ops`, and the time."""

    def __init__(self, engine: AsyncEngine, url: str, now_us: int = START_US) -> None:
        self.engine = engine
        self.now_us = now_us
        self.outbox = Outbox(engine, self.time, max_waiting=40, keep_finished=20)
        self.results: list[Result] = []
        self.counted = asyncio.Event()
        self._url = url
        self._senders: list[Sender] = []

    def time(self) -> int:
        return self.now_us

    def sender(self, jitter: Callable[[], float] = lambda: 0.0, timeout_s: float = 15.0) -> Sender:
        keys = (signing_key(SECRET), signing_key(OLDER_SECRET))
        ops = Destination(name="ops", url=self._url, keys=keys)
        made = Sender(
            self.outbox,
            {"ops": ops},
            now_us=self.time,
            jitter=jitter,
            count=self._count,
            timeout_s=timeout_s,
        )
        self._senders.append(made)
        return made

    def _count(self, result: Result) -> None:
        self.results.append(result)
        self.counted.set()

    async def put(self, message_id: str = "budget/b_1/2026-11/80") -> bool:
        return await self.outbox.put(message_id, "ops", "budget.threshold_reached", {"percent": 80})

    def advance(self, seconds: float) -> None:
        self.now_us += int(seconds * 1_000_000)

    async def rows(self) -> list[WebhookMessage]:
        table = WebhookMessage.__table__  # type: ignore[attr-defined]
        async with self.engine.connect() as connection:
            rows = (await connection.execute(select(table).order_by(table.c.message_id))).mappings()
            return [WebhookMessage(**row) for row in rows]

    async def aclose(self) -> None:
        for each in self._senders:
            await each.aclose()


@contextlib.asynccontextmanager
async def a_bench(engine: AsyncEngine, url: str, now_us: int = START_US) -> AsyncIterator[Bench]:
    bench = Bench(engine, url, now_us)
    try:
        yield bench
    finally:
        await bench.aclose()
