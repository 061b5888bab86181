"""What tools find is what the usage API tells, and every link of it leads to a page that its asker may open."""

import datetime as dt
import re
from collections.abc import AsyncIterator
from decimal import Decimal
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import msgspec
import pytest

from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from cost.calendar import Calendar
from cost.calendars import set_calendar
from cost.times import DAY_US, HOUR_US, MINUTE_US, first_and_last, wall_us
from tests.api.admin_api.calls import call, key_of
from tests.api.ask.asked_model import AskedModel, asked_model, calls, says
from tests.api.ask.test_ask import ask
from tests.cost.ledger.in_files import put_in_files
from tests.dashboards.pages.teams import asked, keep
from tests.running_gateway import CHEAP_PRICES, Running, model, running_gateway
from tests.signed_in import signed_in

_ALL: list[tuple[str, dict[str, Any]]] = [
    ("teams", {}),
    ("usage", {"by": ["team"]}),
    ("movers", {}),
    ("movers", {"by": ["team"], "against": "week"}),
    ("movers", {"by": ["tag", "end_user"], "period": "yesterday"}),
    ("search", {"line": "tag-1 status:2xx"}),
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


async def test_what_changed_is_that_of_the_movers(running: Running, mind: AskedModel) -> None:
    """With its causes and its sentence, whose figures may be told; what was not there before has no percentage."""
    now_us = wall_us() - 2 * HOUR_US
    await keep(running, [asked(f"new{at}", tag="risen", cost_nanousd=10**9, at_us=now_us) for at in range(3)])
    mind.plays(calls(("movers", {"by": ["tag"]})), says("It rose by $3.00 by risen."))
    reply = (await ask(running, running.key)).body
    assert reply["unverified"] == []
    (step,) = reply["steps"]
    first = step["rows"][0]
    assert (first["tag"], first["cost_change_usd"], first["requests_change"]) == ("risen", 3, 3)
    assert first["text"].startswith("+$3.00: tag “risen”, new since")
    assert "cost_change_percent" not in first
    told = await usage_of(running, running.key, "/v1/usage/movers?group_by=tag")
    assert [(row["tag"], float(row["cost_change_usd"])) for row in step["rows"]] == [
        (row["group"]["tag"], row["change_usd"]) for row in told["data"]
    ]
    assert float(step["total"]["cost_change_usd"]) == told["total"]["change_usd"]


async def test_requests_are_searched(running: Running, mind: AskedModel) -> None:
    """As on their page, by id or by words; nothing of other teams is found, and what was not understood is told."""
    mind.plays(
        calls(
            ("search", {"line": "req_team_a3"}),
            ("search", {"line": "tag:tag-1 cost>0 colour:red", "rows": 30}),
            ("search", {"line": "id:req_team_b3"}),
            ("search", {"line": "outcome:lost"}),
        ),
        says("Done."),
    )
    one, some, theirs, wrong = (await ask(running, running.key)).body["steps"]
    assert [row["request_id"] for row in one["rows"]] == ["req_team_a3"]
    assert some["rows"] == []
    assert "`colour` is no field" in mind.results[1]
    assert theirs["rows"] == []
    assert "There is no outcome" in wrong["problem"]
    mind.plays(calls(("search", {"line": "tag:tag-1", "rows": 30})), says("Done."))
    (found,) = (await ask(running, running.key)).body["steps"]
    assert {row["request_id"] for row in found["rows"]} == {f"req_team_a{at}" for at in range(1, 20, 3)}
    assert found["href"].endswith("/requests?q=tag%3Atag-1")


async def test_requests_in_files_are_told(running: Running, mind: AskedModel) -> None:
    """To the model, and on the page, by whatever way requests are looked for."""
    await put_in_files(running.engine, wall_us() - 70 * DAY_US)
    mind.plays(
        calls(
            ("requests", {"period": "last_90_days", "rows": 30}),
            ("search", {"line": "tag:tag-1"}),
            ("search", {"line": "id:req_gone"}),
            ("requests", {"period": "today"}),
        ),
        says("Done."),
    )
    await ask(running, running.key)
    assert ["puts them back" in each for each in mind.results] == [True, True, True, False]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata", "Pacific/Kiritimati"])
async def test_days_are_those_of_the_organisation(running: Running, mind: AskedModel, zone: str) -> None:
    """What was spent yesterday there, and what changed, is what the usage API tells; links to requests are of the very time."""
    calendar = Calendar(zone)
    await set_calendar(running.engine, "default", zone, "monday", calendar.start(dt.date(2026, 1, 1)), 0)
    day = calendar.day(wall_us()) - dt.timedelta(days=1)
    start_us, end_us = calendar.days(day, day)
    moments = (start_us - 1, start_us, start_us + 20 * MINUTE_US, end_us - 1, end_us)
    await keep(
        running, [asked(f"edge{at}", at_us=at, tag="edge", cost_nanousd=2**place) for place, at in enumerate(moments)]
    )
    looks = ("usage", {"period": "yesterday", "by": ["tag"]}), ("movers", {"period": "yesterday", "by": ["tag"]})
    mind.plays(calls(*looks, ("requests", {"period": "yesterday", "tag": "edge"})), says(f"On {day}."))
    reply = (await ask(running, running.key)).body
    assert reply["unverified"] == []
    assert zone in mind.bodies[0]["messages"][0]["content"]
    used, moved, found = reply["steps"]
    after = day + dt.timedelta(days=1)
    told = await usage_of(running, running.key, f"/v1/usage?start={day}&end={after}&group_by=tag")
    costs = {row["tag"]: row["cost_usd"] for row in told["data"]}
    assert {row["tag"]: float(row["cost_usd"]) for row in used["rows"] if row["tag"] in costs} == costs
    assert {row["tag"]: float(row["cost_usd"]) for row in moved["rows"]}["edge"] == costs["edge"] == 14e-9
    assert {row["request_id"] for row in found["rows"]} == {f"edge{at}" for at in moments[1:4]}
    (first, last) = (parse_qs(urlsplit(found["href"]).query)[name][0] for name in ("from", "to"))
    assert (first, last) == first_and_last(start_us, end_us)
    assert parse_qs(urlsplit(moved["href"]).query)["from"] == [f"{day}"]


async def test_an_unknown_cost_is_unknown(running: Running, mind: AskedModel) -> None:
    """To the model too: never 0."""
    await keep(running, [asked("free", tag="unpriced", cost_nanousd=None)])
    mind.plays(calls(("usage", {"by": ["tag"], "tag": "unpriced"})), says("It cost $0."), says("It cost $0."))
    reply = await ask(running, running.key)
    assert "unknown, as attempts have no price" in mind.results[0]
    assert reply.body["unverified"] == ["$0"]
