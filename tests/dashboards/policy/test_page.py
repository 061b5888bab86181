"""The policy page: looked at before it is applied, applied with a reason, and honest about what it knows."""

import asyncio
import csv
import html
import io
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from accounts.audit.log import AuditLog, Filters, Scope
from accounts.store import TeamRecord
from api.policy.anchored import AnchoredPreview
from api.web.gateway import READS_AT_ONCE
from cost.times import wall_us
from dashboards.policy.page import STOPS, fingerprint, floor_options, outlook
from dashboards.ui.formats import money
from proxy.plan.quality_tolerance import Preview, Tolerances
from tests.dashboards.pages.teams import asked, keep, month, running_teams
from tests.in_turn import in_turn
from tests.proxy.plan.test_quality_tolerance import classifier, tolerances
from tests.running_gateway import TRAINED, Running
from tests.signed_in import Answer, Browser, signed_in

PATH = "/dashboard/teams/team_a/policy"
AS_IT_IS = {
    "step": "review",
    "floor_mode": "gateway",
    "floor": "97",
    "models_mode": "all",
    "spill_over": "on",
    "escalation": "off",
    "learning": "numbers",
    "shadow": "0",
}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_teams(tmp_path, classifier=TRAINED) as found:
        yield found


@pytest.fixture
async def admin(running: Running) -> AsyncIterator[Browser]:
    """The team's own administrator."""
    async with signed_in(running, "adm@example.com", teams={"team_a": "admin"}) as found:
        yield found


def diff(answer: Answer) -> list[tuple[str, str, str]]:
    """What the page says that would change."""
    rows = re.findall(r'<tr><th scope="row">([^<]*)</th><td><del>([^<]*)</del></td><td><ins>([^<]*)</ins>', answer.text)
    return [(html.unescape(name), html.unescape(before), html.unescape(after)) for name, before, after in rows]


async def team(running: Running) -> TeamRecord:
    return await running.accounts.get_team("team_a")


async def applied(running: Running, browser: Browser, **changes: Any) -> Answer:
    """A change that somebody looked at and gave a reason for."""
    base = fingerprint(await team(running))
    fields = {**AS_IT_IS, "step": "apply", "base": base, "reason": "Because.", **changes}
    return await browser.post(PATH, {name: value for name, value in fields.items() if value is not None})


async def test_a_change_is_shown_before_it_is_made(running: Running, admin: Browser) -> None:
    """In words, and nothing is written yet."""
    before = await team(running)
    answer = await admin.post(
        PATH,
        {**AS_IT_IS, "floor_mode": "own", "floor": "92.5", "models_mode": "some", "models": ["small"], "shadow": "5"},
    )
    assert answer.status == 200
    assert diff(answer) == [
        ("Minimum quality", "The gateway's own, 97.0 %", "92.5 %"),
        ("Allowed models", "Every model", "small"),
        ("Shadow comparisons", "No requests", "5 % of requests"),
    ]
    assert await team(running) == before


async def test_a_change_is_applied_with_its_reason(running: Running, admin: Browser) -> None:
    """And stands in the audit log with both."""
    answer = await applied(
        running,
        admin,
        floor_mode="own",
        floor="92.5",
        models_mode="some",
        models=["small", "large"],
        spill_over=None,
        continue_streams="on",
        escalation="whole",
        shadow="0.5",
        reason="A week's trial.",
    )
    assert (answer.status, answer.location) == (303, PATH)
    found = await team(running)
    settings = found.settings
    assert found.allowed_models == frozenset({"small", "large"})
    assert (settings.quality_floor, settings.escalation, settings.shadow_share) == (0.925, "whole", 0.005)
    assert (settings.spill_over, settings.continue_streams) == (False, True)
    (entry,) = await AuditLog(running.engine).page(
        Scope(organisation_id="default"), Filters(action="team.policy_changed")
    )
    assert (entry.reason, entry.object_id, entry.actor_name) == ("A week's trial.", "team_a", "Ann")
    page = (await admin.get(PATH)).text
    assert 'value="92.5"' in page
    assert "as it is now" in page


async def test_a_change_without_a_reason_is_not_made(running: Running, admin: Browser) -> None:
    """The differences stay on the page, with a word beside the empty field."""
    for reason in ("", "  ", "x", "y" * 501):
        answer = await applied(running, admin, escalation="whole", reason=reason)
        assert answer.status == 422, reason
        assert diff(answer) == [("Ask again after a weak answer", "Never", "For whole replies")]
        assert 'id="error-reason"' in answer.text
    assert (await team(running)).settings.escalation == "off"


async def test_somebody_elses_change_is_looked_at_first(running: Running, admin: Browser) -> None:
    """What was confirmed was another difference."""
    answer = await applied(running, admin, escalation="all", base="0123456789abcdef")
    assert answer.status == 200
    assert "Somebody changed the policy" in answer.text
    assert diff(answer) == [("Ask again after a weak answer", "Never", "For streams too")]
    assert (await team(running)).settings.escalation == "off"


@in_turn(
    "changes, told",
    [
        ({"floor_mode": "own", "floor": "89"}, "A number from 90 to 100."),
        ({"floor_mode": "own", "floor": "NaN"}, "A number from 90 to 100."),
        ({"floor_mode": "own", "floor": ""}, "A number from 90 to 100."),
        ({"floor_mode": "mine"}, "Choose one of"),
        ({"models_mode": "some"}, "Allow at least one model"),
        ({"models_mode": "some", "models": ["<b>gpt-9</b>"]}, "There is no model `&lt;b&gt;gpt-9"),
        ({"shadow": "101"}, "A number from 0 to 100."),
        ({"shadow": "5", "learning": "off"}, "keeps no verdicts"),
        ({"learning": "everything"}, "Choose one of"),
        ({"escalation": "sometimes"}, "Choose one of"),
    ],
)
async def test_what_cannot_be_chosen_is_told(
    running: Running, admin: Browser, changes: dict[str, Any], told: str
) -> None:
    """In either step, and nothing changes."""
    before = await team(running)
    for answer in (await admin.post(PATH, {**AS_IT_IS, **changes}), await applied(running, admin, **changes)):
        assert answer.status == 422
        assert told in answer.text
    assert await team(running) == before


async def test_a_floor_that_the_slider_cannot_say_is_kept(running: Running, admin: Browser) -> None:
    """Somebody who changes something else does not move it."""
    await running.accounts.update_team("team_a", quality_floor=0.9537)
    page = await admin.get(PATH)
    assert "Currently 95.37 %" in page.text
    await applied(running, admin, floor_mode="keep", escalation="whole")
    settings = (await team(running)).settings
    assert (settings.quality_floor, settings.escalation) == (0.9537, "whole")


async def test_only_who_may_change_it_sees_a_form(running: Running) -> None:
    """Members and finance read the same figures; their form is refused."""
    async with (
        signed_in(running, "mem@example.com", teams={"team_a": "member"}) as member,
        signed_in(running, "fin@example.com", role="finance") as finance,
        signed_in(running, "oth@example.com", teams={"team_b": "admin"}) as other,
    ):
        for browser in (member, finance):
            page = await browser.get(PATH)
            assert page.status == 200
            assert "Show what would change" not in page.text
            assert "Current policy" in page.text
            assert (await browser.post(PATH, AS_IT_IS)).status == 403
        assert (await other.get(PATH)).status == 404
        assert (await other.post(PATH, AS_IT_IS)).status == 404


async def test_every_stop_is_told_for_the_months_requests(running: Running, admin: Browser) -> None:
    """In the panel of each stop of the slider, and as a file; on the classifier's own prompts until there are 200."""
    await keep(running, month())
    page = (await admin.get(PATH)).text
    stops = [
        float(each) for values in re.findall(r'class="stop"[^>]*data-value="([^"]*)"', page) for each in values.split()
    ]
    assert stops == [float(f"{100 * each:.1f}") for each in STOPS]
    assert "benchmark prompts that came with the classifier" in page
    assert "60 requests that let the gateway choose" in page
    rows = list(csv.DictReader(io.StringIO((await admin.get(f"{PATH}?format=csv&table=floors")).text)))
    assert len(rows) == page.count('class="stop"')
    kept = [float(row["kept_share"]) for row in rows]
    months = [float(row["month_usd"]) for row in rows]
    assert kept == sorted(kept)
    assert months == sorted(months)
    assert next(row for row in rows if row["note"] == "Now")["floor_share"] == "0.97"


def test_stops_that_choose_the_same_are_one() -> None:
    """Eleven equal rows say nothing; the one that holds now is told for all of them."""
    preview = tolerances(classifier()).preview((0.001, 0.002, 0.003, 1.0), None, current=0.002)
    same, whole = floor_options(AnchoredPreview(preview, (None,) * 4))
    assert (same.floors, same.offer.floor, same.percent, same.stops) == (
        (0.001, 0.002, 0.003),
        0.002,
        "0.1 to 0.3",
        "0.1 0.2 0.3",
    )
    assert whole.floors == (1.0,)


async def test_without_requests_no_month_is_made_up(admin: Browser) -> None:
    """Shares are known, money is not."""
    page = (await admin.get(PATH)).text
    assert "so monthly amounts are unknown" in page
    rows = list(csv.DictReader(io.StringIO((await admin.get(f"{PATH}?format=csv&table=floors")).text)))
    assert {row["month_usd"] for row in rows} == {""}


async def test_a_few_outlooks_are_worked_out_at_once(
    running: Running, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever loads the page over and over leaves threads for the answers that are checked there."""
    counted, fifth, at_once, most = threading.Lock(), threading.Event(), 0, 0
    real = Tolerances.preview

    def preview(self: Tolerances, *given: Any, **named: Any) -> Preview:
        nonlocal at_once, most
        with counted:
            at_once += 1
            most = max(most, at_once)
        if most > READS_AT_ONCE:
            fifth.set()
        # One more has so long to come.
        fifth.wait(0.5)
        with counted:
            at_once -= 1
        return real(self, *given, **named)

    monkeypatch.setattr(Tolerances, "preview", preview)
    await asyncio.gather(*(admin.get(PATH) for _ in range(2 * READS_AT_ONCE)))
    assert 1 <= most <= READS_AT_ONCE


async def test_the_present_month_is_the_bill_on_every_surface(running: Running, admin: Browser) -> None:
    """What was billed and where it went, adjustments and named models included; another minimum changes that, and page,
    API and file tell the same.
    """
    named = [asked(f"named_{number}", alias="large", target_id="large", cost_nanousd=9_000_000) for number in range(20)]
    entries = [*month(), *named, asked("true-up/1", entry="adjust", origin="true-up", cost_nanousd=50_000_000)]
    await keep(running, entries)
    spent = sum(each.cost_nanousd or 0 for each in entries)
    found = await outlook(running.parts, await team(running), wall_us())
    assert found.now is not None
    assert found.now.month is not None
    assert (found.now.month.cost_nanousd, found.now.month.change_nanousd) == (spent, 0)
    assert found.now.month.low_nanousd == found.now.month.high_nanousd == spent
    assert found.now.offer.shares == pytest.approx({"large": 0.5, "small": 0.5})
    rows = list(csv.DictReader(io.StringIO((await admin.get(f"{PATH}?format=csv&table=floors")).text)))
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {running.key}"}) as session,
        session.get(
            f"{running.base_url}/policy/preview", params=[("quality_floor", row["floor_share"]) for row in rows]
        ) as got,
    ):
        told = (await got.json())["offers"]
    shown = {float(row["floor_share"]): (row["month_usd"], row["low_usd"], row["high_usd"]) for row in rows}
    for offer in told:
        prices = [offer["month"][name] for name in ("usd", "low_usd", "high_usd")]
        assert [float(each) for each in shown[offer["quality_floor"]]] == pytest.approx(
            [float(each) for each in prices]
        )
    strict = told[-1]["month"]
    assert float(strict["low_usd"]) < float(strict["usd"]) < float(strict["high_usd"])
    assert float(strict["change_usd"]) > 0
    assert money(spent) in (await admin.get(PATH)).text


async def test_other_models_change_the_bill_of_the_present_ones(running: Running, admin: Browser) -> None:
    """A proposed policy's month starts from what was billed under the present one."""
    await keep(running, month())
    before = await team(running)
    cheaper = msgspec.structs.replace(before, allowed_models=frozenset({"small"}))
    found = await outlook(running.parts, cheaper, wall_us(), before)
    assert found.now is not None
    assert found.now.month is not None
    assert found.now.month.change_nanousd < 0
    assert found.now.offer.shares["small"] > 0.5


async def test_a_teams_administrator_erases_their_own_teams_content(running: Running, admin: Browser) -> None:
    """Counted first; a member is shown no form, and another team's is refused to everybody but its own."""
    before = (await running.accounts.get_team("team_a")).settings.cache_epoch
    assert f'action="{PATH}/erase"' in (await admin.get(PATH)).text
    for fields in ({"count": "on"}, {"before": "yesterday"}):
        assert (await admin.post(f"{PATH}/erase", fields)).status == 303
    assert (await running.accounts.get_team("team_a")).settings.cache_epoch == before
    assert (await admin.post(f"{PATH}/erase", {"before": "2026-01-01"})).status == 303
    assert (await running.accounts.get_team("team_a")).settings.cache_epoch == before + 1
    entries = await AuditLog(running.engine).page(Scope(organisation_id=None), Filters(action="team.content_erased"))
    assert [(entry.object_id, entry.actor_kind) for entry in entries] == [("team_a", "person")]
    other = "/dashboard/teams/team_b/policy/erase"
    assert (await admin.post(other, {})).status in {403, 404}
    async with signed_in(running, "mem@example.com", teams={"team_a": "member"}) as member:
        assert "policy/erase" not in (await member.get(PATH)).text
        assert (await member.post(f"{PATH}/erase", {})).status == 403
