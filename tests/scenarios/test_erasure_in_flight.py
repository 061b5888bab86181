"""Erasure of people and teams who are being served, and a gateway that is killed meanwhile: in the end no table and no file has them."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest
from sqlalchemy import select

from gateway.database import make_engine, metadata
from tests.processes import Oracle, Server, Site, make_site, oracle, serving, until
from tests.running_gateway import model

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

WHO: Final = "cust-zq9erased"
SAID: Final = "zq9whatwassaid"
_LINE: Final = {"method": "POST", "url": "/v1/chat/completions"}
_BROKEN: Final = (openai.APIError, httpx.HTTPError)
_SEALED: Final = ("stored_response", "background_response", "background_events", "idempotent_request")
"""Tables in which nobody finds a word."""


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Oracle]:
    with oracle(tmp_path) as running:
        yield running


@pytest.fixture
async def site(upstream: Oracle, database_url: str, tmp_path: Path) -> Site:
    """A team whose prompts are kept, and an end user with a limit."""
    models = [model("quick", [upstream.deployment("ok")]), model("slow", [upstream.deployment("tokens-40+every-50ms")])]
    made = await make_site(tmp_path, models, database_url=database_url)
    for words in (
        ("teams", "set", "team_a", "--learning", "prompts"),
        ("limits", "set", "end_user", f"team_a/{WHO}", "--requests-per-minute", "600"),
    ):
        done = await made.run(*words)
        assert done.returncode == 0, done.stderr
    return made


class Crowd:
    """Callers of one end user, in every way in which something of theirs is kept."""

    def __init__(self, site: Site, server: Server) -> None:
        self._client = openai.AsyncOpenAI(api_key=site.key, base_url=server.base_url, max_retries=0)
        self._number = 0
        self.answered: dict[str, int] = {}
        ways = (
            self._auto,
            self._streamed,
            self._kept,
            self._in_background,
            self._once,
            self._file,
            self._batch,
            self._talk,
        )
        self._tasks = [asyncio.create_task(self._over_and_over(way)) for way in ways]

    async def _over_and_over(self, way: Callable[[], Awaitable[None]]) -> None:
        name = way.__name__
        while True:
            # A conversation or file may be erased under its caller, and the gateway is killed.
            with contextlib.suppress(*_BROKEN):
                await way()
                self.answered[name] = self.answered.get(name, 0) + 1
            await asyncio.sleep(0.05)

    @property
    def _messages(self) -> Any:
        self._number += 1
        return [{"role": "user", "content": f"{SAID} {self._number}"}]

    async def _auto(self) -> None:
        await self._client.chat.completions.create(model="auto", messages=self._messages, user=WHO)

    async def _streamed(self) -> None:
        async for _ in await self._client.chat.completions.create(
            model="slow", messages=self._messages, user=WHO, stream=True
        ):
            pass

    async def _kept(self) -> None:
        await self._client.responses.create(model="quick", input=SAID, user=WHO)

    async def _in_background(self) -> None:
        await self._client.responses.create(model="slow", input=SAID, user=WHO, background=True)
        await asyncio.sleep(0.5)

    async def _once(self) -> None:
        headers = {"idempotency-key": f"once-{self._number}"}
        await self._client.chat.completions.create(
            model="slow", messages=self._messages, user=WHO, extra_headers=headers
        )

    async def _file(self) -> None:
        await self._client.files.create(file=(f"{SAID}.jsonl", io.BytesIO(SAID.encode() * 20_000)), purpose="batch")
        await asyncio.sleep(0.2)

    async def _batch(self) -> None:
        body = {"model": "quick", "user": WHO, "messages": [{"role": "user", "content": SAID}]}
        lines = [json.dumps({"custom_id": f"{SAID}-{number}", **_LINE, "body": body}) for number in range(10)]
        file = await self._client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
        await self._client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"said": SAID}
        )
        await asyncio.sleep(1)

    async def _talk(self) -> None:
        made = await self._client.conversations.create()
        await self._client.responses.create(model="quick", input=SAID, conversation=made.id, user=WHO)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()


@asynccontextmanager
async def _calling(site: Site, server: Server) -> AsyncIterator[Crowd]:
    crowd = Crowd(site, server)
    try:
        yield crowd
    finally:
        await crowd.stop()


async def found(site: Site, *words: str) -> set[str]:
    """Return the tables and the files of the data folder that have one of the words, and tables of sealed texts that are not empty."""
    there = set()
    engine = make_engine(site.database_url)
    try:
        async with engine.connect() as connection:
            for name, table in metadata.tables.items():
                rows = [str(tuple(row)) for row in await connection.execute(select(table))]
                if any(word in row for word in words for row in rows) or (rows and name in _SEALED):
                    there.add(name)
    finally:
        await engine.dispose()
    for path in site.folder.rglob("*"):
        # What the gateway deletes meanwhile is gone.
        with contextlib.suppress(OSError):
            data = path.read_bytes() if path.is_file() else b""
            if any(word.encode() in data for word in words):
                there.add(str(path.relative_to(site.folder)))
    return there


async def erase(site: Site) -> dict[str, Any]:
    """Erase the end user and the team's content; return what was left."""
    left: dict[str, Any] = {}
    for words in (("team", "team_a", "content"), ("person", WHO)):
        done = await site.run("erase", *words, "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        left |= told["rows"] | told["left"]
    return left


async def test_the_erased_are_gone_from_every_table_and_file(site: Site) -> None:
    """Erased while they call, killed in the middle, started again, and erased until nothing is left of them."""
    async with serving(site) as server, _calling(site, server) as crowd:
        await until(lambda: len(crowd.answered) == 8 and min(crowd.answered.values()) > 1)
        for _ in range(2):
            await erase(site)
        cut_off = asyncio.create_task(site.run("erase", "person", WHO))
        await until(lambda: sum(crowd.answered.values()) > 100)
        server.kill()
        assert (await cut_off).returncode == 0
    async with serving(site, "second") as server:
        async with asyncio.timeout(300):
            # What was being uploaded when its process was killed is told as left, and free after an hour.
            while set(await erase(site)) - {"stored_file"}:  # noqa: ASYNC110 - other processes tell nobody
                await asyncio.sleep(1)
        reserved = {row["file_id"] for row in await site.select("SELECT file_id FROM stored_file")}
        # Of what is booked a running process keeps its journal.
        left = {
            each for each in await found(site, WHO, SAID) if not each.startswith(("journal/", "weighbridge.sqlite-wal"))
        }
        assert {each.removeprefix("files/").partition(".")[0] for each in left} <= reserved
        assert await server.stop() == 0
    assert {each.removeprefix("files/").partition(".")[0] for each in await found(site, WHO, SAID)} <= reserved
    for words in (("ledger", "verify"), ("audit", "verify")):
        done = await site.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
