"""Lines that a provider's own batch API answers at half the price, and what becomes of them where it does not."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from sqlalchemy import text

from cost.budgets.budget_reservations import BudgetReservations
from providers.wire import upstream_body
from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_batch import FAST, client, ended, line, results, submit
from tests.scenarios.test_model_facts import budget

SECTION: dict[str, Any] = {**FAST, "providers": True, "provider_poll_s": 0.05}
PRICES = {"input": "2", "output": "10", "batch_discount": "0.5", "version": "test"}
FULL, HALF = 12 * 2_000 + 3 * 10_000, 12 * 1_000 + 3 * 5_000
"""Nano-dollars of the script's twelve tokens in and three out."""


def bought(upstream: Upstream, script: str = "ok", name: str = "bought") -> dict[str, Any]:
    """A model that is sold through a batch API, too."""
    return model(name, [upstream.deployment(script, batch_api="openai")], prices=PRICES)


def client_of(upstream: Upstream) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="k", base_url=upstream.url)


async def usage_of(gateway: Running) -> dict[str, Any]:
    """The team's usage by tier, as finance reads it."""
    address = f"{gateway.base_url}/usage?group_by=tier"
    headers = {"authorization": f"Bearer {gateway.key}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(address) as reply:
        assert reply.status == 200, await reply.text()
        return dict(await reply.json())


async def handed(gateway: Running) -> list[dict[str, Any]]:
    async with gateway.engine.connect() as connection:
        found = await connection.execute(text("SELECT * FROM handed_batch ORDER BY created_us"))
        return [dict(row) for row in found.mappings()]


async def settled_handed(gateway: Running) -> list[dict[str, Any]]:
    """What was handed over, once all of it has come to its end."""
    for _ in range(1_000):
        found = await handed(gateway)
        if found and all(row["state"] == "ended" for row in found):
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"what was handed over does not end: {found}")


async def test_lines_without_haste_go_to_the_providers_batch_api(tmp_path: Path, upstream: Upstream) -> None:
    """Each is answered once, in order, by it alone, and booked once at its price; nothing of it stays there."""
    async with (
        running_gateway(tmp_path, [bought(upstream)], batch=SECTION) as gateway,
        client(gateway) as caller,
        client_of(upstream) as theirs,
    ):
        asked = [line(f"q{number}", "bought") for number in range(30)]
        batch = await ended(caller, await submit(caller, asked, completion_window="background"))
        answers = await results(caller, batch.output_file_id)
        assert [each["custom_id"] for each in answers] == [each["custom_id"] for each in asked]
        (made,) = await settled_handed(gateway)
        rows = await gateway.rows()
        stored = await gateway.batch.batches.get(batch.id)
        usage = await usage_of(gateway)
        left = [each.id async for each in theirs.files.list()]
    assert (made["outcome"], made["lines"], made["answered"], made["unneeded"]) == ("completed", 30, 30, 0)
    closed = [row for row in rows if row["entry"] == "settle"]
    assert Counter(row["request_id"] for row in closed) == Counter(each["response"]["request_id"] for each in answers)
    assert {(row["cost_nanousd"], row["tier"], row["served"], row["flags"]) for row in closed} == {
        (HALF, "batch", 1, '["provider_batch"]')
    }
    assert {row["batch_saved_nanousd"] for row in closed} == {FULL - HALF}
    assert (stored.cost_nanousd, stored.saved_nanousd) == (30 * HALF, 30 * (FULL - HALF))
    assert usage["data"][0]["batch_saved_usd"] == pytest.approx(30 * (FULL - HALF) / 1e9)
    assert len([row for row in rows if row["entry"] == "reserve"]) == len(closed) == 30
    assert all(name.startswith("handed_") for name in upstream.arrived())
    assert len(upstream.arrived()) == 30
    assert not left


@pytest.mark.parametrize("overruns", [False, True])
async def test_lines_are_handed_over_within_their_bounds(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, *, overruns: bool
) -> None:
    """Under a hard budget a line without a limit is given the model's; one for a model that broke its bound is refused, and told why."""
    bodies: list[dict[str, Any]] = []

    def written(*arguments: Any) -> bytes:
        body = upstream_body(*arguments)
        bodies.append(json.loads(body))
        return body

    monkeypatch.setattr("proxy.provider_batch_lines.upstream_body", written)
    entry = bought(upstream) | {"max_output_tokens": 4_096}
    async with running_gateway(tmp_path, [entry], batch=SECTION) as gateway, client(gateway) as caller:
        await budget(gateway.engine, "100.00")
        live = gateway.control.live
        holds = live.line._admission._budgets
        assert isinstance(holds, BudgetReservations)
        await holds.poll()
        if overruns:
            live.overruns.record("bought", "wrote 3,000 tokens where 10 were asked for")
        asked = [line(f"q{number}", "bought") for number in range(3)]
        batch = await ended(caller, await submit(caller, asked, completion_window="background"))
        said = await results(caller, batch.error_file_id if overruns else batch.output_file_id)
        if not overruns:
            await settled_handed(gateway)
    assert len(said) == 3
    if overruns:
        assert all("set aside for hard budgets" in str(each["response"] or each["error"]) for each in said)
        assert not upstream.log
    else:
        assert {body["max_tokens"] for body in bodies} == {4_096}
