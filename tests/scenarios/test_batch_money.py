"""Batches beside budgets: whole or not at all, reserved and given back line by line."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp

from cost.budgets.budget import Budget, limit_from_usd
from cost.budgets.store import BudgetStore
from tests.processes import until
from tests.running_gateway import CHEAP_PRICES, Running, model, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_batch import FAST, client, ended, line, results, submit

# A prompt of an estimated 10 tokens and an answer of at most 100, at 2.5 and 10 dollars a million.
BOUND_OF_ONE_NANOUSD = 1_025_000


async def limit(gateway: Running, usd: str) -> None:
    await BudgetStore(gateway.engine).put(
        Budget(
            budget_id="b1",
            organisation_id="default",
            scope="team",
            scope_id="team_a",
            period="month",
            kind="hard",
            limit_nanousd=limit_from_usd(Decimal(usd)),
        )
    )


def lines(count: int, name: str = "dear") -> list[dict[str, Any]]:
    return [line(f"q{number}", name, max_tokens=100) for number in range(count)]


async def test_a_batch_that_no_budget_has_room_for_costs_nothing(tmp_path: Path, upstream: Upstream) -> None:
    """It fails before its first line, and says what is left; a smaller one goes through, and is booked as batch work."""
    models = [model("dear", [upstream.deployment("ok")])]
    async with running_gateway(tmp_path, models, batch=FAST) as gateway, client(gateway) as caller:
        await limit(gateway, "0.05")
        large = await ended(caller, await submit(caller, lines(100)))
        assert large.status == "failed"
        assert large.errors is not None
        assert large.errors.data is not None
        assert [each.code for each in large.errors.data] == ["budget_exceeded"]
        assert "$0.0500 left" in (large.errors.data[0].message or "")
        assert not upstream.log
        small = await ended(caller, await submit(caller, lines(20)))
        assert small.status == "completed"
        rows = await gateway.rows("entry = 'settle'")
        assert len(rows) == 20
        assert {row["tier"] for row in rows} == {"batch"}
        found = await gateway.batch.batches.get(small.id)
        assert found.cost_nanousd == sum(row["cost_nanousd"] for row in rows)
        assert found.reserved_nanousd == 0
        assert found.bound_nanousd == 20 * BOUND_OF_ONE_NANOUSD


async def test_what_batches_may_still_cost_is_promised_already(tmp_path: Path, upstream: Upstream) -> None:
    """A second batch that would fit alone does not fit beside the first, and does once that was cancelled."""
    models = [model("dear", [upstream.deployment("slow-first-token-200ms+tokens-2")])]
    section = {**FAST, "at_once": 2}
    async with running_gateway(tmp_path, models, batch=section) as gateway, client(gateway) as caller:
        await limit(gateway, "0.05")
        first = await submit(caller, lines(40))
        await until(lambda: bool(upstream.arrived()))
        second = await ended(caller, await submit(caller, lines(20)))
        assert second.status == "failed"
        cancelled = await ended(caller, await caller.batches.cancel(first.id))
        assert cancelled.status == "cancelled"
        dropped = await results(caller, cancelled.error_file_id)
        assert len(await gateway.rows("entry = 'settle'")) == 40 - len(dropped) < 40
        third = await ended(caller, await submit(caller, lines(20)))
        assert third.status == "completed", third.errors


async def test_requests_in_one_body_are_refused_at_once(tmp_path: Path, upstream: Upstream) -> None:
    """With 402, and nothing is kept; what may be queued is told, too."""
    models = [model("dear", [upstream.deployment("ok")])]
    requests = [each["body"] for each in lines(30)]
    async with (
        running_gateway(tmp_path, models, batch={**FAST, "max_queued_tokens": 5_000}) as gateway,
        aiohttp.ClientSession(headers={"authorization": f"Bearer {gateway.key}"}) as session,
        client(gateway) as caller,
    ):
        await limit(gateway, "0.02")
        for many, status, code in ((30, 402, "budget_exceeded"), (60, 429, "token_limit_exceeded")):
            body = {"requests": (requests * 2)[:many]}
            async with session.post(f"{gateway.base_url}/batch", json=body) as reply:
                told = await reply.json()
                assert (reply.status, told["error"]["code"]) == (status, code), told
        assert (await caller.files.list()).data == []
        assert (await caller.batches.list()).data == []
        async with session.post(f"{gateway.base_url}/batch", json={"requests": requests[:10]}) as reply:
            assert reply.status == 200, await reply.text()


async def test_auto_is_bounded_by_the_dearest(tmp_path: Path, upstream: Upstream) -> None:
    """Which target a line goes to shows only when it is asked."""
    models = [
        model("cheap", [upstream.deployment("ok")], capability=0.4, prices=CHEAP_PRICES),
        model("dear", [upstream.deployment("ok")]),
    ]
    async with running_gateway(tmp_path, models, batch=FAST) as gateway, client(gateway) as caller:
        bounds = []
        for name in ("cheap", "dear", "auto"):
            batch = await ended(caller, await submit(caller, lines(3, name)))
            bounds.append((await gateway.batch.batches.get(batch.id)).bound_nanousd or 0)
        assert bounds[0] < bounds[1] == bounds[2]


async def test_what_a_wildcard_stands_for_is_bounded_too(tmp_path: Path, upstream: Upstream) -> None:
    """A name that only a wildcard knows costs what its price says, so a budget without room for it refuses it whole."""
    models = [model("openai/*", [{**upstream.deployment("ok"), "upstream_model": "*"}])]
    async with running_gateway(tmp_path, models, batch=FAST) as gateway, client(gateway) as caller:
        await limit(gateway, "0.05")
        large = await ended(caller, await submit(caller, lines(100, "openai/gpt-4o")))
        assert large.status == "failed"
        assert large.errors is not None
        assert large.errors.data is not None
        assert [each.code for each in large.errors.data] == ["budget_exceeded"]
        assert not upstream.log
