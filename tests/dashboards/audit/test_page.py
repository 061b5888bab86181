"""/dashboard/audit: the organisation's own entries, looked for, paged and whole."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from dashboards.audit.page import PAGE_ROWS
from tests.running_gateway import Running, model, running_gateway
from tests.signed_in import signed_in

ANNA = Actor(kind="person", actor_id="person_anna", name="Anna", organisation_id="default", address="203.0.113.9")
THEIRS = Actor(kind="person", actor_id="person_eve", name="Eve", organisation_id="acme")
NASTY = '<script>alert("x")</script>'


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    models = [model("small", [{"kind": "scripted", "upstream_model": "ok"}])]
    async with running_gateway(tmp_path, models) as running:
        yield running


@pytest.fixture
def log(gateway: Running) -> AuditLog:
    return AuditLog(gateway.engine)


async def test_the_log_shows_who_changed_what(gateway: Running, log: AuditLog) -> None:
    """In a line, with the first changes and the reason; a link leads to the whole entry."""
    await log.note(
        ANNA,
        "team.policy_changed",
        "team",
        "team_a",
        team_id="team_a",
        reason="too many complaints",
        before={"quality_floor": None, "models": ["a"]},
        after={"quality_floor": 0.98, "models": ["a"]},
    )
    async with signed_in(gateway, role="finance") as browser:
        page = await browser.get("/dashboard/audit")
        assert page.status == 200
        for text in ("Anna", "team.policy_changed", "Team A", "quality_floor: nothing → 0.98", "too many complaints"):
            assert text in page.text
        assert 'href="/dashboard/audit/1"' in page.text
        entry = await browser.get("/dashboard/audit/1")
        for text in ("203.0.113.9", "<ins>0.98</ins>", "person_anna", "too many complaints"):
            assert text in entry.text
        assert '<th scope="row">models</th>' not in entry.text


async def test_another_organisations_entries_are_not_there(gateway: Running, log: AuditLog) -> None:
    """Neither on the page, by a filter, as a CSV, nor by number."""
    await log.note(THEIRS, "key.created", "key", "key_theirs", team_id="team_a")
    await log.note(ANNA, "key.created", "key", "key_ours")
    async with signed_in(gateway, role="admin") as browser:
        for query in ("", "?actor=Eve", "?object=key_theirs", "?team=team_a", "?format=csv", "?after=0", "?before=99"):
            page = await browser.get(f"/dashboard/audit{query}")
            assert page.status == 200
            assert "/dashboard/audit/1" not in page.text
            assert "person_eve" not in page.text
        assert (await browser.get("/dashboard/audit/1")).status == 404
        assert (await browser.get("/dashboard/audit/2")).status == 200
        for number in ("0", "-1", "x", "9" * 40, "1%00"):
            assert (await browser.get(f"/dashboard/audit/{number}")).status == 404


async def test_what_is_looked_for_is_in_the_address(gateway: Running, log: AuditLog) -> None:
    """Filters narrow the page and its CSV alike; one that cannot be meant is told at its field."""
    await log.note(ANNA, "key.created", "key", "key_one")
    await log.note(ANNA, "budget.set", "budget", "budget_two")
    async with signed_in(gateway, role="admin") as browser:
        page = await browser.get("/dashboard/audit?action=key")
        assert "key_one" in page.text
        assert "budget_two" not in page.text
        csv = await browser.get("/dashboard/audit?action=budget.set&format=csv")
        assert csv.headers["content-type"].startswith("text/csv")
        assert "budget_two" in csv.text
        assert "key_one" not in csv.text
        refused = await browser.get("/dashboard/audit?from=tomorrow")
        assert (refused.status, "a UTC day such as" in refused.text) == (400, True)
        assert "clear the filters" in (await browser.get("/dashboard/audit?actor=nobody")).text


async def test_pages_lead_back_and_forth(gateway: Running, log: AuditLog) -> None:
    """Newest first; the links keep the filters and never skip or repeat an entry."""
    for each in range(PAGE_ROWS + 5):
        await log.note(ANNA, "key.created", "key", f"key_{each:03}")
    async with signed_in(gateway, role="admin") as browser:
        first = await browser.get("/dashboard/audit?action=key")
        assert f"key_{PAGE_ROWS + 4:03}" in first.text
        assert "key_004" not in first.text
        assert 'href="?action=key&amp;before=6" rel="next"' in first.text
        second = await browser.get("/dashboard/audit?action=key&before=6")
        assert "key_004" in second.text
        assert "key_005" not in second.text
        assert 'rel="next"' not in second.text
        assert 'href="?action=key&amp;after=5" rel="prev"' in second.text
        back = await browser.get("/dashboard/audit?action=key&after=5")
        assert "key_005" in back.text
        assert "key_004" not in back.text
        assert 'rel="prev"' not in back.text


async def test_payloads_stay_text(gateway: Running, log: AuditLog) -> None:
    """Whatever somebody called a thing, its entry is text in every place that shows it."""
    actor = Actor(kind="key", actor_id=NASTY, name=NASTY, organisation_id="default", address=NASTY)
    await log.note(actor, "key.created", "key", NASTY, team_id=NASTY, reason=NASTY, after={NASTY: NASTY, "name": NASTY})
    async with signed_in(gateway, role="admin") as browser:
        for path in ("/dashboard/audit", "/dashboard/audit/1", "/dashboard/audit?actor=%3Cscript%3E"):
            page = await browser.get(path)
            assert page.status == 200
            assert "<script>" not in page.text


@pytest.mark.parametrize("role", ["", "finance", "admin"])
async def test_only_who_may_reads_it(gateway: Running, role: str) -> None:
    """Members and team administrators do not."""
    async with signed_in(gateway, role=role, teams={"team_a": "admin"}) as browser:  # type: ignore[arg-type]
        expected = 200 if role else 403
        assert (await browser.get("/dashboard/audit")).status == expected
        assert (await browser.get("/dashboard/audit?format=csv")).status == expected
