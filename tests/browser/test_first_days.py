"""What people come for on a first day and on a bad one, each at a gateway of its own."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from datetime import date
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from playwright.async_api import Browser, expect

from accounts.access import OrganisationRole, TeamRole
from cost.close.checks import MonthChecks
from cost.close.month import Month
from cost.times import HOUR_US, start_of
from tests.api.finance import SCRIPTED, running_finance
from tests.browser.site import Site, Visitor, visiting
from tests.cost.entries import reserve
from tests.cost.reports.two_organisations import booked
from tests.running_gateway import Running, model, running_gateway
from tests.signed_in import cookie_of

pytestmark = pytest.mark.timeout(300)

_MARCH: Final = Month(2026, 3)
_AT_US: Final = start_of(date(2026, 3, 10)) + HOUR_US
_ANSWERS: Final = [{"name": "main", "kind": "scripted", "upstream_model": "ok"}]


@contextlib.asynccontextmanager
async def visitor_of(
    browser: Browser,
    running: Running,
    email: str,
    *,
    role: OrganisationRole = "",
    teams: Mapping[str, TeamRole] | None = None,
    organisation_id: str = "default",
) -> AsyncIterator[Visitor]:
    """Somebody of this gateway at a browser."""
    cookie = await cookie_of(running, email, role=role, teams=teams, organisation_id=organisation_id)
    async with visiting(browser, Site(running.url, {}), cookie=cookie) as visitor:
        yield visitor


async def ask(running: Running, times: int = 1) -> list[int]:
    """The same short question again and again, with the team's key; the replies' statuses."""
    body = {"model": "only", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {running.key}"}
    statuses = []
    async with aiohttp.ClientSession() as session:
        for _ in range(times):
            async with session.post(f"{running.base_url}/chat/completions", json=body, headers=headers) as reply:
                await reply.read()
                statuses.append(reply.status)
    return statuses


async def shown(visitor: Visitor, path: str, text: str) -> str:
    """The page's text, once this stands on it."""
    async with asyncio.timeout(30):
        while True:
            await visitor.open(path)
            found = await visitor.text()
            if text in found:
                await visitor.is_fine()
                return found
            await asyncio.sleep(0.2)


async def test_who_floods_takes_one_look(tmp_path: Path, browser: Browser) -> None:
    """An operator sees the team, its key and the reason on the first page; the team's administrator finds a refused request and
    what to do about it.
    """
    async with running_gateway(
        tmp_path, [model("only", SCRIPTED)], limits={"team": {"requests_per_minute": 3}}
    ) as running:
        refused = (await ask(running, 130)).count(429)
        async with visitor_of(browser, running, "op@default.test", role="operator") as visitor:
            told = await shown(visitor, "/dashboard/operations", f"{refused} requests were refused in ten minutes")
            assert "team_a" in told
            assert "rate limit exceeded" in told
        async with visitor_of(browser, running, "lead@default.test", teams={"team_a": "admin"}) as visitor:
            await shown(visitor, "/dashboard/teams/team_a", f"{refused} requests in the last 24 hours")
            await visitor.press(visitor.page.get_by_role("link", name="Refused requests one by one"))
            await visitor.press(visitor.page.locator("td a[href*='/requests/']").first)
            await visitor.is_fine()
            told = await visitor.text()
            assert "Rate limit reached for requests per minute of team `team_a`: Limit 3" in told


async def test_nothing_is_green_while_every_call_fails(tmp_path: Path, browser: Browser) -> None:
    """A target that rejects our key is down at once, with the reason, on the first page and on its own."""
    rejecting = [{"name": "main", "kind": "scripted", "upstream_model": "error-401"}]
    async with running_gateway(tmp_path, [model("only", rejecting), model("other", _ANSWERS)]) as running:
        assert set(await ask(running, 4)) <= {502, 503}
        async with visitor_of(browser, running, "op@default.test", role="operator") as visitor:
            told = await shown(
                visitor, "/dashboard/operations", "Its provider refuses our key, so no deployment is called"
            )
            assert re.search(r"only\s+Down", told)
            told = await shown(visitor, "/dashboard/operations/targets/only", "The script answers 401.")
            assert "Down" in told
            assert "All well" not in told
        await running.parts.finance.drain.drain_now()
        async with visitor_of(browser, running, "lead@default.test", teams={"team_a": "admin"}) as visitor:
            await visitor.open("/dashboard/teams/team_a/requests?status=5xx")
            await visitor.press(visitor.page.locator("a.id").last)
            await visitor.is_fine()
            told = await visitor.text()
            # The caller saw 502, since it is no fault of theirs; the upstream said 401.
            assert "the upstream answered with an error, its status was 401" in told
            assert "Failed (502)" in told


async def test_finance_signs_a_month_off(tmp_path: Path, browser: Browser) -> None:
    """What is open is ticked with a comment, and the month is locked at its figures."""
    async with running_finance(tmp_path) as finance:
        entry = booked("one", at_us=_AT_US, team_id="team_x")
        await finance.keep([reserve(entry.request_id, at_us=_AT_US, organisation_id=entry.organisation_id), entry])
        checks = MonthChecks(finance.gateway.engine)
        await checks.ask(_MARCH)
        assert await checks.check() == _MARCH
        running = finance.gateway
        async with visitor_of(browser, running, "fin@acme.test", role="finance", organisation_id="acme") as visitor:
            page = visitor.page
            await visitor.open(f"/dashboard/finance/month?month={_MARCH.text}")
            await visitor.is_fine()
            assert await page.get_by_role("button", name="Sign off and lock").count() == 0
            step = page.locator("li", has_text="0 of 1 day with requests were compared")
            await step.get_by_text("Tick or comment").click()
            await step.get_by_label("Comment").fill("invoice 17")
            await step.get_by_label("Checked and correct").check()
            await visitor.press(step.get_by_role("button", name="Keep", exact=True))
            assert "invoice 17" in await visitor.text()
            await visitor.press(page.get_by_role("button", name="Sign off and lock"))
            await visitor.is_fine()
            assert any("cannot be undone" in each for each in visitor.asked)
            told = await visitor.text()
            assert "Signed off" in told
            assert "Locked" in told
            assert await page.locator("#steps form").count() == 0


async def test_the_first_day_goes_by_its_list(tmp_path: Path, browser: Browser) -> None:
    """From a house with a model alone: a team, a key that is used, a colleague; each ticks itself, and the list goes."""
    async with running_gateway(tmp_path, [model("only", _ANSWERS)], cost={"reference_target": "only"}) as running:
        await running.accounts.create_organisation("new", "New")
        async with visitor_of(browser, running, "ada@new.test", role="admin", organisation_id="new") as visitor:
            page = visitor.page
            steps = page.locator("#first-steps li")
            open_steps = steps.filter(has_text="To do")
            await visitor.open("/dashboard/teams")
            await visitor.is_fine()
            assert await open_steps.count() == 4
            await page.get_by_label("Id", exact=True).fill("shop")
            await visitor.press(page.get_by_role("button", name="Create"))
            assert "Give it a key next." in await visitor.text()
            await visitor.open("/dashboard/teams")
            await visitor.press(open_steps.get_by_role("link", name="A key"))
            await page.get_by_label("Name", exact=True).fill("checkout")
            await page.get_by_label("The only models it may use").fill("only")
            await visitor.press(page.get_by_role("button", name="Create the key"))
            key = await page.locator("#new-key").inner_text()
            assert await ask_once(running, key) == 200
            await running.parts.finance.drain.drain_now()
            await visitor.open("/dashboard/people")
            await page.get_by_label("E-mail address").fill("ben@new.test")
            await page.get_by_label("Name", exact=True).fill("Ben")
            await visitor.press(page.get_by_role("button", name="Invite"))
            await visitor.open("/dashboard/teams")
            await expect(steps).to_have_count(0)
            await visitor.is_fine()


async def ask_once(running: Running, key: str) -> int:
    """A first request, as the page of a new key has it."""
    body = {"model": "auto", "messages": [{"role": "user", "content": "Say hello."}]}
    headers = {"authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{running.base_url}/chat/completions", json=body, headers=headers) as reply,
    ):
        await reply.read()
        return reply.status
