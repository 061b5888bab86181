"""The sample: a month that the gateway's own code wrote, the same for the same seed, and books that agree."""

import random
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.audit.log import AuditLog, Scope
from accounts.keys import Pepper
from accounts.people.passwords import Passwords
from accounts.people.sign_in import SignIn
from accounts.people.sign_in_config import SignInSection
from api.savings_calculator import SavingsCalculator
from cost.budgets.store import BudgetStore
from cost.calendar import Days
from cost.ledger.verify import check
from cost.reports.scope import ReadScope
from cost.times import DAY_US, HOUR_US, day_of, moment
from gateway.configuration.environment import Environment
from gateway.configuration.settings import load
from gateway.database import make_engine
from gateway.demo import company
from gateway.demo.answers import UNKNOWN, answer_to
from gateway.demo.history import REQUESTS, History, last_weekday, own_part, replicas_up, times_of, write_history
from gateway.demo.sample_config import Addresses, write_sample_config
from gateway.demo.scaled_pool import scaled
from gateway.wiring.catalog import catalog_of, classifier_of
from gateway.wiring.policy import build_policy, choice_evidence, informed
from providers.catalog import costs_nothing
from selfhosted.config import ScaleConfig
from selfhosted.registry.store import RegistryStore
from selfhosted.scale.policy import steps_of
from selfhosted.scale.target import Targets
from tests.gateway.demo.test_demo import _Place, _read_until, place
from tests.sqlite import newest_sqlite

__all__ = ["place"]

_PEPPER: Final = Pepper(id="p1", secret=b"a" * 32)
_PASSWORD: Final = "four scales and a bridge"
_TIMEOUT_S: Final = 110.0
_END_US: Final = 1_795_338_000_000_000
"""A Sunday in November 2026, 09:00 UTC."""


async def _written(engine: AsyncEngine, folder: Path, requests: int = 150, seed: int = 20) -> History:
    path = write_sample_config(folder, Addresses(), day_of(_END_US - 30 * DAY_US))
    environment = Environment(pepper=SecretStr("a" * 32))
    config = load(path, environment, secrets_from=None)
    return await write_history(
        engine, config, _PEPPER, end_us=_END_US, password=_PASSWORD, requests=requests, seed=seed
    )


async def _all(engine: AsyncEngine, query: str) -> list[Any]:
    async with engine.connect() as connection:
        return [tuple(row) for row in (await connection.execute(text(query))).all()]


async def test_the_books_of_the_month_agree(engine: AsyncEngine, tmp_path: Path) -> None:
    """Ledger and roll-ups tell the same, the audit log is whole, everybody signs in, and each team has worked; nothing lies in the future."""
    told = await _written(engine, tmp_path)
    verified = await check(engine, told.start_us, told.end_us, now_us=told.end_us)
    assert verified.differences == 0
    assert verified.rows > told.requests
    verdict = await AuditLog(engine).verify()
    assert verdict.sound
    assert verdict.entries > 50
    teams = {row[0] for row in await _all(engine, "SELECT DISTINCT team_id FROM rollup_day WHERE origin = 'caller'")}
    assert teams == {team.team_id for team in (*company.TEAMS, *company.NEIGHBOURS)}
    assert set(told.keys) == teams
    bills = await _all(engine, "SELECT count(*), min(bill_nanousd), sum(bill_nanousd) FROM true_up")
    assert bills[0][0] == 30
    assert bills[0][1] == 0, "nobody pays for a Sunday on which nothing was up"
    assert bills[0][2] > 0
    section = SignInSection()
    passwords = Passwords(min_chars=section.password_min_chars)
    sign_in = SignIn(engine, section, (_PEPPER,), passwords, now_us=lambda: _END_US)
    for each in company.SHOWN:
        assert (await sign_in.check(each.email, _PASSWORD, "127.0.0.1")).name == each.name
    assert set(told.links) == {each.email for each in company.SHOWN}
    await _nothing_lies_in_the_future(engine, told)
    await _the_pool_was_scaled(engine)


async def _the_pool_was_scaled(engine: AsyncEngine) -> None:
    """For a day up to now, with something expected of each time in it; and whoever serves may go on at once."""
    steps = steps_of(await Targets(engine).state(company.POOL))
    assert len(steps) == 287, "the last five minutes are not over"
    assert _END_US / 1e6 - 600 <= steps[-1].at_s <= _END_US / 1e6
    assert all(step.expected is not None for step in steps)
    assert await RegistryStore(engine).hold(company.POOL, "a gateway", 1_000_000)


def test_a_pool_is_scaled_as_the_day_goes() -> None:
    """On a working day: none at night, both in its busiest hours, and what came was mostly expected."""
    scale = ScaleConfig(min_replicas=0, max_replicas=2, cold_start_s=240, objective="latency")
    steps = steps_of(scaled(scale, 1_500.0, own_part, _END_US - 2 * DAY_US + 14 * HOUR_US, 20).state)
    assert {step.ready for step in steps} == {0, 1, 2}
    assert {step.ready for step in steps if moment(round(step.at_s) * 1_000_000).hour < 7} == {0}
    came = [(step.came, step.expected) for step in steps if step.came and step.expected]
    assert sum(0.8 * came < expected for came, expected in came) > 0.9 * len(came)


async def _nothing_lies_in_the_future(engine: AsyncEngine, told: History) -> None:
    """Nor before the company came; and a revoked key has called nobody since."""
    ((first, last),) = await _all(engine, "SELECT min(at_us), max(at_us) FROM ledger_entry")
    assert told.start_us <= first
    assert last <= told.end_us
    late = await _all(
        engine,
        "SELECT e.request_id, e.attempt, e.at_us - a.at_us FROM ledger_entry e JOIN api_key k ON k.key_id = e.key_id "
        "JOIN audit_entry a ON a.object_id = k.key_id AND a.action = 'key.revoked' "
        "WHERE e.entry = 'reserve' AND e.at_us > a.at_us",
    )
    assert late == []
    entries = await AuditLog(engine).page(Scope(organisation_id=company.ORGANISATION), limit=200)
    assert [each.at_us for each in entries] == sorted((each.at_us for each in entries), reverse=True)
    assert entries[0].at_us <= told.end_us


@pytest.mark.long
async def test_the_same_seed_tells_the_same_story(tmp_path: Path) -> None:
    """To the last nano-dollar and audit entry, but for the salts of these; another seed tells another one."""
    stories = []
    said = "at_us, organisation_id, team_id, actor_kind, actor_id, actor_name, action, object_id, reason, before, after"
    for number, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        engine = make_engine(newest_sqlite(folder / "story.sqlite"))
        try:
            await _written(engine, folder, requests=150, seed=seed)
            ledger = await _all(engine, "SELECT * FROM ledger_entry ORDER BY request_id, attempt, entry")
            keys = await _all(engine, "SELECT key_id, digest FROM api_key ORDER BY 1")
            audit = await _all(engine, f"SELECT {said} FROM audit_entry ORDER BY number")  # noqa: S608
            stories.append((ledger, keys, audit))
        finally:
            await engine.dispose()
    assert stories[0] == stories[1]
    assert stories[0] != stories[2]


@pytest.mark.parametrize("night", [False, True])
def test_a_team_works_when_it_works(*, night: bool) -> None:
    """By day on weekdays, or around the clock; always within the month, and as often as asked."""
    team = company.SampleTeam(team_id="t", name="T", share=1, work=company.TEAMS[0].work, night=night)
    start_us = _END_US - 30 * DAY_US
    found = times_of(team, 2_000, start_us, _END_US, random.Random(1))
    assert len(found) == 2_000
    assert found == sorted(found)
    assert start_us <= found[0]
    assert found[-1] < _END_US
    asleep = sum(at_us // HOUR_US % 24 in range(5) for at_us in found) / len(found)
    assert asleep > 0.15 if night else asleep < 0.05


def test_nobody_is_up_at_night() -> None:
    """The pool sleeps when it is cheaper to buy."""
    monday_us = _END_US - 9 * HOUR_US - 6 * DAY_US
    up = [replicas_up(monday_us + hour * HOUR_US) for hour in range(7 * 24)]
    assert {up[0], up[3]} == {0}
    assert max(up) == 2
    assert set(up[6 * 24 :]) == {0}


@pytest.mark.parametrize("end_day", range(7))
def test_an_event_has_an_after(end_day: int) -> None:
    """The jump begins on a Tuesday at 14:00, between 20 hours and 8 days before the end, whatever day it is looked at."""
    end_us = _END_US + end_day * DAY_US
    found = moment(last_weekday(1, 14, end_us))
    assert (found.weekday(), found.hour, found.minute) == (1, 14, 0)
    assert 20 <= (moment(end_us) - found).total_seconds() / 3_600 <= 8 * 24


async def test_the_jump_has_one_cause(engine: AsyncEngine, tmp_path: Path) -> None:
    """Its requests are one key's, for one model by its name, and none is from before its Tuesday; one target has an incident."""
    await _written(engine, tmp_path, requests=600)
    jumped = await _all(
        engine,
        "SELECT e.target_id, k.name, min(e.at_us), count(*) FROM ledger_entry e JOIN api_key k ON k.key_id = e.key_id "
        "WHERE e.tag = 'reranking' AND e.entry = 'reserve' GROUP BY e.target_id, k.name ORDER BY 4 DESC",
    )
    target, key, first_us, count = jumped[0]
    assert (target, key) == (company.REFERENCE, "query rewriting")
    assert {row[1] for row in jumped} == {"query rewriting"}
    assert first_us >= last_weekday(1, 14, _END_US)
    assert count > 10


@pytest.mark.long
async def test_the_company_is_well_run(tmp_path: Path) -> None:
    """Over the whole month the savings target is met, also with own GPUs' idle hours; one budget is nearly used up, none is."""
    engine = make_engine(newest_sqlite(tmp_path / "company.sqlite"))
    try:
        await _is_well_run(engine, tmp_path)
    finally:
        await engine.dispose()


async def _is_well_run(engine: AsyncEngine, tmp_path: Path) -> None:
    told = await _written(engine, tmp_path, requests=REQUESTS)
    config = load(tmp_path / "sample.yaml", Environment(pepper=SecretStr("a" * 32)), secrets_from=None)
    catalog, classifier = catalog_of(config), classifier_of(config)
    policy = informed(build_policy(config.policy, config.cost), catalog, classifier)
    savings = SavingsCalculator(
        engine,
        lambda: config.cost,
        lambda: told.end_us,
        operator=config.accounts.operator,
        evidence=lambda target_id: choice_evidence(target_id, policy, catalog, classifier),
        costs_nothing=lambda target_id: costs_nothing(catalog, target_id),
    )
    scope = ReadScope(organisation_id=company.ORGANISATION, team_id=None)
    inputs = await savings.inputs(scope, Days(day_of(told.start_us), day_of(told.end_us)))
    report = await savings.report(scope, inputs)
    assert report.verdict == "met"
    assert report.measured is not None
    assert report.measured.low > config.cost.savings_target
    assert all((each.share or 0) > 0 for each in report.comparisons)
    states = {
        each.budget.scope_id: each.state
        for each in await BudgetStore(engine, lambda: told.end_us).of_organisation(company.ORGANISATION)
    }
    assert [place for place, state in states.items() if state != "open"] == [company.JUMP.team_id]
    assert states[company.JUMP.team_id] == "warning"


def test_answers_read_like_answers() -> None:
    """Every prompt of the company has an answer of its own, and any other is told that no model is there."""
    for team in (*company.TEAMS, company.JUMP):
        for work in team.work:
            for prompt in work.prompts():
                body = msgspec.json.encode({"messages": [{"role": "user", "content": prompt.text}]})
                assert answer_to(body) != UNKNOWN
                assert "{}" not in answer_to(body)
    assert answer_to(b'{"messages": [{"role": "user", "content": "Hello"}]}') == UNKNOWN
    assert answer_to(b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}') == UNKNOWN
    assert answer_to(b"{}") == UNKNOWN


@pytest.mark.long
def test_serve_sample_serves_until_it_is_told_to_stop(place: _Place) -> None:
    """It prints an address, a password and links that open; SIGTERM ends everything, and nothing of it is left."""
    code = "from gateway.demo.sample import serve_sample; raise SystemExit(serve_sample(host=None, port=0, workers=None, requests=300))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=place.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    printed = _read_until(process, "the gateway's own code")
    links = re.findall(r"(http://127\.0\.0\.1:\d+/dashboard/welcome/\S+)", printed)
    assert len(links) == len(company.SHOWN)
    for link in links:
        with urllib.request.urlopen(link, timeout=30) as page:  # noqa: S310 - our own child
            assert page.status == 200
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert place.is_clean()
