"""Closing a month: ticked, commented, signed, kept as it was; and what comes later stands in the next one."""

import csv
import io
import re
from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from accounts.audit.log import Scope
from cost.close.checks import MonthChecks
from cost.close.month import Month
from cost.prices import usd
from cost.times import HOUR_US, start_of
from tests.api.finance import Finance, running_finance
from tests.cost.entries import reserve
from tests.cost.reports.two_organisations import booked
from tests.signed_in import Answer, Browser, signed_in

MARCH = Month(2026, 3)
AT_US = start_of(date(2026, 3, 10)) + HOUR_US
PATH = "/dashboard/finance/month"
STATEMENT = f"{PATH}?month=2026-03&format=csv&table=statement"


@pytest.fixture
async def finance(tmp_path: Path) -> AsyncIterator[Finance]:
    async with running_finance(tmp_path) as running:
        entries = [booked("one", at_us=AT_US, team_id="team_x"), booked("two", at_us=AT_US, organisation_id="rival")]
        began = [reserve(each.request_id, at_us=AT_US, organisation_id=each.organisation_id) for each in entries]
        await running.keep([*began, *entries])
        yield running


@pytest.fixture
async def browser(finance: Finance) -> AsyncIterator[Browser]:
    """Finance of acme."""
    async with signed_in(finance.gateway, "fin@acme.test", role="finance", organisation_id="acme") as found:
        yield found


def rows(answer: Answer) -> list[dict[str, str]]:
    assert answer.status == 200, answer.text[:500]
    return list(csv.DictReader(io.StringIO(answer.text)))


async def checked(finance: Finance) -> None:
    checks = MonthChecks(finance.gateway.engine)
    await checks.ask(MARCH)
    assert await checks.check() == MARCH


async def test_a_month_is_ticked_signed_and_locked(finance: Finance, browser: Browser) -> None:
    """Not before every step is done; afterwards its statement is what was signed, whatever is posted to it."""
    sign = {"month": "2026-03", "comment": "as discussed"}
    tick = {"month": "2026-03", "step": "reconciliation/vllm", "ticked": "on", "comment": "invoice 17"}
    assert (await browser.post(f"{PATH}/sign", sign)).status == 400
    await checked(finance)
    page = (await browser.get(f"{PATH}?month=2026-03")).text
    assert "0 of 1 day with requests were compared; not: 2026-03-10." in re.sub("<[^>]*>", "", page)
    assert "Sign off and lock" not in page
    assert (await browser.post(f"{PATH}/mark", {**tick, "step": "books"})).status == 400
    assert (await browser.post(f"{PATH}/mark", {**tick, "step": "nonsense"})).status == 400
    without = {name: value for name, value in tick.items() if name != "ticked"}
    assert (await browser.post(f"{PATH}/mark", without)).status == 400, "to keep it needs the tick"
    assert (await browser.post(f"{PATH}/mark", {**without, "only": "comment"})).status == 303
    page = (await browser.get(f"{PATH}?month=2026-03")).text
    assert "Sign off and lock" not in page
    assert (await browser.post(f"{PATH}/mark", tick)).status == 303
    page = (await browser.get(f"{PATH}?month=2026-03")).text
    assert "Sign off and lock" in page
    assert "invoice 17" in page
    before = (await browser.get(STATEMENT)).text
    assert (await browser.post(f"{PATH}/sign", sign)).status == 303
    page = (await browser.get(f"{PATH}?month=2026-03")).text
    assert "Signed off" in page
    assert "as discussed" in page
    await finance.keep([booked("late", at_us=AT_US + 1, team_id="team_y", cost_nanousd=77, input_nanousd=77)])
    assert (await browser.get(STATEMENT)).text == before
    assert (await browser.get(f"{PATH}?month=2026-03&table=signed")).text == before
    assert (await browser.post(f"{PATH}/mark", tick)).status == 400
    assert (await browser.post(f"{PATH}/sign", sign)).status == 400


async def test_what_comes_later_is_in_the_next_month_and_on_both_pages(finance: Finance, browser: Browser) -> None:
    """With the month that it belongs to; another organisation's months are open as before."""
    await checked(finance)
    tick = {"month": "2026-03", "step": "reconciliation/vllm", "ticked": "on", "comment": ""}
    await browser.post(f"{PATH}/mark", tick)
    assert (await browser.post(f"{PATH}/sign", {"month": "2026-03", "comment": ""})).status == 303
    april = f"{PATH}?month=2026-04&format=csv&table=statement"
    before = sum(Decimal(row["cost_usd"] or 0) for row in rows(await browser.get(april)))
    late = {"at_us": AT_US + 1, "cost_nanousd": 77, "input_nanousd": 77}
    await finance.keep([booked("late", team_id="team_y", **late), booked("theirs", organisation_id="rival", **late)])
    after = sum(Decimal(row["cost_usd"] or 0) for row in rows(await browser.get(april)))
    assert after - before == usd(77)
    for month in ("2026-03", "2026-04"):
        (told,) = rows(await browser.get(f"{PATH}?month={month}&format=csv&table=late"))
        assert (told["belongs"], told["stands"], told["entries"]) == ("March 2026", "April 2026", "1")
        assert Decimal(told["cost_usd"]) == usd(77)
        assert "Posted after a month was signed" in (await browser.get(f"{PATH}?month={month}")).text
    page = (await browser.get(f"{PATH}?month=2026-03")).text
    assert "The books no longer match" not in page
    async with signed_in(finance.gateway, "fin@rival.test", role="finance", organisation_id="rival") as rival:
        assert "Signed off" not in (await rival.get(f"{PATH}?month=2026-03")).text
        assert (await rival.get(f"{PATH}?month=2026-03&table=signed")).status == 200
        theirs = rows(await rival.get(STATEMENT))
    assert sum(Decimal(row["cost_usd"]) for row in theirs) == usd(1_000_001 + 77)


async def test_who_signed_is_in_the_audit_log(finance: Finance, browser: Browser) -> None:
    """A tick and a signature are changes like others, with who and what."""
    await checked(finance)
    tick = {"month": "2026-03", "step": "reconciliation/vllm", "ticked": "on", "comment": "seen"}
    await browser.post(f"{PATH}/mark", tick)
    await browser.post(f"{PATH}/sign", {"month": "2026-03", "comment": "done"})
    found = await finance.gateway.parts.identity.audit.page(Scope(organisation_id="acme"))
    told = {entry.action: entry for entry in found}
    assert told["month.signed"].reason == "done"
    assert told["month.signed"].object_id == "2026-03"
    assert told["month.marked"].object_id == "2026-03/reconciliation/vllm"
