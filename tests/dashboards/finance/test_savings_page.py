"""The pages of finance: they say what the API says, to whom they may, and their tables are files too."""

import csv
import io
import json
import re
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from accounts.keys import Pepper
from cost.close.checks import MonthChecks
from cost.close.month import Month
from cost.prices import usd
from cost.reconcile.coverage import compared_days
from cost.times import DAY_US, day_of, wall_us
from dashboards.web.cookie import COOKIE
from tests.api.finance import Finance, running_finance
from tests.cost.reports.two_organisations import DAY, booked
from tests.in_turn import in_turn
from tests.signed_in import Answer, Browser, signed_in

APRIL = "month=2026-04"
PAGES = (
    "/dashboard/finance",
    "/dashboard/finance/month",
    "/dashboard/finance/showback",
    "/dashboard/finance/prices",
    "/dashboard/finance/prices/only",
    "/dashboard/finance/reconciliation",
    "/dashboard/finance/exports",
    "/dashboard/finance/reports",
)


@pytest.fixture
async def finance(tmp_path: Path) -> AsyncIterator[Finance]:
    async with running_finance(tmp_path) as running:
        yield running


@pytest.fixture
async def browser(finance: Finance) -> AsyncIterator[Browser]:
    """Finance of acme."""
    async with signed_in(finance.gateway, "fin@acme.test", role="finance", organisation_id="acme") as found:
        yield found


def rows(answer: Answer) -> list[dict[str, str]]:
    assert answer.status == 200, answer.text[:500]
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    return list(csv.DictReader(io.StringIO(answer.text)))


async def test_every_page_is_there_for_finance_and_for_nobody_else(finance: Finance, browser: Browser) -> None:
    """A member of a team is refused; without books the pages stand all the same."""
    async with (
        signed_in(finance.gateway, "mem@acme.test", teams={"team_x": "admin"}, organisation_id="acme") as member,
        signed_in(finance.gateway, "new@default.test", role="finance") as other,
    ):
        for path in PAGES:
            assert (await browser.get(path)).status == 200, path
            assert (await other.get(path)).status == 200, path
            assert (await member.get(path)).status == 403, path


async def test_showback_is_the_bill_and_only_ones_own(finance: Finance, browser: Browser) -> None:
    """All rows with the idle row are what the roll-ups say, however it is divided; no other organisation's is in them."""
    total = (await finance.totals("acme")).cost_nanousd
    for by in ("team", "key", "model", "provider", "tier", "tag"):
        found = rows(await browser.get(f"/dashboard/finance/showback?{APRIL}&by={by}&format=csv&table=showback"))
        assert sum(Decimal(row["total_usd"] or 0) for row in found) == usd(total), by
        assert any(row["name"].startswith("Idle GPUs") for row in found)
        assert not any("rival" in text for row in found for text in row.values())
    page = (await browser.get(f"/dashboard/finance/showback?{APRIL}")).text
    assert "$0.074000004" in page
    assert "team_q" not in page


async def test_a_team_of_another_organisation_is_not_there(browser: Browser) -> None:
    """As if it did not exist."""
    for path in ("/dashboard/finance", "/dashboard/finance/showback"):
        assert (await browser.get(f"{path}?{APRIL}&team=team_x")).status == 200
        assert (await browser.get(f"{path}?{APRIL}&team=team_q")).status == 404
        assert (await browser.get(f"{path}?{APRIL}&team=nobody")).status == 404
    assert (await browser.get("/dashboard/finance/reports/made?day=2026-04-05&subject=team_q")).status == 400


async def test_the_report_is_the_api_s(finance: Finance, browser: Browser) -> None:
    """Page, CSV and API have the same figures and the same verdict."""
    for number in range(120):
        await finance.keep([booked(f"more{number}", team_id="team_x", cost_nanousd=2_000_000, at_us=DAY)])
    api = (await finance.get("finance", "/v1/savings", {"start": "2026-04-01", "end": "2026-05-01"})).body
    page = (await browser.get(f"/dashboard/finance?{APRIL}")).text
    assert api["verdict"].capitalize() in page
    assert f"${api['cost_usd']:,.9f}" in page
    found = rows(await browser.get(f"/dashboard/finance?{APRIL}&format=csv&table=comparisons"))
    assert [Decimal(row["cost_usd"]) for row in found] == [each["cost_usd"] for each in api["comparisons"]]
    days = rows(await browser.get(f"/dashboard/finance?{APRIL}&format=csv&table=days&days.page=2"))
    assert len(days) == 30
    assert sum(Decimal(row["cost_usd"]) for row in days) == api["cost_usd"]


async def test_what_has_no_price_cost_no_zero_dollars(finance: Finance, browser: Browser) -> None:
    """Where all that is known of a time is that something in it has no price, no page says $0.00 of it."""
    at_us = wall_us() - wall_us() % DAY_US
    free = {"cost_nanousd": None, "input_nanousd": 0, "cached_input_nanousd": 0, "output_nanousd": 0}
    times = {"free": at_us, "before": at_us - 4 * DAY_US}
    await finance.keep(
        [booked(name, team_id="team_x", at_us=each, **free, baseline_nanousd=None) for name, each in times.items()]
    )
    today = f"from={day_of(at_us)}&to={day_of(at_us)}"
    found = rows(await browser.get(f"/dashboard/finance?{today}&format=csv&table=comparisons"))
    assert [row["cost_usd"] for row in found] == ["", "", ""]
    (day,) = rows(await browser.get(f"/dashboard/finance?{today}&format=csv&table=days"))
    assert (day["cost_usd"], day["unpriced"]) == ("", "1")
    (line,) = rows(await browser.get(f"/dashboard/finance/showback?{today}&format=csv&table=showback"))
    assert (line["total_usd"], line["booked_usd"]) == ("", "")
    # A key that is there has its name and its team's, one that is gone its id.
    made = await finance.gateway.accounts.create_key("team_x", "night job", Pepper(id="p", secret=b"p" * 32))
    await finance.keep(
        [booked("named", team_id="team_x", key_id=made.key_id, at_us=at_us, **free, baseline_nanousd=None)]
    )
    found = rows(await browser.get(f"/dashboard/finance/showback?{today}&by=key&format=csv&table=showback"))
    (named,) = [row for row in found if row["id"] == made.key_id]
    assert named["name"].startswith("night job (")
    page = re.sub(r"<[^>]+>", " ", (await browser.get(f"/dashboard/finance?{today}")).text)
    assert re.search(r"Spent\s+—", page)
    assert re.search(r"Together\s+—", page)
    async with signed_in(finance.gateway, "x@acme.test", teams={"team_x": "member"}, organisation_id="acme") as member:
        part = (await member.get("/dashboard/teams/team_x/savings")).text
        assert "$0.00" not in part
        assert "what was spent has no price" in (await member.get("/dashboard/teams/team_x")).text


async def test_a_model_that_left_is_no_dead_link(finance: Finance, browser: Browser) -> None:
    """What was called once, and is in no configuration and no price book now, stands in showback without a link."""
    path = f"/dashboard/finance/showback?{APRIL}&by=model"
    page = (await browser.get(path)).text
    assert "large" in {row["name"] for row in rows(await browser.get(f"{path}&format=csv&table=showback"))}
    assert 'href="/dashboard/finance/prices/large"' not in page
    await finance.keep([booked("known", team_id="team_x", target_id="only", at_us=DAY)])
    assert 'href="/dashboard/finance/prices/only"' in (await browser.get(path)).text


async def test_the_statement_adds_up(finance: Finance, browser: Browser) -> None:
    """A month's lines are its bill, and the page says the same."""
    found = rows(await browser.get(f"/dashboard/finance/month?{APRIL}&format=csv&table=statement"))
    total = usd((await finance.totals("acme")).cost_nanousd)
    assert sum(Decimal(row["cost_usd"] or 0) for row in found) == total
    assert {row["organisation_id"] for row in found} == {"acme"}
    page = (await browser.get(f"/dashboard/finance/month?{APRIL}")).text
    assert f"${total:,.9f}" in page
    assert "1 attempt is in no total: small." in page


async def test_a_month_is_checked_when_finance_asks(finance: Finance, browser: Browser) -> None:
    """The page says that it waits, looks again by itself, and says what came of it."""
    path = "/dashboard/finance/month"
    assert "not been checked against the ledger yet" in (await browser.get(f"{path}?{APRIL}")).text
    checks = MonthChecks(finance.gateway.engine)
    # It reads every organisation's books, so a tenant does not start it.
    assert "/check" not in (await browser.get(f"{path}?{APRIL}")).text
    assert (await browser.post(f"{path}/check", {"month": "2026-04"})).location == path
    assert (await checks.known(Month(2026, 4))).state == "never"
    async with signed_in(finance.gateway, "fin@default.test", role="finance") as operators:
        assert "/check" in (await operators.get(f"{path}?{APRIL}")).text
        asked = await operators.post(f"{path}/check", {"month": "2026-04"})
        assert (asked.status, asked.location) == (303, f"{path}?{APRIL}")
        assert (await operators.post(f"{path}/check", {"month": "yesterday"})).status == 400
    waiting = await browser.get(f"{path}?{APRIL}", **{"hx-request": "true"})
    assert "every 5s" in waiting.text
    assert "<html" not in waiting.text
    await checks.check()
    known = await checks.known(Month(2026, 4))
    assert known.state == "done"
    page = (await browser.get(f"{path}?{APRIL}")).text
    assert "every 5s" not in page


@in_turn(
    "query",
    [
        "from=2026-04-09&to=2026-04-01",
        "from=tomorrow",
        "month=2026-13",
        "from=0001-01-01",
        "from=2020-01-01&to=2026-01-01",
    ],
)
async def test_odd_days_are_told_and_files_of_them_refused(browser: Browser, query: str) -> None:
    """A page shows the usual days and says so; a file of other days than asked for is not made."""
    page = await browser.get(f"/dashboard/finance/showback?{query}")
    assert page.status == 200
    assert "The last 30 days are shown." in page.text
    for file in ("usage", "focus.csv", "costs.json"):
        assert (await browser.get(f"/dashboard/finance/exports/{file}?{query}")).status == 400


async def test_exports_are_the_api_s_files(finance: Finance, browser: Browser) -> None:
    """The same bytes that a finance key gets, to be kept under a name."""
    days = "from=2026-04-05&to=2026-04-06"
    path = "/dashboard/finance/exports"
    asked = {"start": "2026-04-05", "end": "2026-04-07"}
    for kind, accept in (("csv", "text/csv"), ("ndjson", "application/x-ndjson")):
        mine = await browser.get(f"{path}/usage?{days}&group_by=day&group_by=team&format={kind}")
        theirs = await finance.get("finance", "/v1/usage", {**asked, "group_by": "day,team"}, accept)
        assert (mine.status, mine.text) == (200, theirs.text)
        assert f"usage-2026-04-05-2026-04-06.{kind}" in mine.headers["content-disposition"]
        assert mine.headers["cache-control"] == "no-store"
    focus = await browser.get(f"{path}/focus.csv?{days}")
    total = usd((await finance.totals("acme")).cost_nanousd)
    assert sum(Decimal(row["BilledCost"]) for row in rows(focus)) == total
    for name in ("costs", "completions", "embeddings"):
        found = json.loads((await browser.get(f"{path}/{name}.json?{days}")).text, parse_float=Decimal)
        assert (found["object"], found["has_more"], len(found["data"])) == ("page", False, 2)
    costs = json.loads((await browser.get(f"{path}/costs.json?{days}")).text)
    amounts = [Decimal(one["amount"]["value_decimal"]) for each in costs["data"] for one in each["results"]]
    assert sum(amounts) == total
    assert (await browser.get(f"{path}/completions.json?from=2026-03-01&to=2026-04-06")).status == 400
    assert (await browser.get(f"{path}/usage?{days}&group_by=secret")).status == 400


async def test_prices_are_told_with_their_history(finance: Finance, browser: Browser) -> None:
    """What is in effect, and where it is from; a model that nobody knows is not there."""
    page = (await browser.get("/dashboard/finance/prices")).text
    assert "configuration" in page
    (row,) = rows(await browser.get("/dashboard/finance/prices?format=csv&table=prices"))
    assert (row["target"], row["input"], row["output"], row["state"]) == ("only", "2.50", "10.00", "in effect")
    one = (await browser.get("/dashboard/finance/prices/only")).text
    assert "$1.25" in one
    assert (await browser.get("/dashboard/finance/prices/nobody")).status == 404
    assert (await browser.get("/dashboard/finance/prices/a%00b")).status == 404


async def test_an_export_is_held_against_the_books(finance: Finance, browser: Browser) -> None:
    """What differs is shown by day, model and meter; nothing is posted, and what is no export is told as such."""
    before = await finance.totals("acme", 30)
    files = {"usage.json": bucket("large", 800, 200), "same.json": b""}
    told = await upload(finance, browser, {"provider": "openai"}, files)
    assert "The books agree with openai" in told
    told = await upload(finance, browser, {"provider": "openai"}, {"usage.json": bucket("large", 900, 200)})
    assert "1 line differs of 1" in told
    assert "+100" in told
    kept = await compared_days(finance.gateway.engine, "acme", DAY, DAY + DAY_US)
    assert kept == {"openai": {DAY: "differs"}}
    told = await upload(finance, browser, {"tolerance": "50%"}, {"usage.json": bucket("large", 900, 200)})
    assert "agree with openai within what may differ: 1 line differs by less, of 1" in told
    assert "within tolerance" in told
    assert ">differs<" not in told, "never below a notice that the books agree"
    told = await upload(finance, browser, {}, {"usage.json": bucket("theirs", 800, 200)})
    assert "<code>theirs=large</code>" in told, "what to write is said"
    comma = await upload(finance, browser, {"tolerance": "0,05"}, {"usage.json": bucket("large", 900, 200)})
    assert "write 0.05" in comma
    told = await upload(finance, browser, {"models": "theirs=large"}, {"usage.json": bucket("theirs", 800, 200)})
    assert "The books agree" in told
    assert re.search(r'data-label="Model">large<.*?data-label="Their name"><code>theirs<', told, re.DOTALL)
    for fields, content in (({}, b"<html>"), ({}, b""), ({"tolerance": "much"}, b"{}"), ({"models": "x"}, b"{}")):
        assert "That could not be compared" in await upload(finance, browser, fields, {"x.json": content})
    assert await finance.totals("acme", 30) == before
    kept = await compared_days(finance.gateway.engine, "acme", DAY, DAY + DAY_US)
    assert kept == {"openai": {DAY: "agrees"}}


def bucket(model: str, tokens_in: int, tokens_out: int) -> bytes:
    """OpenAI's own usage of one day."""
    result = {
        "object": "organization.usage.completions.result",
        "input_tokens": tokens_in,
        "input_cached_tokens": 300,
        "output_tokens": tokens_out,
        "model": model,
    }
    start = DAY // 1_000_000
    page = {"object": "bucket", "start_time": start, "end_time": start + 86_400, "results": [result]}
    return json.dumps({"object": "page", "data": [page], "has_more": False, "next_page": None}).encode()


async def upload(finance: Finance, browser: Browser, fields: dict[str, str], files: dict[str, bytes]) -> str:
    """As the page's script sends it."""
    data = aiohttp.FormData()
    for name, value in fields.items():
        data.add_field(name, value)
    for name, content in files.items():
        data.add_field("files", content, filename=name, content_type="application/json")
    headers = {
        "cookie": f"{COOKIE}={browser.cookie}",
        "sec-fetch-site": "same-origin",
        "hx-request": "true",
        "x-csrf-token": browser.csrf,
    }
    path = f"{browser.url}/dashboard/finance/reconciliation"
    async with finance.session.post(path, data=data, headers=headers) as reply:
        assert reply.status == 200
        return await reply.text()


async def test_an_export_without_the_session_s_token_is_refused(finance: Finance, browser: Browser) -> None:
    """Another site's page cannot have a browser send one."""
    forged = msgspec.json.encode({})
    headers = {"cookie": f"{COOKIE}={browser.cookie}", "content-type": "multipart/form-data; boundary=x"}
    async with finance.session.post(
        f"{browser.url}/dashboard/finance/reconciliation", data=forged, headers=headers
    ) as reply:
        assert reply.status == 403


async def test_posted_differences_are_listed(finance: Finance, browser: Browser) -> None:
    """By day, provider, model and team; another organisation's are not."""
    for organisation_id, name in (("acme", "mine"), ("rival", "theirs")):
        usual: dict[str, Any] = {"entry": "adjust", "boot_id": "books", "origin": "reconciliation", "status": 0}
        entry = booked(f"reconciliation/openai/{name}/1", organisation_id=organisation_id, target_id=name, **usual)
        await finance.keep([msgspec.structs.replace(entry, provider="openai", baseline_nanousd=None)])
    found = rows(await browser.get(f"/dashboard/finance/reconciliation?{APRIL}&format=csv&table=posted"))
    assert [(row["model"], row["kind"], row["cost_usd"]) for row in found] == [("mine", "reconciled", "0.001000001")]


async def test_a_report_is_made_of_any_day(browser: Browser) -> None:
    """The organisation's and a team's, as HTML and CSV to keep; a day that has not begun has none."""
    path = "/dashboard/finance/reports/made"
    made = await browser.get(f"{path}?day=2026-04-05&subject=organisation.acme&format=html")
    assert (made.status, made.headers["content-disposition"]) == (
        200,
        'attachment; filename="report-2026-04-05-organisation.acme.html"',
    )
    assert rows(await browser.get(f"{path}?day=2026-04-05&subject=team_x&format=csv"))
    for wrong in ("day=2999-01-01&subject=team_x", "day=x&subject=team_x", "day=2026-04-05&subject=../x"):
        assert (await browser.get(f"{path}?{wrong}")).status == 400
    assert (await browser.get(f"{path}?day=2026-04-05&subject=team_x&format=pdf")).status == 400
    assert (await browser.get("/dashboard/finance/reports/written?day=2026-04-05&subject=team_x")).status == 400


async def test_operators_enter_prices_and_take_them_back(finance: Finance, browser: Browser) -> None:
    """The new one is in effect at once and in the audit log; taken back, the configured one counts again."""
    path = "/dashboard/finance/prices"
    price = {"target": "only", "input": "2.25", "output": "9", "note": "contract"}
    assert (await browser.post(path, price)).status == 403
    assert "Enter a price" not in (await browser.get(f"{path}/only")).text
    async with signed_in(finance.gateway, "boss@default.test", role="admin") as boss:
        done = await boss.post(path, price)
        assert (done.status, done.location) == (303, f"{path}/only")
        page = (await boss.get(f"{path}/only")).text
        assert "$2.25" in page
        assert "contract" in page
        version = page.partition('name="version" value="')[2].partition('"')[0]
        assert (await browser.post(f"{path}/withdraw", {"target": "only", "version": version})).status == 403
        assert (await boss.post(f"{path}/withdraw", {"target": "only", "version": version})).status == 303
        assert "$2.50<" in (await boss.get(f"{path}/only")).text
        assert (await boss.post(f"{path}/withdraw", {"target": "only", "version": "nobody's"})).status == 404
        assert (await boss.post(path, {**price, "target": "nobody"})).status == 404
        audit = (await boss.get("/dashboard/audit")).text
        assert "price.set" in audit
        assert "price.withdrawn" in audit


@in_turn(
    "field, value",
    [("input", "much"), ("output", ""), ("cached_input", "-1"), ("effective_from", "soon"), ("batch_discount", "7")],
)
async def test_an_odd_price_is_shown_again(finance: Finance, field: str, value: str) -> None:
    """With what was typed and the reason beside its field; nothing is entered."""
    price = {"target": "only", "input": "2.25", "output": "9.875", "note": "<script>", field: value}
    async with signed_in(finance.gateway, "boss@default.test", role="admin") as boss:
        shown = await boss.post("/dashboard/finance/prices", price)
        assert shown.status == 400
        assert f'id="error-{field}"' in shown.text
        assert "&lt;script&gt;" in shown.text
        assert "override" not in (await boss.get("/dashboard/finance/prices/only")).text


async def test_written_reports_are_listed_and_given_out(tmp_path: Path) -> None:
    """Those of one's own organisation, as they were written; their names lead nowhere else."""
    folder = tmp_path / "reports"
    async with running_finance(tmp_path, cost={"report": {"folder": str(folder)}}) as finance:
        day = day_of(wall_us() - DAY_US).isoformat()
        for name in ("organisation.acme", "team_x", "team_q", "organisation.rival"):
            for kind in ("html", "csv"):
                (folder / day).mkdir(parents=True, exist_ok=True)
                (folder / day / f"{name}.{kind}").write_text(f"{name} {kind}")
        async with signed_in(finance.gateway, "fin@acme.test", role="finance", organisation_id="acme") as browser:
            path = "/dashboard/finance/reports"
            found = rows(await browser.get(f"{path}?format=csv&table=reports"))
            assert {row["subject"] for row in found} == {"The whole organisation", "team_x"}
            mine = await browser.get(f"{path}/written?day={day}&subject=team_x&format=csv")
            assert (mine.status, mine.text) == (200, "team_x csv")
            for name in ("team_q", "organisation.rival", "../../gateway", ".delivered"):
                assert (await browser.get(f"{path}/written?day={day}&subject={name}")).status == 400
