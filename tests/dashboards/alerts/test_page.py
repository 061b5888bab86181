"""Alerts on their pages: who may set them, what they say now, and that they stay within their organisation."""

import csv
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from accounts.audit.log import AuditLog, Scope
from api.webhooks.callbacks import DESTINATION
from api.webhooks.outbox import Outbox
from cost.times import wall_us
from dashboards.alerts import store
from dashboards.alerts.alert import MEASURE_WORDS, MEASURES
from dashboards.alerts.store import all_alerts
from tests.api.webhooks.receiver import SECRET
from tests.dashboards.pages.teams import asked, keep, running_teams
from tests.in_turn import in_turn
from tests.running_gateway import Running
from tests.signed_in import Browser, signed_in

TEAM = "/dashboard/teams/team_a/alerts"
ALL = "/dashboard/alerts"
FORM = {"name": "Dear day", "measure": "spend", "threshold": "$2.50", "window_s": "3600", "destination": "ops"}


@pytest.fixture
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setenv("WEBHOOK_TEST_SECRET", SECRET)
    # Nobody listens there.
    ops = {"name": "ops", "url": "http://127.0.0.1:9/", "secret": "env:WEBHOOK_TEST_SECRET"}
    async with running_teams(tmp_path, webhooks={"destinations": [ops]}) as found:
        yield found


@pytest.fixture
async def tess(running: Running) -> AsyncIterator[Browser]:
    async with signed_in(running, "tess@example.com", teams={"team_a": "admin"}) as found:
        yield found


async def rows(browser: Browser, path: str) -> list[dict[str, str]]:
    answer = await browser.get(f"{path}?format=csv&table=alerts")
    return list(csv.DictReader(io.StringIO(answer.text)))


async def test_an_alert_is_set_shown_with_its_value_and_removed(running: Running, tess: Browser) -> None:
    """With its threshold beside what is measured now."""
    assert (await tess.post(TEAM, FORM)).location == TEAM
    assert [(row["threshold"], row["now"], row["state"]) for row in await rows(tess, TEAM)] == [
        ("$2.50", "$0.00", "Below")
    ]
    await keep(running, [asked("r", cost_nanousd=3_000_000_000), asked("b", team_id="team_b", cost_nanousd=10**12)])
    assert [(row["now"], row["state"]) for row in await rows(tess, TEAM)] == [("$3.00", "Above")]
    (alert,) = await all_alerts(running.engine)
    assert (alert.organisation_id, alert.team_id, alert.threshold) == ("default", "team_a", 2_500_000_000)
    assert (await tess.post(f"{TEAM}/remove", {"alert_id": alert.alert_id})).location == TEAM
    assert await all_alerts(running.engine) == []


async def test_every_measure_can_be_set(running: Running, tess: Browser) -> None:
    """None lacks its unit or its words."""
    for measure in MEASURES:
        form = {**FORM, "name": measure, "measure": measure, "threshold": "80"}
        assert (await tess.post(TEAM, form)).location == TEAM
    assert {row["name"]: row["measure"] for row in await rows(tess, TEAM)} == MEASURE_WORDS


async def test_budgets_are_warned_of_at_whole_percents(running: Running, tess: Browser) -> None:
    """As their messages say them."""
    answer = await tess.post(TEAM, {**FORM, "measure": "budgets", "threshold": "82.5"})
    assert (answer.status, "whole number of percent" in answer.text) == (400, True)


async def test_shares_and_latencies_are_told_from_enough_attempts_on(running: Running, tess: Browser) -> None:
    """One failure of two is no alarm; twenty attempts are enough."""
    for measure, threshold in (("errors", "10"), ("latency", "1.5"), ("no-room", "3"), ("errors", "8")):
        await tess.post(
            TEAM,
            {
                **FORM,
                "name": f"{measure} {threshold}" if threshold == "8" else measure,
                "measure": measure,
                "threshold": threshold,
            },
        )
    now_us = wall_us()
    await keep(running, [asked("f0", status=503, served=False, at_us=now_us, ttft_us=None)])
    found = {row["name"]: row["state"] for row in await rows(tess, TEAM)}
    few = "Too few attempts"
    assert found == {"errors": few, "errors 8": few, "latency": few, "no-room": "Below"}
    await keep(running, [asked(f"r{n}", at_us=now_us, stream=True, ttft_us=2_000_000) for n in range(36)])
    await keep(
        running,
        [
            asked(f"f{n}", status=status, served=False, at_us=now_us, ttft_us=None)
            for n, status in enumerate((500, 502, 504, 429, 429, 429), 1)
        ],
    )
    told = {row["name"]: (row["now"], row["state"]) for row in await rows(tess, TEAM)}
    assert told == {
        "errors": ("9.3 %", "Below"),
        "errors 8": ("9.3 %", "Above, maybe by chance"),
        "latency": ("2.00 s", "Above"),
        "no-room": ("3", "Above"),
    }


@in_turn(
    "field, value",
    [
        ("name", ""),
        ("measure", "luck"),
        ("threshold", "0"),
        ("threshold", "-1"),
        ("threshold", "1e99"),
        ("window_s", "7"),
        ("destination", "https://evil.example"),
    ],
)
async def test_what_is_wrong_is_told(running: Running, tess: Browser, field: str, value: str) -> None:
    """At the form, and nothing is set."""
    assert (await tess.post(TEAM, {**FORM, field: value})).status == 400
    assert await all_alerts(running.engine) == []


async def test_only_who_may_change_sets_alerts(running: Running, tess: Browser) -> None:
    """No member, nobody of another team or organisation, and nobody without the form's secret; nor by an alert's id."""
    await tess.post(TEAM, FORM)
    (alert,) = await all_alerts(running.engine)
    assert (await tess.post(ALL, FORM)).status == 403
    assert (await tess.post("/dashboard/teams/team_b/alerts", FORM)).status == 404
    assert (await tess.send(TEAM, FORM, {"sec-fetch-site": "same-origin"})).status == 403
    async with (
        signed_in(running, "milo@example.com", teams={"team_a": "member"}) as milo,
        signed_in(running, "lab@example.com", role="admin", organisation_id="fjord") as stranger,
        signed_in(running, "ada@example.com", role="admin") as ada,
    ):
        assert (await milo.post(TEAM, FORM)).status == 403
        assert (await milo.get(TEAM)).status == 200
        assert (await stranger.get(TEAM)).status == 404
        await stranger.post(f"{ALL}/remove", {"alert_id": alert.alert_id})
        await ada.post(f"{ALL}/remove", {"alert_id": alert.alert_id})
        assert len(await all_alerts(running.engine)) == 1
        assert await rows(stranger, ALL) == []
        assert (await ada.post(ALL, FORM)).location == ALL
    assert {each.team_id for each in await all_alerts(running.engine)} == {"", "team_a"}


async def test_a_team_leaves_room_for_others(running: Running, tess: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many one team wants, another one and the organisation still set theirs."""
    monkeypatch.setattr(store, "MOST_OF_TEAM", 2)
    for name in ("one", "two"):
        assert (await tess.post(TEAM, {**FORM, "name": name})).location == TEAM
    full = await tess.post(TEAM, {**FORM, "name": "three"})
    assert (full.status, "remove one first" in full.text) == (400, True)
    async with signed_in(running, "ada@example.com", role="admin") as ada:
        for path in ("/dashboard/teams/team_b/alerts", ALL, ALL, ALL):
            assert (await ada.post(path, FORM)).location == path


@pytest.fixture
async def open_running(tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway that lets teams enter addresses of their own."""
    mail = {"host": "127.0.0.1", "port": 9, "security": "none", "sender": "wb@example.org"}
    async with running_teams(
        tmp_path, webhooks={"mail": mail, "team_hosts": ["hooks.slack.com", "example.org"]}
    ) as found:
        yield found


OWN = {**FORM, "shape": "slack", "address": "https://hooks.slack.com/services/T0/SECRET"}


async def test_a_team_enters_an_address_of_its_own(open_running: Running) -> None:
    """Within the operator's hosts; only the host is shown and in the audit log, and a test goes there once a minute."""
    async with signed_in(open_running, "tess@example.com", teams={"team_a": "admin"}) as tess:
        assert (await tess.post(TEAM, OWN)).location == TEAM
        page = (await tess.get(TEAM)).text
        assert "hooks.slack.com" in page
        assert "SECRET" not in page
        assert [row["destination"] for row in await rows(tess, TEAM)] == ["hooks.slack.com"]
        (alert,) = await all_alerts(open_running.engine)
        assert "hooks" not in alert.address
        opened = open_running.callbacks.sealed.opened("team_a", alert.address)
        assert opened == "slack+https://hooks.slack.com/services/T0/SECRET"
        for _ in range(2):
            assert (await tess.post(f"{TEAM}/test", {"alert_id": alert.alert_id})).location == TEAM
        due = await Outbox(open_running.engine, lambda: wall_us() + 10**9).due(DESTINATION, 10)
        assert [(each.url, each.team_id) for each in due] == [(alert.address, "team_a")]
    kept = await AuditLog(open_running.engine).page(Scope(organisation_id="default"), limit=50)
    assert {"alert.added", "alert.tested"} <= {each.action for each in kept}
    assert not [each for each in kept if "SECRET" in repr(each)]


@in_turn(
    "changes",
    [
        {"address": "https://evil.example/"},
        {"address": "http://hooks.slack.com/x"},
        {"address": "https://169.254.169.254/latest"},
        {"shape": "mail", "address": "ops@evil.example"},
        {"shape": "pigeon"},
        {"address": ""},
    ],
)
async def test_another_address_is_refused(open_running: Running, changes: dict[str, str]) -> None:
    """At the form, with what is allowed; nothing is set."""
    async with signed_in(open_running, "tess@example.com", teams={"team_a": "admin"}) as tess:
        assert (await tess.post(TEAM, {**OWN, **changes})).status == 400
    assert await all_alerts(open_running.engine) == []


async def test_only_teams_have_addresses_of_their_own(open_running: Running) -> None:
    """The organisation's alerts go to configured destinations, and another team's alert is not tested by its id."""
    async with (
        signed_in(open_running, "tess@example.com", teams={"team_a": "admin", "team_b": "admin"}) as tess,
        signed_in(open_running, "ada@example.com", role="admin") as ada,
    ):
        assert (await ada.post(ALL, OWN)).status == 400
        await tess.post(TEAM, OWN)
        (alert,) = await all_alerts(open_running.engine)
        await tess.post("/dashboard/teams/team_b/alerts/test", {"alert_id": alert.alert_id})
        assert await Outbox(open_running.engine, lambda: wall_us() + 10**9).due(DESTINATION, 10) == []
