"""Events of a running gateway: what a receiver is told of a request, and what a dead one costs callers."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]
import openai
from aiohttp import web

from cost.events.event import FINISHED, schema
from tests.api.webhooks.receiver import Receiver, receiving
from tests.cost.ledger.verified import verify
from tests.running_gateway import Running, model, running_gateway

_SCRIPTED: Final[Any] = [{"kind": "scripted", "upstream_model": "ok"}]


async def ask(running: Running, words: str = "Say hello.", model_id: str = "small") -> str:
    async with openai.AsyncOpenAI(api_key=running.key, base_url=running.base_url, max_retries=0) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=model_id,
            messages=[{"role": "user", "content": words}],
            user="eu-17",
            extra_headers={"x-weighbridge-tag": "checkout"},
        )
    return raw.headers["x-request-id"]


async def told(receiver: Receiver, count: int) -> list[dict[str, Any]]:
    """The first events that came, once there are so many."""
    async with asyncio.timeout(30):
        while len(found := [each for got in receiver.received for each in json.loads(got.body)]) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


def sinks(*urls: str) -> dict[str, Any]:
    return {
        "source": "https://gateway.example.com",
        "sinks": [{"name": f"lake{number}", "kind": "http", "url": url} for number, url in enumerate(urls)],
    }


async def test_a_finished_request_is_one_event(tmp_path: Path) -> None:
    """With what the ledger says of it, by the published schema, and not a word of the prompt; the sum is that of the books."""
    async with (
        receiving() as receiver,
        running_gateway(tmp_path, [model("small", _SCRIPTED)], events=sinks(receiver.url)) as running,
    ):
        ids = [await ask(running, f"a secret word {number}") for number in range(3)]
        events = await told(receiver, 3)
        rows = await running.rows("entry = 'settle'")
        assert await verify(running.engine, rows[0]["at_us"], rows[-1]["at_us"] + 1) == []
    assert {each["data"]["request_id"] for each in events} == {*ids}
    assert [each["sequence"] for each in events] == [f"{number:020}" for number in (1, 2, 3)]
    validator = jsonschema.Draft202012Validator(schema())
    for event in events:
        validator.validate(event)
        data = event["data"]
        assert (event["type"], event["subject"], event["source"]) == (FINISHED, "team_a", "https://gateway.example.com")
        assert (data["model"], data["provider"], data["tag"], data["status"]) == ("small", "scripted", "checkout", 200)
        assert (data["served"], data["attempt"], data["end_user"]) == (True, 1, "eu-17")
        assert data["cost_nanousd"] > 0
    assert sum(each["data"]["cost_nanousd"] for each in events) == sum(row["cost_nanousd"] for row in rows)
    assert b"secret" not in b"".join(each.body for each in receiver.received)


async def test_a_dead_sink_costs_no_caller_anything(tmp_path: Path) -> None:
    """One hangs, one is not there, and callers and a third receiver go on as before; what waits is told as lag."""
    async with receiving() as hanging, receiving() as receiver:
        held = asyncio.Event()
        hanging.taken = held.wait
        sections = {"events": sinks(hanging.url, "http://127.0.0.1:1/", receiver.url)}
        async with running_gateway(tmp_path, [model("small", _SCRIPTED)], **sections) as running:
            await ask(running)
            await told(receiver, 1)
            began = time.perf_counter()
            for _ in range(20):
                await ask(running)
            took_s = time.perf_counter() - began
            assert len(await told(receiver, 21)) == 21
            page = await running_metrics(running)
            held.set()
    # A time-out of a sink is 30 s: had one caller waited for it, this would be longer.
    assert took_s < 20
    assert 'weighbridge_events_total{result="sent",sink="lake2"} 21.0' in page
    assert 'weighbridge_event_failures_total{sink="lake1"}' in page


async def running_metrics(running: Running) -> str:
    import httpx

    async with httpx.AsyncClient() as client:
        return (await client.get(f"{running.url}/metrics")).text


async def test_a_receiver_that_was_away_gets_all_in_order(tmp_path: Path) -> None:
    """It fails, asks for patience, and then takes everything; the numbers have no gap."""
    async with receiving() as receiver:
        receiver.answers = [web.Response(status=500), web.Response(status=503, headers={"retry-after": "1"})]
        async with running_gateway(tmp_path, [model("small", _SCRIPTED)], events=sinks(receiver.url)) as running:
            for _ in range(5):
                await ask(running)
            async with asyncio.timeout(60):
                while len(receiver.received) < 3 or receiver.answers:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0)
            # The first two were not taken.
            receiver.received[:] = receiver.received[2:]
            events = await told(receiver, 5)
    assert [int(each["sequence"]) for each in events] == [1, 2, 3, 4, 5]
    assert len({each["id"] for each in events}) == 5
