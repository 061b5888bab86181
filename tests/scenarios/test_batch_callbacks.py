"""POST /v1/batch, and how the end of a batch is told: once, signed, to public or listed addresses only."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from pydantic import SecretStr
from standardwebhooks import Webhook

from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from tests.api.webhooks.receiver import receiving
from tests.processes import until
from tests.running_gateway import PEPPER, Running, model, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_batch import FAST, client, ended, line, submit

LISTED: dict[str, Any] = {**FAST, "callback_networks": ["127.0.0.0/8"]}


class Caller:
    """A plain HTTP client with the team's key."""

    def __init__(self, gateway: Running, session: aiohttp.ClientSession) -> None:
        self._url = gateway.base_url
        self._session = session

    async def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        async with self._session.request(method, f"{self._url}{path}", json=body) as reply:
            told = await reply.json()
            assert reply.status == status, told
            return told

    async def done(self, batch_id: str) -> Any:
        async with asyncio.timeout(60):
            while True:
                state = await self.ask("GET", f"/batch/{batch_id}")
                if state["status"] in {"completed", "failed", "expired", "cancelled"}:
                    return state
                await asyncio.sleep(0.05)


def session_of(gateway: Running) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers={"authorization": f"Bearer {gateway.key}"})


async def administrator(gateway: Running) -> aiohttp.ClientSession:
    """With a key of the same team that may change it."""
    config = load(gateway.config_path, Environment(pepper=SecretStr(PEPPER)))
    pepper = peppers(config, Environment(pepper=SecretStr(PEPPER)))[0]
    made = await gateway.accounts.create_key("team_a", "administrator", pepper, role="admin")
    return aiohttp.ClientSession(headers={"authorization": f"Bearer {made.plaintext}"})


def chat(text: str, name: str = "m") -> dict[str, Any]:
    return {"model": name, "messages": [{"role": "user", "content": text}]}


async def test_requests_in_one_body_are_answered_and_told(tmp_path: Path, upstream: Upstream) -> None:
    """The owner's shape on the same engine: an id and an estimate at once, a signed message at the end."""
    models = [model("m", [upstream.deployment("ok")])]
    async with (
        receiving() as receiver,
        running_gateway(tmp_path, models, batch=LISTED) as gateway,
        session_of(gateway) as session,
        client(gateway) as official,
    ):
        caller = Caller(gateway, session)
        requests = [chat("one"), {"custom_id": "mine", "body": chat("two")}, chat("three")]
        asked = {"requests": requests, "callback_url": receiver.url, "priority": "high"}
        submitted = await caller.ask("POST", "/batch", asked)
        # Nothing was measured yet, so only the promise can be told.
        assert submitted["estimate_from"] == "deadline"
        state = await caller.done(submitted["batch_id"])
        assert (state["status"], state["requests"], state["priority"]) == (
            "completed",
            {"total": 3, "completed": 3, "failed": 0},
            "high",
        )
        assert submitted["estimated_completion"] == state["deadline"]
        assert state["estimate_from"] == "done"
        assert state["estimated_completion"] < state["deadline"]
        assert state["cost_usd"] > 0
        text = (await official.files.content(state["output_file_id"])).text
        assert [each.split('"custom_id":"')[1].split('"')[0] for each in text.splitlines()] == [
            "request-1",
            "mine",
            "request-3",
        ]
        await until(lambda: bool(receiver.received))
        (got,) = receiver.received
        secret = (await caller.ask("GET", "/batch-callbacks/secret"))["secret"]
        event = Webhook(secret).verify(got.body, got.headers)
        assert event["type"] == "batch.completed"
        assert event["object"] == "event"
        assert event["data"] == {"id": submitted["batch_id"]}
        unwrapped = official.webhooks.unwrap(got.body, got.headers, secret=secret)
        assert unwrapped.type == "batch.completed"
        assert unwrapped.id.startswith("evt_")


async def test_every_end_is_told_in_its_own_word(tmp_path: Path, upstream: Upstream) -> None:
    """Failed and cancelled, each with one message."""
    models = [model("m", [upstream.deployment("slow-first-token-200ms+tokens-2")])]
    section = {**LISTED, "at_once": 1}
    async with (
        receiving() as receiver,
        running_gateway(tmp_path, models, batch=section) as gateway,
        client(gateway) as caller,
    ):
        options: dict[str, Any] = {"extra_body": {"callback_url": receiver.url}}
        bad = await ended(caller, await submit(caller, [line("a", "m"), line("a", "m")], **options))
        assert bad.status == "failed"
        long = await submit(caller, [line(f"c{number}", "m") for number in range(20)], **options)
        await until(lambda: bool(upstream.arrived()))
        await ended(caller, await caller.batches.cancel(long.id))
        await until(lambda: len(receiver.received) == 2)
        told = {b'"type":"batch.failed"' in each.body: each.body for each in receiver.received}
        assert bad.id.encode() in told[True]
        assert b'"type":"batch.cancelled"' in told[False]
        assert long.id.encode() in told[False]


async def test_a_new_secret_signs_at_once_and_the_old_one_for_a_day(tmp_path: Path, upstream: Upstream) -> None:
    """A receiver that has either of them takes the message. A key that only uses the team may read the secret and not replace it."""
    models = [model("m", [upstream.deployment("ok")])]
    async with (
        receiving() as receiver,
        running_gateway(tmp_path, models, batch=LISTED) as gateway,
        session_of(gateway) as session,
        contextlib.AsyncExitStack() as stack,
    ):
        caller = Caller(gateway, session)
        old = (await caller.ask("GET", "/batch-callbacks/secret"))["secret"]
        refused = await caller.ask("POST", "/batch-callbacks/secret/rotate", status=403)
        assert "--role admin" in refused["error"]["message"]
        assert (await caller.ask("GET", "/batch-callbacks/secret"))["secret"] == old
        admin = Caller(gateway, await stack.enter_async_context(await administrator(gateway)))
        rotated = await admin.ask("POST", "/batch-callbacks/secret/rotate")
        assert rotated["secret"] != old
        assert rotated["previous_until"] > rotated["rotated"]
        submitted = await caller.ask("POST", "/batch", {"requests": [chat("x")], "callback_url": receiver.url})
        await caller.done(submitted["batch_id"])
        await until(lambda: bool(receiver.received))
        (got,) = receiver.received
        for secret in (old, rotated["secret"]):
            Webhook(secret).verify(got.body, got.headers)
        third = (await admin.ask("POST", "/batch-callbacks/secret/rotate"))["secret"]
        with pytest.raises(Exception, match="No matching signature"):
            Webhook(third).verify(got.body, got.headers)


async def test_nothing_is_sent_where_it_may_not_go(tmp_path: Path, upstream: Upstream) -> None:
    """A private address is refused when the batch is made, a name that leads to one when it is called."""
    models = [model("m", [upstream.deployment("ok")])]
    async with (
        receiving() as receiver,
        running_gateway(tmp_path, models, batch=FAST) as gateway,
        session_of(gateway) as session,
    ):
        caller = Caller(gateway, session)
        private = {"requests": [chat("x")], "callback_url": receiver.url.replace("http:", "https:")}
        told = await caller.ask("POST", "/batch", private, status=400)
        assert told["error"]["param"] == "callback_url"
        port = receiver.url.split(":")[2].split("/")[0]
        named = {"requests": [chat("x")], "callback_url": f"https://localhost:{port}/hooks"}
        submitted = await caller.ask("POST", "/batch", named)
        await caller.done(submitted["batch_id"])
        outbox = gateway.callbacks.outbox

        async def was_tried() -> bool:
            state = await outbox.state("callback")
            return bool(state.last_status == 0)

        await until(was_tried)
        assert receiver.received == []


async def test_no_redirect_is_followed(tmp_path: Path, upstream: Upstream) -> None:
    """It is a try that failed, and the message waits for the next one."""
    models = [model("m", [upstream.deployment("ok")])]
    async with (
        receiving() as receiver,
        running_gateway(tmp_path, models, batch=LISTED) as gateway,
        session_of(gateway) as session,
    ):
        receiver.answers.append(web.Response(status=302, headers={"location": receiver.url}))
        caller = Caller(gateway, session)
        submitted = await caller.ask("POST", "/batch", {"requests": [chat("x")], "callback_url": receiver.url})
        await caller.done(submitted["batch_id"])
        outbox = gateway.callbacks.outbox

        async def was_redirected() -> bool:
            state = await outbox.state("callback")
            return bool(state.last_status == 302 and state.waiting == 1)

        await until(was_redirected)
        assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"requests": []}, "no requests"),
        ({"requests": [chat("x"), {"messages": []}]}, "request 2: `body.model` is missing"),
        ({"requests": [{"custom_id": "a", "body": chat("x")}, {"custom_id": "a", "body": chat("y")}]}, "request 2"),
        ({"requests": [chat("x")], "priority": "highest"}, "priority"),
        ({"requests": [chat("x")], "callback_url": "ftp://example.com"}, "callback_url"),
        ({}, "requests"),
    ],
)
async def test_what_is_wrong_is_told_before_anything_is_kept(
    tmp_path: Path, upstream: Upstream, body: Any, told: str
) -> None:
    """With the number of the request."""
    models = [model("m", [upstream.deployment("ok")])]
    async with running_gateway(tmp_path, models, batch=FAST) as gateway, session_of(gateway) as session:
        answer = await Caller(gateway, session).ask("POST", "/batch", body, status=400)
        assert told in answer["error"]["message"]
        async with openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url) as official:
            assert (await official.batches.list()).data == []
            assert (await official.files.list()).data == []


async def test_a_measured_speed_tells_when_the_next_batch_is_done(tmp_path: Path, upstream: Upstream) -> None:
    """Long before its deadline."""
    models = [model("m", [upstream.deployment("slow-first-token-100ms+tokens-2")])]
    async with (
        running_gateway(tmp_path, models, batch={**FAST, "at_once": 4}) as gateway,
        session_of(gateway) as session,
    ):
        caller = Caller(gateway, session)
        first = await caller.ask("POST", "/batch", {"requests": [chat(f"x{number}") for number in range(60)]})
        await caller.done(first["batch_id"])
        second = await caller.ask("POST", "/batch", {"requests": [chat(f"y{number}") for number in range(30)]})
        assert second["estimate_from"] == "measured speed"
        state = await caller.done(second["batch_id"])
        assert second["estimated_completion"] < state["deadline"]
        found = await gateway.batch.batches.get(second["batch_id"])
        assert found.estimated_us is not None
