"""The first token is the caller's, on every surface alike: what comes between is a step of the request's time line."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from dashboards.ui.formats import seconds
from tests.running_gateway import PEPPER, Running, model, running_gateway
from tests.signed_in import Browser, signed_in

_REQUESTS: Final = "/dashboard/teams/team_a/requests"
_CHEAP: Final = {"input": 1, "output": 1}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    """A cheap model whose answer takes a while, a better one, one that fails first, and one in front of which one waits."""
    held = [{"kind": "scripted", "upstream_model": "every-100ms+tokens-4"}]
    better = [{"kind": "scripted", "upstream_model": "ok"}]
    flaky: list[dict[str, Any]] = [
        {"kind": "scripted", "name": "ill", "upstream_model": "error-503"},
        # Asked first only once in many times.
        {"kind": "scripted", "name": "well", "upstream_model": "ok", "weight": 1e-9},
    ]
    models = [
        model("cheap", held, prices=_CHEAP, capability=0.9),
        model("better", better),
        model("flaky", flaky),
    ]
    queues = {"line": {"targets": ["cheap"], "tokens_in_flight": 150}}
    async with running_gateway(tmp_path, models, queues=queues) as found:
        await found.accounts.update_team("team_a", escalation="all")
        yield found


async def asked(running: Running, name: str) -> str:
    """A stream that is read to its end; its request's id."""
    body = {"model": name, "stream": True, "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {running.key}", "x-request-timeout-ms": "60000"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{running.base_url}/chat/completions", json=body, headers=headers) as reply,
    ):
        assert reply.status == 200
        assert b"[DONE]" in await reply.read()
        return reply.headers["x-request-id"]


async def steps(browser: Browser, request_id: str) -> list[str]:
    """The steps of a request's time line."""
    page = html.unescape((await browser.get(f"{_REQUESTS}/{request_id}")).text)
    return re.findall(r'data-label="Step">([^<]+)<', page)


async def test_a_held_answers_first_token_is_the_callers_everywhere(running: Running) -> None:
    """On its page, in the list, in the books, in the operators' figures, in their API, in its log and among the metrics."""
    request_id = await asked(running, "auto")
    (row,) = await running.rows("entry = 'settle'")
    given_s = row["given_us"] / 1_000_000
    assert given_s - row["ttft_us"] / 1_000_000 >= 0.25, "it was held back"
    async with (
        signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as tess,
        signed_in(running, "op@example.com", role="operator") as op,
    ):
        page = html.unescape((await tess.get(f"{_REQUESTS}/{request_id}")).text)
        assert re.search(
            rf"First token.{{0,200}}?{re.escape(seconds(given_s))}.{{0,200}}?held back to be judged", page, re.DOTALL
        )
        told = await steps(tess, request_id)
        assert (
            told.index("cheap asked") < told.index("Held back to be judged") < told.index("First token to the caller")
        )
        (line,) = (await tess.get(f"{_REQUESTS}?format=csv")).text.splitlines()[1:]
        assert str(row["given_us"] / 1_000_000) in line
        overview = html.unescape((await op.get("/dashboard/operations")).text)
        assert re.search(rf"First token.{{0,200}}?{re.escape(seconds(round(given_s, 4)))}", overview, re.DOTALL)
    figures = await api(running, "/v1/operations")
    assert figures["recent"]["ttft_p50_s"] == pytest.approx(given_s, abs=1e-4)
    (cheap,) = [each for each in figures["targets"] if each["target_id"] == "cheap"]
    assert cheap["recent"]["ttft_p50_s"] == pytest.approx(given_s, abs=1e-4)
    assert cheap["recent"]["model_ttft_p50_s"] == pytest.approx(row["ttft_us"] / 1_000_000, abs=1e-4)
    (logged,) = await api(running, f"/spend/logs?request_id={request_id}")
    began, first = (datetime.fromisoformat(logged[name]) for name in ("startTime", "completionStartTime"))
    assert (first - began).total_seconds() == pytest.approx(given_s - row["began_us"] / 1_000_000, abs=1e-5)


async def test_a_retry_is_a_step_and_no_fallback(running: Running) -> None:
    """The list, its filters and the page say Retried; the first token is counted from the request's arrival."""
    request_id = await asked(running, "flaky")
    rows = await running.rows("entry <> 'reserve'")
    assert [row["attempt"] for row in rows] == [1, 2]
    assert rows[1]["given_us"] >= rows[1]["began_us"] >= rows[0]["began_us"] + rows[0]["duration_us"]
    async with signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as tess:
        assert "flaky asked again: a retry" in await steps(tess, request_id)
        for outcome, is_there in (("retried", True), ("fell-back", False)):
            listed = (await tess.get(f"{_REQUESTS}?outcome={outcome}&format=csv")).text
            assert (request_id in listed) is is_there
            assert ("Retried" in listed) is is_there


async def test_a_wait_in_a_queue_is_a_step(running: Running) -> None:
    """Of two that do not fit at once the second waits, and its first token is as late for its caller."""
    await asyncio.gather(asked(running, "cheap"), asked(running, "cheap"))
    first, second = sorted(await running.rows("entry = 'settle'"), key=lambda row: int(row["began_us"]))
    assert first["queued_us"] == 0
    assert second["given_us"] >= second["began_us"] >= second["queued_us"] > 100_000
    async with signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as tess:
        assert "Waited in a queue for a place" in await steps(tess, second["request_id"])
        assert "Waited in a queue for a place" not in await steps(tess, first["request_id"])


async def api(running: Running, path: str) -> Any:
    """A reply to an administrator's key."""
    pepper = Pepper(id=pepper_id(PEPPER.encode()), secret=PEPPER.encode())
    minted = await running.accounts.create_key("team_a", f"ops {path}"[:40], pepper, role="admin")
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {minted.plaintext}"}) as session,
        session.get(f"{running.url}{path}") as reply,
    ):
        assert reply.status == 200, await reply.text()
        return await reply.json()
