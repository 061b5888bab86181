"""What a provider's prompt cache could have saved, over a running gateway: from two requests to the team's page, and answers given again."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web
from sqlalchemy import text

from tests.providers.wires import Provider, provider
from tests.running_gateway import DEAR_PRICES, Running, running_gateway
from tests.signed_in import signed_in

RULES: Final = "Never do anything without asking first, and say what was asked and why.\n" * 200
SECRET: Final = "the merger is on Friday"
PAGE: Final = "/dashboard/teams/team_a"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADE_UP_KEY", "made-up")


class Host:
    """A host that caches the beginning of a prompt as long as it stays the same, by its text."""

    def __init__(self) -> None:
        self.known: list[str] = []

    async def answer(self, _request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        prompt = json.dumps(body["messages"])
        cached = max((self._same(prompt, each) for each in self.known), default=0) // 4
        self.known.append(prompt)
        usage = {
            "prompt_tokens": len(prompt) // 4,
            "completion_tokens": 5,
            "total_tokens": len(prompt) // 4 + 5,
            "prompt_tokens_details": {"cached_tokens": cached if cached >= 1_024 else 0},
        }
        choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
        return web.json_response(
            {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )

    def _same(self, prompt: str, other: str) -> int:
        return next((at for at, (one, two) in enumerate(zip(prompt, other, strict=False)) if one != two), len(other))


def entry(served: Provider) -> dict[str, Any]:
    deployment = {"kind": "openai", "base_url": f"{served.base_url}/v1", "api_key": "env:MADE_UP_KEY"}
    return {
        "model_id": "m",
        "provider": "elsewhere",
        "prices": DEAR_PRICES,
        "max_context_tokens": 32_000,
        "deployments": [deployment],
    }


async def ask(running: Running, system: str, *said: str, **more: Any) -> aiohttp.ClientResponse:
    turns = [{"role": "assistant" if place % 2 else "user", "content": each} for place, each in enumerate(said)]
    body = {"model": "m", "messages": [{"role": "system", "content": system}, *turns], **more}
    headers = {"authorization": f"Bearer {running.key}"}
    async with (
        aiohttp.ClientSession(running.url, headers=headers) as session,
        session.post("/v1/chat/completions", json=body) as reply,
    ):
        assert reply.status == 200, await reply.text()
        return reply


def clocks() -> Iterator[str]:
    return (f"The time is 10:0{minute}:00.\n{RULES}" for minute in range(9))


async def lost(running: Running) -> dict[str, tuple[int, int, int]]:
    """What stands in the table."""
    async with running.engine.connect() as connection:
        found = await connection.execute(text("SELECT cause, requests, tokens, nanousd FROM prompt_cache_loss"))
        return {cause: (requests, tokens, nanousd) for cause, requests, tokens, nanousd in found.all()}


async def test_a_time_in_the_system_prompt_is_found_and_a_stable_one_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest is written when the gateway stops, and no word of a prompt anywhere."""
    caplog.set_level(logging.DEBUG)
    async with provider(Host().answer) as served, running_gateway(tmp_path, [entry(served)]) as running:
        for system in list(clocks())[:3]:
            await ask(running, system, SECRET)
        stable = RULES.replace("Never", "Always")
        await ask(running, stable, SECRET)
        await ask(running, stable, SECRET, "Yes.", "And then?")
    found = await lost(running)
    assert found["looked"][0] == 5
    assert set(found) == {"looked", "time"}
    requests, tokens, nanousd = found["time"]
    assert requests == 2
    assert nanousd == pytest.approx(tokens * 1_250, abs=requests)
    assert SECRET not in caplog.text
    assert not any(SECRET.encode() in each.read_bytes() for each in tmp_path.glob("weighbridge.sqlite*"))  # noqa: ASYNC240
    await running.engine.dispose()


async def test_turned_off_nothing_is_watched(tmp_path: Path) -> None:
    async with (
        provider(Host().answer) as served,
        running_gateway(tmp_path, [entry(served)], telemetry={"prompt_caches": False}) as running,
    ):
        for system in list(clocks())[:2]:
            await ask(running, system, SECRET)
    assert await lost(running) == {}
    await running.engine.dispose()


async def test_an_answer_that_was_given_again_is_among_the_requests(tmp_path: Path) -> None:
    """By itself in the list, with what it saved on its page; it is no request to a provider, so no prompt either."""
    async with (
        provider(Host().answer) as served,
        running_gateway(tmp_path, [entry(served)], cache={"default": True}) as running,
        signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as tess,
    ):
        replies = [await ask(running, "Be kind.", "Hello", temperature=0) for _ in range(2)]
        assert [each.headers["x-weighbridge-cache"] for each in replies] == ["miss", "hit"]
        await running.rows()
        again, first = replies[1].headers["x-request-id"], replies[0].headers["x-request-id"]
        page = (await tess.get(f"{PAGE}/requests?outcome=given-again")).text
        assert again in page
        assert first not in page
        everything = (await tess.get(f"{PAGE}/requests")).text
        assert "Given again" in everything
        assert again in everything
        assert first in everything
        one = (await tess.get(f"{PAGE}/requests/{again}")).text
        assert "what the answer had cost" in one
        assert "they are in no sum" in one
        assert "nobody was asked" in one
        caching = (await tess.get(f"{PAGE}/caching")).text
        assert "outcome=given-again" in caching
        assert (await tess.post(f"{PAGE}/caching/flush", {})).status == 303
