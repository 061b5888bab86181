"""Every page that somebody is shown a link to answers, whatever the gateway has or has not."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from accounts.access import OrganisationRole, TeamRole
from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from cost.times import DAY_US, HOUR_US, wall_us
from tests.cost.entries import reserve, settle
from tests.dashboards.pages.walk import EACH, Walk, walk
from tests.running_gateway import PEPPER, Running, model, running_gateway
from tests.signed_in import signed_in

SCRIPTED: Final[list[dict[str, Any]]] = [{"name": "a", "kind": "scripted", "upstream_model": "ok"}]
Person = tuple[OrganisationRole, dict[str, TeamRole]]
EVERYBODY: Final[Sequence[Person]] = (
    ("admin", {}),
    ("finance", {}),
    ("operator", {}),
    ("", {"team_a": "admin"}),
    ("", {"team_a": "member"}),
    ("", {}),
)
ENOUGH: Final[Sequence[Person]] = (("admin", {}), ("", {"team_a": "member"}))
"""Who together see every page, and the parts of it that depend on a clock."""
LONG: Final = "Wideness <b>&</b> " + "w" * 182
_PEPPER: Final = Pepper(id=pepper_id(PEPPER.encode()), secret=PEPPER.encode())


async def all_walk(
    running: Running, *, most: int = 160, people: Sequence[Person] = EVERYBODY, each: int = EACH
) -> list[Walk]:
    """Everybody follows every link."""
    walks = []
    for number, (role, teams) in enumerate(people):
        async with signed_in(running, f"p{number}@example.com", role=role, teams=teams) as browser:
            found = await walk(browser, most=most, each=each)
        assert found.dead_ends == [], (role, teams)
        assert found.written_otherwise() == [], (role, teams)
        walks.append(found)
    return walks


def attempts(count: int, *, before_us: int | None = None, **changes: Any) -> list[Entry]:
    """Settled attempts of team A, one an hour back from now."""
    now_us = before_us or wall_us()
    entries = []
    for number in range(count):
        at_us = now_us - number * HOUR_US - 1_000_000
        usual = {"team_id": "team_a", "key_id": "", "target_id": "only", "at_us": at_us, "input_nanousd": 1_000_000}
        usual |= {"served": True, **changes}
        name = f"{changes.get('reason', 'r')}-{changes.get('target_id', '')}-{number}"
        entries.append(reserve(name, team_id="team_a", at_us=at_us, target_id=str(usual["target_id"])))
        entries.append(settle(name, **usual))
    return entries


@pytest.mark.parametrize("each", [1, pytest.param(EACH, marks=pytest.mark.long)])
async def test_a_gateway_that_nobody_used(tmp_path: Path, each: int) -> None:
    """No request, no reference, no pool, no Redis."""
    async with running_gateway(tmp_path, [model("only", SCRIPTED)]) as running:
        walks = await all_walk(running, each=each)
        assert len(walks[0].answers) > 40
        for found in walks:
            assert not re.search(r">\s*None\s*<", found.text())


@pytest.mark.parametrize("each", [1, pytest.param(EACH, marks=pytest.mark.long)])
async def test_only_failures(tmp_path: Path, each: int) -> None:
    """Every request failed, and nothing has a price."""
    async with running_gateway(tmp_path, [model("only", SCRIPTED)]) as running:
        free = {"cost_nanousd": None, "input_nanousd": 0, "baseline_nanousd": None}
        await LedgerStore(running.engine).insert(attempts(200, served=False, status=502, output_tokens=0, **free))
        await all_walk(running, people=ENOUGH, each=each)


@pytest.mark.long
async def test_what_lost_money(tmp_path: Path) -> None:
    """Dearer than the reference, a baseline of nothing, corrections below zero."""
    async with running_gateway(tmp_path, [model("only", SCRIPTED)], cost={"reference_target": "only"}) as running:
        store = LedgerStore(running.engine)
        await store.insert(attempts(150, baseline_nanousd=10))
        await store.insert(attempts(150, target_id="free", baseline_nanousd=0))
        await store.insert(
            [
                settle(
                    "c1",
                    entry="adjust",
                    origin="correction",
                    team_id="team_a",
                    target_id="only",
                    at_us=wall_us() - 3 * DAY_US,
                    cost_nanousd=-9_000_000_000,
                    input_nanousd=-9_000_000_000,
                    input_tokens=0,
                    output_tokens=0,
                    baseline_nanousd=None,
                    served=False,
                    status=0,
                    usage_source="none",
                )
            ]
        )
        await all_walk(running)


@pytest.mark.long
async def test_a_large_company(tmp_path: Path) -> None:
    """300 teams, a team with 500 keys and long names, 1,000 entries in the audit log."""
    async with running_gateway(tmp_path, [model("only", SCRIPTED)]) as running:
        accounts = running.accounts
        for number in range(300):
            await accounts.create_team(f"team_{number:03}", name=LONG[:100])
        for number in range(500):
            await accounts.create_key("team_a", f"{LONG[:80]}{number}", _PEPPER)
        log = AuditLog(running.engine)
        actor = Actor(kind="console", actor_id="root", name=LONG[:100], organisation_id="default")
        async with log.change(actor, "team.changed", reason=LONG[:200]) as change:
            for number in range(1000):
                change.tell("team", f"team_{number}", {"name": "x"}, {"name": LONG})
        await LedgerStore(running.engine).insert(attempts(100))
        await all_walk(running)


@pytest.mark.long
@pytest.mark.parametrize(
    "moment",
    [
        datetime(2027, 1, 1, tzinfo=UTC),
        datetime(2028, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2027, 3, 31, 12, 59, 59, 999_999, tzinfo=UTC),
    ],
)
async def test_clocks_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: datetime) -> None:
    """The first microsecond of a year, the last of a leap day, a month without a day of the same number before it."""
    now_us = int((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
    monkeypatch.setattr("dashboards.web.view.wall_us", lambda: now_us)
    async with running_gateway(tmp_path, [model("only", SCRIPTED)], cost={"reference_target": "only"}) as running:
        budget = Budget(
            budget_id="new",
            organisation_id="default",
            scope="team",
            scope_id="team_a",
            period="month",
            kind="soft",
            limit_nanousd=10**9,
        )
        await BudgetStore(running.engine).put(budget)
        await LedgerStore(running.engine).insert(attempts(60, before_us=now_us, baseline_nanousd=2_000_000))
        await all_walk(running, most=80, people=ENOUGH)
