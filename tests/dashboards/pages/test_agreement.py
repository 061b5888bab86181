"""The ledger, its roll-ups, the API, the files and the pages tell the same, to the nano-dollar."""

import contextlib
import csv
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from decimal import Decimal
from html import unescape
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from accounts.store import DEFAULT_ORGANISATION, AccountStore
from cost.close.month import Month, month_of
from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from cost.ledger.verify import check
from cost.prices import nanousd, usd
from cost.times import DAY_US, HOUR_US, MINUTE_US, day_of, wall_us
from dashboards.ui.formats import exact_money, exact_share, money
from gateway.configuration.environment import Environment
from gateway.configuration.settings import load
from gateway.database import make_engine
from gateway.demo.company import TEAMS
from gateway.demo.history import write_history
from gateway.demo.sample_config import Addresses, write_sample_config
from proxy.settle.refusals.counting import RefusalsTold, Refused, RefusedCount, RefusedRequest
from proxy.settle.refusals.store import RefusalStore
from tests.cost.entries import reserve
from tests.cost.reports.two_organisations import booked, idle
from tests.postgres import newest_database
from tests.running_gateway import PEPPER, Running, gateway_at
from tests.signed_in import Answer, Browser, signed_in

pytestmark = pytest.mark.asyncio(loop_scope="module")

_PASSWORD: Final = "four scales and a bridge"
_REQUESTS: Final = 150
_SECRET: Final = "whsec_" + "A" * 32
_PEPPER: Final = Pepper(id=pepper_id(PEPPER.encode()), secret=PEPPER.encode())
_ODD: Final = "Support: =1+1"
_REFUSED: Final = (("rate_limit_exceeded", 429, 37), ("budget_exhausted", 402, 5), ("queue_full", 503, 2))
"""Refusals of a team in this minute: reason, status and how many."""
_SUMS: Final = ("requests", "served", "input_tokens", "output_tokens", "cost_nanousd", "baseline_nanousd")


class Sample(msgspec.Struct, frozen=True):
    """A month of a company behind a running gateway, and who looks at it: the books by key, the pages by session."""

    running: Running
    session: aiohttp.ClientSession
    key: str
    pages: Browser
    start_us: int
    end_us: int
    """Thirty days, today included, as every page has them that is not told others."""

    @property
    def days(self) -> dict[str, str]:
        return {"start": day_of(self.start_us).isoformat(), "end": day_of(self.end_us).isoformat()}

    async def api(self, path: str, query: Mapping[str, str] | None = None, accept: str = "application/json") -> Any:
        """A reply of the API to finance: JSON with money as it was written, or the lines of a CSV."""
        headers = {"authorization": f"Bearer {self.key}", "accept": accept}
        async with self.session.get(self.running.url + path, params=query or {}, headers=headers) as got:
            told = await got.text()
            assert got.status == 200, told[:500]
        return rows(told) if accept == "text/csv" else json.loads(told, parse_float=Decimal)

    async def file(self, path: str) -> list[dict[str, str]]:
        """A table of a page as a CSV."""
        answer: Answer = await self.pages.get(path)
        assert answer.status == 200, answer.text[:500]
        assert answer.headers["content-type"].startswith("text/csv"), path
        return rows(answer.text)

    async def page(self, path: str) -> str:
        """A page, as a person reads it."""
        answer: Answer = await self.pages.get(path)
        assert answer.status == 200, answer.text[:500]
        return unescape(answer.text)

    async def ledger(self, team_id: str | None = None, month: Month | None = None) -> dict[str, int]:
        """The sums of the entries themselves: the source of everything else."""
        return await self._sums(_LEDGER, team_id, month)

    async def rolled(self, team_id: str | None = None) -> dict[str, int]:
        """The same of the days' roll-up."""
        return await self._sums(_ROLLED, team_id)

    async def by_origin(self, start_us: int, end_us: int, team_id: str | None = None) -> dict[str, int]:
        """What the entries of a time cost, by origin."""
        query = (
            "SELECT origin, sum(cost_nanousd) FROM ledger_entry WHERE organisation_id = :org AND entry <> 'reserve' "
        )
        query += "AND at_us >= :start AND at_us < :end" + (" AND team_id = :team" if team_id else "")
        given = {"org": DEFAULT_ORGANISATION, "start": start_us, "end": end_us, "team": team_id}
        async with self.running.engine.connect() as connection:
            rows = await connection.execute(text(f"{query} GROUP BY origin"), given)
            return {origin: int(cost or 0) for origin, cost in rows}

    async def _sums(self, query: str, team_id: str | None, month: Month | None = None) -> dict[str, int]:
        start_us, end_us = (month.start_us, month.end_us) if month else (self.start_us, self.end_us)
        given = {"org": DEFAULT_ORGANISATION, "start": start_us, "end": end_us, "team": team_id}
        where = "" if team_id is None else " AND team_id = :team"
        async with self.running.engine.connect() as connection:
            row = (await connection.execute(text(query + where), given)).one()
        return {name: int(value or 0) for name, value in zip(_SUMS, row, strict=True)}


_LEDGER: Final = """
    SELECT count(DISTINCT CASE WHEN entry IN ('settle', 'expire') AND origin = 'caller' THEN request_id END),
        sum(CASE WHEN entry = 'settle' AND served AND origin = 'caller' THEN 1 ELSE 0 END),
        sum(input_tokens), sum(output_tokens), sum(cost_nanousd), sum(baseline_nanousd)
    FROM ledger_entry WHERE entry <> 'reserve' AND organisation_id = :org AND at_us >= :start AND at_us < :end
"""
_ROLLED: Final = """
    SELECT sum(requests), sum(served), sum(input_tokens), sum(output_tokens), sum(cost_nanousd), sum(baseline_nanousd)
    FROM rollup_day WHERE organisation_id = :org AND start_us >= :start AND start_us < :end
"""


def rows(told: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(told)))


def total(lines: Iterable[Mapping[str, Any]], column: str) -> Decimal:
    return sum((Decimal(line[column] or 0) for line in lines), Decimal(0))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "postgresql"])
async def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sample]:
    """With what such a month does not have by itself: no price, no baseline, no key, a correction, a reconciliation.

    The tests only read, so one serves them all.
    """
    folder = tmp_path_factory.mktemp("sample")
    async with newest_database(request.param, folder, request) as url, _engine(url) as engine:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setenv("SAMPLE_WEBHOOK_SECRET", _SECRET)
            async with _running_sample(folder, url, engine) as made:
                yield made


@contextlib.asynccontextmanager
async def _engine(url: str) -> AsyncIterator[AsyncEngine]:
    engine = make_engine(url)
    try:
        yield engine
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def _running_sample(folder: Path, database_url: str, engine: AsyncEngine) -> AsyncIterator[Sample]:
    now_us = wall_us()
    path = write_sample_config(folder, Addresses(), day_of(now_us - 30 * DAY_US))
    environment = Environment(data_dir=folder, pepper=SecretStr(PEPPER), database_url=SecretStr(database_url))
    config = load(path, environment)
    await write_history(engine, config, _PEPPER, end_us=now_us, password=_PASSWORD, requests=_REQUESTS, seed=20)
    await LedgerStore(engine).insert(_more(now_us))
    await RefusalStore(engine).keep(_refusals(now_us))
    minted = await AccountStore(engine).create_key("support", "books", _PEPPER, role="finance")
    end_us = now_us - now_us % DAY_US + DAY_US
    async with (
        gateway_at(path, environment, engine, minted.plaintext) as running,
        aiohttp.ClientSession() as session,
        signed_in(running, "controller@northwind.example", role="admin") as pages,
    ):
        yield Sample(running, session, minted.plaintext, pages, end_us - 30 * DAY_US, end_us)
        assert wall_us() < end_us, "midnight (UTC) passed while this ran; run it again"


def _more(now_us: int) -> list[Entry]:
    ours = {"organisation_id": DEFAULT_ORGANISATION, "team_id": "support", "at_us": now_us - 3 * DAY_US}
    lately = {**ours, "at_us": now_us - HOUR_US}
    free = {"cost_nanousd": None, "input_nanousd": 0, "cached_input_nanousd": 0, "output_nanousd": 0}
    posted = {**ours, **free, "entry": "adjust", "status": 0, "served": False, "usage_source": "none"}
    posted |= {"input_tokens": 0, "cached_input_tokens": 0, "output_tokens": 0}
    changes: dict[str, dict[str, Any]] = {
        "odd-unpriced": {**ours, **free},
        "odd-alone": {**lately, "tag": _ODD},
        "odd-failed": {**ours, "served": False, "status": 502},
        "odd-correction": {**posted, "origin": "correction", "cost_nanousd": -7, "input_nanousd": -7},
        "odd-difference": {**posted, "origin": "reconciliation", "cost_nanousd": 3, "input_nanousd": 3, "key_id": ""},
        "odd-adjustment": {**posted, "origin": "true-up", "cost_nanousd": -5, "output_nanousd": -5},
        "odd-rival": {**lately, "organisation_id": "fjord", "team_id": "fjord-lab"},
    }
    entries = [booked(name, **{**each, "baseline_nanousd": None}) for name, each in changes.items()]
    begun = ("organisation_id", "team_id", "key_id", "alias", "at_us")
    reserved = [
        reserve(each.request_id, **{name: getattr(each, name) for name in begun})
        for each in entries
        if each.entry == "settle"
    ]
    return [
        *reserved,
        *entries,
        idle("odd-idle", organisation_id=DEFAULT_ORGANISATION, at_us=ours["at_us"], cost_nanousd=1, input_nanousd=1),
    ]


def _refusals(now_us: int) -> RefusalsTold:
    who = {"organisation_id": DEFAULT_ORGANISATION, "team_id": "support", "key_id": "key_1", "model": "gpt-4o"}
    counts = [
        RefusedCount(Refused(minute_us=now_us - now_us % MINUTE_US, reason=reason, status=status, **who), count)
        for reason, status, count in _REFUSED
    ]
    requests = [
        RefusedRequest(
            request_id=f"refused-{status}-{number}", at_us=now_us, reason=reason, status=status, message="No.", **who
        )
        for reason, status, count in _REFUSED
        for number in range(count)
    ]
    return RefusalsTold("sample", tuple(counts), 1, tuple(requests))


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
async def test_a_team_s_figures_are_its_ledger_s(sample: Sample, every: int) -> None:
    """Requests, tokens, cost and saving of each team: entries, roll-ups, API, its pages, finance's, and their files."""
    verified = await check(sample.running.engine, sample.start_us, sample.end_us, now_us=wall_us())
    assert verified.differences == 0
    assert await sample.ledger() == await sample.rolled()
    listed = {row["team_id"]: row for row in await sample.file("/dashboard/teams?format=csv&table=teams")}
    shown = {row["id"]: row for row in await sample.file("/dashboard/finance/showback?format=csv&table=showback")}
    assert set(listed) >= {team.team_id for team in TEAMS}
    for number, team in enumerate(TEAMS):
        assert await sample.ledger(team.team_id) == await sample.rolled(team.team_id)
        # The odd ones are the support team's.
        if number % every == 0 or team.team_id == "support":
            await _team_agrees(sample, team.team_id, listed[team.team_id], shown[team.team_id])


async def _team_agrees(sample: Sample, team_id: str, listed: Mapping[str, str], shown: Mapping[str, str]) -> None:
    path, found, named = f"/dashboard/teams/{team_id}", await sample.ledger(team_id), {"team_id": team_id}
    cost = usd(found["cost_nanousd"])
    saved = usd(found["baseline_nanousd"]) - cost
    api = (await sample.api("/v1/usage", {**sample.days, **named}))["totals"]
    by_key = await sample.api("/v1/usage", {**sample.days, **named, "group_by": "key"}, "text/csv")
    models, sources = [await sample.file(f"{path}?format=csv&table={name}") for name in ("models", "sources")]
    costs = {api["cost_usd"], *(total(each, "cost_usd") for each in (by_key, models, sources))}
    assert costs | {Decimal(listed["cost_usd"]), Decimal(shown["total_usd"])} == {cost}, team_id
    assert {Decimal(listed["saved_usd"]), Decimal(shown["saved_usd"]), api["savings_usd"]} == {saved}, team_id
    for name in ("requests", "input_tokens", "output_tokens"):
        told = {total(each, name) for each in (by_key, sources)} | {Decimal(shown[name]), Decimal(api[name])}
        assert told == {found[name]}, (team_id, name)
    assert int(listed["requests"]) == found["requests"]
    page = await sample.page(path)
    for amount in (saved, *await _to_date(sample, named)):
        assert exact_money(nanousd(amount)) in page, (team_id, amount)


async def _to_date(sample: Sample, named: Mapping[str, str]) -> list[Decimal]:
    """Today's and this month's cost of a team, as the API tells them."""
    today = day_of(sample.end_us - DAY_US)
    starts = [{"start": first.isoformat(), "end": sample.days["end"]} for first in (today, today.replace(day=1))]
    return [Decimal((await sample.api("/v1/usage", {**days, **named}))["totals"]["cost_usd"]) for days in starts]


async def test_the_bill_is_the_ledger_however_it_is_divided(sample: Sample) -> None:
    """Showback with its idle row, usage, FOCUS, OpenAI's shape and the months' statements, of the API and of pages."""
    bill = usd((await sample.ledger())["cost_nanousd"])
    asked = f"from={sample.days['start']}&to={day_of(sample.end_us - 1).isoformat()}"
    showback = "/dashboard/finance/showback?format=csv&table=showback"
    for by in ("team", "key", "model", "provider", "tier", "tag"):
        found = await sample.file(f"{showback}&by={by}")
        assert total(found, "total_usd") == bill, by
        assert found == await sample.file(f"{showback}&by={by}&{asked}"), "the usual days are the last thirty"
    assert exact_money(nanousd(bill)) in await sample.page("/dashboard/finance/showback")
    exports = "/dashboard/finance/exports"
    assert total(await sample.file(f"{exports}/usage?{asked}&group_by=team&group_by=tag"), "cost_usd") == bill
    assert total(await sample.api("/v1/usage", {**sample.days, "group_by": "model"}, "text/csv"), "cost_usd") == bill
    focus = await sample.file(f"{exports}/focus.csv?{asked}")
    assert total(focus, "BilledCost") == bill
    assert focus == await sample.api("/v1/focus", sample.days, "text/csv")
    costs = json.loads((await sample.pages.get(f"{exports}/costs.json?{asked}")).text, parse_float=Decimal)
    assert sum(Decimal(line["amount"]["value"]) for bucket in costs["data"] for line in bucket["results"]) == bill
    for month in (month_of(sample.end_us - 1), month_of(sample.end_us - 1).previous):
        await _month_agrees(sample, month)


async def _month_agrees(sample: Sample, month: Month) -> None:
    path = f"/dashboard/finance/month?month={month.text}"
    bill = usd((await sample.ledger(month=month))["cost_nanousd"])
    parts = {row["part"]: row for row in await sample.file(f"{path}&format=csv&table=parts")}
    showback = await sample.file(f"/dashboard/finance/showback?month={month.text}&format=csv&table=showback")
    statement = await sample.file(f"{path}&format=csv&table=statement")
    assert {total(statement, "cost_usd"), total(showback, "total_usd"), Decimal(parts["The bill"]["now_usd"])} == {bill}
    assert exact_money(nanousd(bill)) in await sample.page(path)


async def test_one_day_is_the_same_everywhere(sample: Sample) -> None:
    """A day with a correction, a reconciliation, an idle hour and an adjustment: page, API, exports and OpenAI's shape."""
    start_us = sample.end_us - 4 * DAY_US
    day, after = day_of(start_us).isoformat(), day_of(start_us + DAY_US).isoformat()
    found = await sample.by_origin(start_us, start_us + DAY_US)
    assert {"caller", "correction", "reconciliation", "true-up", "idle"} <= found.keys()
    bill, asked = usd(sum(found.values())), f"from={day}&to={day}"
    exports = "/dashboard/finance/exports"
    showback = await sample.file(f"/dashboard/finance/showback?format=csv&table=showback&{asked}")
    assert total(showback, "total_usd") == bill
    assert total(showback, "true_up_usd") == usd(found["true-up"])
    assert total([row for row in showback if row["name"].startswith("Idle")], "total_usd") == usd(found["idle"])
    assert exact_money(nanousd(bill)) in await sample.page(f"/dashboard/finance/showback?{asked}")
    assert total(await sample.file(f"{exports}/usage?{asked}&group_by=team"), "cost_usd") == bill
    assert total(await sample.file(f"{exports}/focus.csv?{asked}"), "BilledCost") == bill
    api = {"start": day, "end": after}
    assert Decimal((await sample.api("/v1/usage", api))["totals"]["cost_usd"]) == bill
    costs = json.loads((await sample.pages.get(f"{exports}/costs.json?{asked}")).text, parse_float=Decimal)
    assert sum(Decimal(line["amount"]["value"]) for bucket in costs["data"] for line in bucket["results"]) == bill


async def test_what_budgets_count_and_what_was_spent_differ_by_the_adjustment(sample: Sample) -> None:
    """A month's budget of a team is its page's "counted", and with the adjustment it is what the team spent."""
    monthly = [
        each
        for each in (await sample.api("/v1/budgets"))["data"]
        if (each["scope"], each["period"]) == ("team", "month")
    ]
    assert monthly
    start_us = month_of(sample.end_us - 1).start_us
    days = {"start": day_of(start_us).isoformat(), "end": sample.days["end"]}
    for budget in monthly:
        team_id = budget["scope_id"]
        parts = await sample.by_origin(start_us, sample.end_us, team_id)
        adjustment = parts.pop("true-up", 0)
        counted = sum(parts.values())
        assert usd(counted) == Decimal(budget["spent_usd"]), team_id
        spent = (await sample.api("/v1/usage", {**days, "team_id": team_id}))["totals"]["cost_usd"]
        assert usd(counted + adjustment) == spent, team_id
        page = await sample.page(f"/dashboard/teams/{team_id}")
        shown = (counted + adjustment, *((counted, adjustment) if adjustment else ()))
        assert all(exact_money(amount) in page for amount in shown), team_id


async def test_refusals_are_the_same_everywhere_and_in_no_sum(sample: Sample) -> None:
    """The team's page, its requests, the operators' two pages and their API; and none is a request, an attempt or a cost."""
    wanted = sorted((status, count) for _, status, count in _REFUSED)
    files = (
        "/dashboard/teams/support?format=csv&table=refusals",
        "/dashboard/operations?format=csv&table=refusals",
        "/dashboard/operations/queues?format=csv&table=refusals",
    )
    for path in files:
        assert sorted((int(row["status"]), int(row["refusals"])) for row in await sample.file(path)) == wanted, path
    admin = await AccountStore(sample.running.engine).create_key("support", "operator", _PEPPER, role="admin")
    headers = {"authorization": f"Bearer {admin.plaintext}"}
    async with sample.session.get(f"{sample.running.url}/v1/operations", headers=headers) as reply:
        told = (await reply.json())["refusals"]
    assert sorted((each["status"], each["refusals"]) for each in told["data"]) == wanted
    whole = sum(count for _, count in wanted)
    assert told["refusals"] == whole
    assert f"{whole} requests in the last 24 hours" in await sample.page("/dashboard/teams/support")
    one_by_one = await sample.file("/dashboard/teams/support/requests?outcome=refused&format=csv")
    found = Counter(row["request_id"].split("-")[1] for row in one_by_one if row["request_id"].startswith("refused-"))
    assert sorted((int(status), count) for status, count in found.items()) == wanted
    query = text("SELECT count(*) FROM ledger_entry WHERE request_id LIKE 'refused-%'")
    async with sample.running.engine.connect() as connection:
        assert await connection.scalar(query) == 0


async def test_idle_hours_are_the_same_share_on_both_pages(sample: Sample) -> None:
    """Month close says them as a part of the bill, as Showback does. In the month that has most of the sample's thirty days."""
    month = month_of(sample.end_us - 15 * DAY_US)
    rows = await sample.file(f"/dashboard/finance/showback?month={month.text}&format=csv&table=showback")
    (idle,) = [row for row in rows if row["name"].startswith("Idle")]
    share = Decimal(idle["total_usd"]) / total(rows, "total_usd")
    assert f"{float(share) * 100:.1f} % of the bill" in await sample.page(
        f"/dashboard/finance/month?month={month.text}"
    )


async def test_the_savings_and_the_budgets_are_one(sample: Sample) -> None:
    """What the API tells of savings and budgets is what finance's and the teams' pages and files tell."""
    for team_id in ("", "support"):
        await _savings_agree(sample, team_id)
    ours = [each for each in (await sample.api("/v1/budgets"))["data"] if each["scope"] == "team"]
    assert ours
    for budget in ours:
        path, spent = f"/dashboard/teams/{budget['scope_id']}", Decimal(budget["spent_usd"])
        assert spent in [
            Decimal(row["spent_usd"]) for row in await sample.file(f"{path}/budgets?format=csv&table=budgets")
        ]
        for page in (path, f"{path}/budgets"):
            assert exact_money(nanousd(spent)) in await sample.page(page)


async def _savings_agree(sample: Sample, team_id: str) -> None:
    asked = {**sample.days, **({"team_id": team_id} if team_id else {})}
    path = f"/dashboard/finance?team={team_id}"
    while True:
        # The gateway goes on booking its GPUs' hours: what changed between two readings is read again.
        api, rows = await sample.api("/v1/savings", asked), await sample.file(f"{path}&format=csv&table=comparisons")
        days = await sample.file(f"{path}&format=csv&table=days")
        own = [f"/dashboard/teams/{team_id}/savings"] if team_id else []
        pages = [await sample.page(each) for each in (path, *own)]
        if api == await sample.api("/v1/savings", asked):
            break
    for ours, theirs in zip(rows, api["comparisons"], strict=True):
        assert Decimal(ours["cost_usd"]) == theirs["cost_usd"]
        assert Decimal(ours["baseline_usd"] or 0) == theirs["baseline_usd"]
        assert ours["verdict"] == theirs["verdict"]
    assert total(days, "cost_usd") == api["cost_usd"]
    for page in pages:
        for each in api["comparisons"]:
            assert exact_money(nanousd(each["cost_usd"])) in page
            assert exact_share(each["savings_share"]) in page


async def test_the_requests_of_a_team_are_its_cost(sample: Sample) -> None:
    """The file of requests has every one, and what they cost together; and what is unknown is no zero."""
    query = "SELECT count(DISTINCT request_id), sum(cost_nanousd) FROM ledger_entry WHERE organisation_id = :org "
    query += "AND team_id = 'legal' AND origin = 'caller' AND entry <> 'reserve'"
    async with sample.running.engine.connect() as connection:
        count, cost = (await connection.execute(text(query), {"org": DEFAULT_ORGANISATION})).one()
    found = await sample.file("/dashboard/teams/legal/requests?format=csv")
    assert len({row["request_id"] for row in found}) == len(found) == count
    assert total(found, "cost_usd") == usd(int(cost))
    sources = await sample.file("/dashboard/teams/support?format=csv&table=sources")
    assert [row["saved_usd"] for row in sources if row["tag"].endswith(_ODD)] == [""]
    unpriced = await sample.file("/dashboard/teams/support/requests?format=csv&outcome=unpriced")
    assert [(each["request_id"], each["cost_usd"]) for each in unpriced] == [("odd-unpriced", "")]


async def test_first_tokens_and_retries_are_the_ledger_s(sample: Sample) -> None:
    """The file of requests has when each caller had the first token, and who was retried or fell back, as the entries have it."""
    query = "SELECT request_id, attempt, target_id, reason, flags, served, stream, given_us FROM ledger_entry "
    query += "WHERE organisation_id = :org AND team_id = 'legal' AND origin = 'caller' AND entry IN ('settle', 'void', 'expire')"
    async with sample.running.engine.connect() as connection:
        found = (await connection.execute(text(f"{query} ORDER BY attempt"), {"org": DEFAULT_ORGANISATION})).all()
    requests: dict[str, list[Any]] = {}
    for row in found:
        requests.setdefault(row.request_id, []).append(row)
    path = "/dashboard/teams/legal/requests?format=csv"
    listed = {row["request_id"]: row for row in await sample.file(path)}
    assert listed.keys() == requests.keys()
    for request_id, attempts in requests.items():
        told = next((each for each in attempts if each.served), attempts[-1])
        given = next((each.given_us for each in attempts if each.given_us is not None), None)
        shown = listed[request_id]["ttft_s"]
        assert (Decimal(shown) if shown else None) == (Decimal(given) / 10**6 if told.stream and given else None)
    again: dict[str, set[str]] = {"retried": set(), "fell-back": set()}
    for request_id, attempts in requests.items():
        for place, each in enumerate(attempts):
            if place and each.reason not in {"escalated", "hedge", "agreement"} and "continued" not in each.flags:
                earlier = {before.target_id for before in attempts[:place]}
                again["retried" if each.target_id in earlier else "fell-back"].add(request_id)
    for outcome, wanted in again.items():
        assert {row["request_id"] for row in await sample.file(f"{path}&outcome={outcome}")} == wanted, outcome


async def test_two_savings_on_a_team_s_page_are_one_or_explained(sample: Sample) -> None:
    """The overview counts what is booked; where the verdict leaves something out that is seen, a sentence beside it
    says what.
    """
    for team_id in [each.team_id for each in TEAMS]:
        found = await sample.ledger(team_id)
        saved = found["baseline_nanousd"] - found["cost_nanousd"]
        (first, *_) = (await sample.api("/v1/savings", {**sample.days, "team_id": team_id}))["comparisons"]
        page = await sample.page(f"/dashboard/teams/{team_id}/savings")
        compared = nanousd(Decimal(first["baseline_usd"]) - Decimal(first["cost_usd"]))
        differ = money(compared) != money(saved)
        assert ("where everything counts as it is booked now" in page) is differ, team_id
        if differ:
            assert exact_money(saved) in page
