"""The same request sent again with its Idempotency-Key: answered once more, served and booked once."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai

from tests.processes import Oracle, make_site, oracle, start, until
from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.conftest import Upstream

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
QUICK = {"providers": {"timeouts": {"first_token_interactive_s": 0.3, "idle_s": 0.3, "total_s": 1.0}}}
PATIENT = {"idempotency": {"timeout_s": 30}}
"""A busy machine is no broken database."""


class Told(msgspec.Struct, frozen=True):
    """A reply as it came."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def code(self) -> str | None:
        code: str | None = msgspec.json.decode(self.body)["error"]["code"]
        return code


class Caller:
    """Asks with a key, as often as the test likes."""

    def __init__(self, base_url: str, api_key: str, session: aiohttp.ClientSession, key: str = "my-key") -> None:
        self._session = session
        self._url = f"{base_url}/chat/completions"
        self._headers = {"authorization": f"Bearer {api_key}", "idempotency-key": key}

    def post(self, **fields: Any) -> Any:
        body = {"model": "main", "messages": QUESTION, **fields}
        return self._session.post(self._url, json=body, headers=self._headers)

    async def ask(self, **fields: Any) -> Told:
        async with self.post(**fields) as reply:
            headers = {name.lower(): value for name, value in reply.headers.items()}
            return Told(reply.status, await reply.read(), headers)

    async def ask_until_served(self, **fields: Any) -> Told:
        """Again and again while it is in flight, for a while."""
        until = time.monotonic() + 30
        while (told := await self.ask(**fields)).status == 409 and time.monotonic() < until:
            assert told.code == "idempotency_key_in_flight"
            await asyncio.sleep(0.02)
        return told


def one(upstream: Upstream, script: str) -> list[dict[str, Any]]:
    return [model("main", [upstream.deployment(script)])]


async def closings(gateway: Running) -> list[str]:
    return [row["entry"] for row in await gateway.rows("entry != 'reserve'")]


async def test_a_hundred_duplicates_at_once_are_served_once(tmp_path: Path, upstream: Upstream) -> None:
    """One upstream call, one settlement; all others are told to wait, and then get the same bytes."""
    async with (
        running_gateway(tmp_path, one(upstream, "slow-first-token-300ms"), **PATIENT) as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        caller = Caller(gateway.base_url, gateway.key, session)
        told = await asyncio.gather(*(caller.ask() for _ in range(100)))
        assert {each.status for each in told} == {200, 409}
        assert all("retry-after" in each.headers for each in told if each.status == 409)
        again = await asyncio.gather(*(caller.ask() for _ in range(100)))
        assert {each.status for each in again} == {200}
        assert len({each.body for each in (*told, *again) if each.status == 200}) == 1
        first = next(each for each in told if "idempotent-replayed" not in each.headers and each.status == 200)
        for each in again:
            assert each.headers["idempotent-replayed"] == "true"
            assert each.headers["x-weighbridge-original-request-id"] == first.headers["x-request-id"]
            assert each.headers["x-request-id"] != first.headers["x-request-id"]
            assert each.headers["x-weighbridge-target"] == first.headers["x-weighbridge-target"]
            assert each.headers["content-type"] == first.headers["content-type"]
        assert len(upstream.arrived()) == 1
        assert await closings(gateway) == ["settle"]


async def test_a_repeat_counts_as_a_request(tmp_path: Path, upstream: Upstream) -> None:
    """Its tokens come back, but repeats without end do not keep the database from others: limits come first."""
    limits = {"key": {"requests_per_minute": 1, "request_burst": 3, "tokens_per_minute": 100_000}}
    async with (
        running_gateway(tmp_path, one(upstream, "ok"), limits=limits, **PATIENT) as gateway,
        aiohttp.ClientSession() as session,
    ):
        caller = Caller(gateway.base_url, gateway.key, session)
        told = [await caller.ask() for _ in range(4)]
        assert [each.status for each in told] == [200, 200, 200, 429]
        assert told[3].code == "rate_limit_exceeded"
        assert int(told[2].headers["x-ratelimit-remaining-tokens"]) >= 99_000
        assert len(upstream.arrived()) == 1


async def test_a_stream_is_streamed_again(tmp_path: Path, upstream: Upstream) -> None:
    """Byte by byte, with its usage and its end."""
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    async with (
        running_gateway(tmp_path, one(upstream, "tokens-50"), **PATIENT) as gateway,
        aiohttp.ClientSession() as session,
    ):
        caller = Caller(gateway.base_url, gateway.key, session)
        first, again = await caller.ask(**fields), await caller.ask(**fields)
        assert first.body.endswith(b"data: [DONE]\n\n")
        assert again.body == first.body
        assert again.headers["content-type"] == first.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert again.headers["idempotent-replayed"] == "true"
        assert len(upstream.arrived()) == 1


async def test_who_hung_up_gets_the_whole_answer_later(tmp_path: Path, upstream: Upstream) -> None:
    """The request ran to its end unseen; its retry is told to wait, then gets all of it, for one charge."""
    async with (
        running_gateway(tmp_path, one(upstream, "tokens-20+every-20ms"), **PATIENT) as gateway,
        aiohttp.ClientSession() as session,
    ):
        caller = Caller(gateway.base_url, gateway.key, session)
        async with caller.post(stream=True) as reply:
            beginning = await reply.content.readany()
            reply.close()
        told = await caller.ask_until_served(stream=True)
        assert told.status == 200
        assert told.body.startswith(beginning)
        assert told.body.endswith(b"data: [DONE]\n\n")
        assert b" w19" in told.body
        assert len(upstream.arrived()) == 1
        assert [line.event for line in upstream.over()] == ["ended"]
        assert await closings(gateway) == ["settle"]


async def test_what_a_stopping_process_cut_off_is_served_again(tmp_path: Path, upstream: Upstream) -> None:
    """Half a stream is nobody's answer: it ends in an error event, and its key is free for the next process."""
    async with (
        running_gateway(tmp_path, one(upstream, "tokens-1000+every-10ms"), **PATIENT) as gateway,
        aiohttp.ClientSession() as session,
    ):
        caller = Caller(gateway.base_url, gateway.key, session)
        for served in (1, 2):
            async with caller.post(stream=True) as reply:
                assert reply.status == 200
                assert "idempotent-replayed" not in reply.headers
                await reply.content.readany()
                gateway.cut_off()
                assert b'"draining"' in await reply.read()
            assert len(upstream.arrived()) == served


async def test_openais_client_waits_by_itself(tmp_path: Path, upstream: Upstream) -> None:
    """It repeats a 409 after the time that it is told, and gets the one answer."""
    async with (
        running_gateway(tmp_path, one(upstream, "slow-first-token-300ms"), **PATIENT) as gateway,
        openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=5) as client,
    ):

        async def ask() -> str | None:
            headers = {"Idempotency-Key": "my-key"}
            answer = await client.chat.completions.create(model="main", messages=QUESTION, extra_headers=headers)
            return answer.choices[0].message.content

        assert set(await asyncio.gather(ask(), ask())) == {" w0 w1 w2"}
        assert len(upstream.arrived()) == 1


async def test_another_body_is_refused(tmp_path: Path, upstream: Upstream) -> None:
    """422 whether the first is in flight or answered; a key that is none is a 400 before anything is asked."""
    async with (
        running_gateway(tmp_path, one(upstream, "slow-first-token-300ms"), **PATIENT) as gateway,
        aiohttp.ClientSession() as session,
    ):
        caller = Caller(gateway.base_url, gateway.key, session)
        first = asyncio.ensure_future(caller.ask())
        while not upstream.arrived():  # noqa: ASYNC110 - the log knows no events
            await asyncio.sleep(0.01)
        in_flight = await caller.ask(temperature=0)
        assert (await first).status == 200
        answered = await caller.ask(temperature=0)
        for each in (in_flight, answered):
            assert (each.status, each.code) == (422, "idempotency_key_reused")
        refused = await Caller(gateway.base_url, gateway.key, session, key="two words").ask()
        assert refused.status == 400
        assert len(upstream.arrived()) == 1


async def test_what_cost_nothing_may_be_tried_again(tmp_path: Path, upstream: Upstream) -> None:
    """A refusal, and an upstream that is down: the same key is served anew."""
    async with (
        running_gateway(tmp_path, one(upstream, "error-500"), **PATIENT) as gateway,
        aiohttp.ClientSession() as session,
    ):
        caller = Caller(gateway.base_url, gateway.key, session)
        assert (await caller.ask(model="unknown")).status == 404
        assert (await caller.ask()).status == 502
        before = len(upstream.arrived())
        again = await caller.ask()
        assert again.status == 502
        assert "idempotent-replayed" not in again.headers
        assert len(upstream.arrived()) > before
        assert set(await closings(gateway)) == {"void"}


async def test_a_failure_that_may_have_cost_something_stays(tmp_path: Path, upstream: Upstream) -> None:
    """It is booked at an estimate, so it is told again instead of being paid again."""
    async with (
        running_gateway(tmp_path, one(upstream, "hang"), **QUICK, **PATIENT) as gateway,
        aiohttp.ClientSession() as session,
    ):
        caller = Caller(gateway.base_url, gateway.key, session)
        first = await caller.ask()
        before = len(upstream.arrived())
        again = await caller.ask()
        assert (again.status, again.body) == (first.status, first.body)
        assert first.status == 504
        assert again.headers["x-should-retry"] == "false"
        assert len(upstream.arrived()) == before


async def test_an_answer_that_is_too_large_is_not_served_again(tmp_path: Path, upstream: Upstream) -> None:
    """The caller got it whole; its repeat is told why it cannot have it."""
    async with (
        running_gateway(
            tmp_path, one(upstream, "tokens-100"), idempotency={"timeout_s": 30, "max_answer_bytes": 1_024}
        ) as gateway,
        aiohttp.ClientSession() as session,
    ):
        caller = Caller(gateway.base_url, gateway.key, session)
        assert (await caller.ask(stream=True)).body.endswith(b"data: [DONE]\n\n")
        again = await caller.ask(stream=True)
        assert (again.status, again.code) == (422, "idempotency_answer_not_kept")
        assert len(upstream.arrived()) == 1


async def test_processes_share_their_keys(tmp_path: Path) -> None:
    """Two gateways on one database: one upstream call; and when one is killed, the other takes its key over."""
    with oracle(tmp_path) as seen:
        script = "slow-first-token-1000ms"
        site = await make_site(
            tmp_path,
            [model("main", [seen.deployment(script)])],
            idempotency={"timeout_s": 30, "claim_s": 3},
            accounts={"lookup_timeout_s": 10},
        )
        first, second = start(site, "one"), start(site, "two")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            with contextlib.ExitStack() as stack:
                for server in (first, second):
                    stack.callback(server.kill)
                await asyncio.gather(first.ready(), second.ready())
                both = [Caller(each.base_url, site.key, session) for each in (first, second)]
                told = await asyncio.gather(*(both[index % 2].ask() for index in range(20)))
                assert {each.status for each in told} == {200, 409}
                again = await asyncio.gather(*(caller.ask() for caller in both))
                assert {each.status for each in again} == {200}
                assert len({each.body for each in (*told, *again) if each.status == 200}) == 1
                assert _arrived(seen) == 1

                dying, living = (Caller(each.base_url, site.key, session, "another-key") for each in (first, second))
                lost = asyncio.ensure_future(dying.ask())
                await until(lambda: _arrived(seen) == 2)
                first.kill()
                with contextlib.suppress(aiohttp.ClientError):
                    await lost
                assert (await living.ask()).status == 409
                assert (await living.ask_until_served()).status == 200
                assert _arrived(seen) == 3


def _arrived(seen: Oracle) -> int:
    return sum(line.event == "arrived" for line in seen.seen())
