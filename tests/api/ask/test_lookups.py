"""What tools find is what the usage API tells, and every link of it leads to a page that its asker may open."""

import datetime as dt
import re
from collections.abc import AsyncIterator
from decimal import Decimal
from html import unescape
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from cost.times import DAY_US, wall_us
from tests.api.admin_api.calls import call, key_of
from tests.api.ask.asked_model import AskedModel, asked_model, calls, says
from tests.api.ask.test_ask import ask
from tests.dashboards.pages.teams import asked, keep
from tests.running_gateway import CHEAP_PRICES, Running, model, running_gateway
from tests.signed_in import signed_in

_ALL: list[tuple[str, dict[str, Any]]] = [
    ("teams", {}),
    ("usage", {"by": ["team"], "compare": True}),
    ("usage", {"by": ["key", "model"]}),
    ("usage", {"by": ["day", "tag"], "period": "last_30_days"}),
    ("usage", {"by": ["hour"], "period": "yesterday"}),
    ("usage", {"by": ["provider"], "period": "this_month"}),
    ("usage", {"by": ["tier"], "period": "last_month"}),
    ("usage", {"by": ["end_user"]}),
    ("requests", {"order": "slowest"}),
    ("refusals", {}),
    ("budgets", {}),
    ("prices", {}),
    ("savings", {}),
    ("incidents", {}),
]


@pytest.fixture
async def mind() -> AsyncIterator[AskedModel]:
    async with asked_model() as found:
        yield found


@pytest.fixture
async def running(tmp_path: Path, mind: AskedModel) -> AsyncIterator[Running]:
    deployment = {"kind": "scripted", "upstream_model": "ok"}
    hidden = model("hidden", [deployment], prices=CHEAP_PRICES, capabilities=["json"])
    async with running_gateway(tmp_path, [mind.entry(), hidden], cost={"reference_target": "hidden"}) as found:
        await found.accounts.create_team("team_b", "Team B")
        await found.accounts.update_team("team_a", allowed_models=["asked"])
        key_id = (await found.accounts.list_keys("team_a"))[0].key_id
        now_us = wall_us()
        await keep(
            found,
            [
                asked(
                    f"req_{team}{at}",
                    team_id=team,
                    key_id=key_id if team == "team_a" else "key_gone",
                    tag=f"tag-{at % 3}",
                    at_us=now_us - at * DAY_US,
                )
                for team in ("team_a", "team_b")
                for at in range(20)
            ],
        )
        await BudgetStore(found.engine).put(
            Budget(
                budget_id="b-1",
                organisation_id="default",
                scope="team",
                scope_id="team_a",
                period="month",
                kind="soft",
                limit_nanousd=10**9,
                on_exhausted="refuse",
                webhook="",
            )
        )
        assert (await call(found, "PUT", "/ask", await key_of(found, "admin"), {"team_id": "ask"})).status == 200
        yield found


@pytest.mark.parametrize(
    ("role", "teams"),
    [
        ("admin", {}),
        ("finance", {}),
        ("", {"team_a": "member"}),
        ("", {"team_a": "member", "team_b": "admin"}),
        ("", {}),
        ("operator", {}),
    ],
    ids=["admin", "finance", "member", "of two teams", "of none", "operator"],
)
async def test_every_link_leads_to_a_page_that_the_asker_may_open(
    running: Running, mind: AskedModel, role: Any, teams: Any
) -> None:
    """Of every tool, for each kind of person; nobody sees another's team."""
    async with signed_in(running, "eve@example.com", role=role, teams=teams) as eve:
        links: set[str] = set()
        for at in range(0, len(_ALL), 4):
            mind.plays(calls(*_ALL[at : at + 4]), says("Done."))
            page = (await eve.post("/dashboard/ask", {"question": "What?"})).text
            assert "could not be looked up" not in page
            assert "Done." in page
            found = page[page.index('id="steps-heading"') : page.index('id="answer"')]
            links |= {unescape(href) for href in re.findall(r'href="([^"]+)"', found)}
            if not teams and not role:
                assert "team_a" not in found
        refused = {href: status for href in links if (status := (await eve.get(href)).status) not in {200, 303}}
        assert refused == {}
        assert links or not (role or teams)


async def usage_of(running: Running, key: str, path: str) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{running.url}{path}", headers={"authorization": f"Bearer {key}"}) as reply,
    ):
        assert reply.status == 200
        return msgspec.json.decode(await reply.read())


async def test_figures_are_those_of_the_usage_api(running: Running, mind: AskedModel) -> None:
    """Costs and counts by model of the same days, and what budgets and prices say."""
    finance = await key_of(running, "finance")
    mind.plays(
        calls(("usage", {"by": ["team"], "period": "last_7_days"}), ("budgets", {}), ("prices", {"model": "hid"})),
        says("Done."),
    )
    steps = (await ask(running, finance)).body["steps"]
    days = re.findall(r"\d{4}-\d\d-\d\d", steps[0]["href"])
    after = msgspec.json.decode(f'"{days[1]}T00:00:00Z"', type=dt.datetime)
    end = (after + dt.timedelta(days=1)).date().isoformat()
    told = await usage_of(running, finance, f"/v1/usage?start={days[0]}&end={end}&group_by=team")
    kept = {row["team_id"]: (row["cost_usd"], row["requests"]) for row in told["data"] if row["team_id"] != "ask"}
    found = {row["team_id"]: (float(row["cost_usd"]), row["requests"]) for row in steps[0]["rows"]}
    assert {team: found[team] for team in kept} == kept
    budgets = (await usage_of(running, finance, "/v1/budgets"))["data"]
    assert {(each["scope_id"], each["limit_usd"]) for each in budgets} == {
        (row["of"], float(row["limit_usd"])) for row in steps[1]["rows"]
    }
    assert steps[2]["rows"][0]["input_usd_per_million_tokens"] == Decimal("0.4")


async def test_a_team_reads_prices_of_its_own_models_alone(running: Running, mind: AskedModel) -> None:
    """As on its pages."""
    mind.plays(calls(("prices", {})), says("Done."))
    (step,) = (await ask(running, running.key)).body["steps"]
    assert [row["model"] for row in step["rows"]] == ["asked"]


async def test_the_days_before_are_compared(running: Running, mind: AskedModel) -> None:
    """With the change in dollars and percent; what was not there before has no percentage."""
    now_us = wall_us()
    await keep(running, [asked(f"new{at}", tag="risen", cost_nanousd=10**9, at_us=now_us) for at in range(3)])
    mind.plays(calls(("usage", {"by": ["tag"], "compare": True})), says("Done."))
    (step,) = (await ask(running, running.key)).body["steps"]
    first = step["rows"][0]
    assert (first["tag"], first["cost_change_usd"], first["requests_change"]) == ("risen", 3, 3)
    assert "cost_change_percent" not in first
    total = step["total"]
    assert total["cost_change_usd"] == total["cost_usd"] - total["cost_before_usd"]


async def test_an_unknown_cost_is_unknown(running: Running, mind: AskedModel) -> None:
    """To the model too: never 0."""
    await keep(running, [asked("free", tag="unpriced", cost_nanousd=None)])
    mind.plays(calls(("usage", {"by": ["tag"], "tag": "unpriced"})), says("It cost $0."), says("It cost $0."))
    reply = await ask(running, running.key)
    assert "unknown, as attempts have no price" in mind.results[0]
    assert reply.body["unverified"] == ["$0"]
