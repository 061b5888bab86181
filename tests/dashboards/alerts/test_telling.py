"""Who is told of an alert, how often, and in which shape."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.keys import Pepper
from accounts.store import AccountStore
from api.incidents.history import History
from api.webhooks.addresses import CallbackAddresses
from api.webhooks.callbacks import DESTINATION
from api.webhooks.mail import Mailer
from api.webhooks.outbox import Outbox
from api.webhooks.sealed_addresses import SealedAddresses
from api.webhooks.sender import Destination, Sender
from api.webhooks.shapes import mail_of, slack_body, words_of
from api.webhooks.team_addresses import TeamAddresses
from cost.budgets.budget import Budget
from cost.budgets.store import BudgetStore
from cost.ledger.store import LedgerStore
from cost.scopes import Scope
from cost.times import MINUTE_US, wall_us
from dashboards.alerts.alert import Alert
from dashboards.alerts.measuring import measured
from dashboards.alerts.store import add_alert, all_alerts
from dashboards.alerts.telling import AlertRound, Put
from proxy.responses.stored.sealing import Sealing
from proxy.settle.refusals.counting import RefusalsTold, Refused, RefusedCount
from proxy.settle.refusals.store import RefusalStore
from tests.api.incidents.seen import seen
from tests.cost.entries import settle

PEPPER = Pepper(id="pepper1", secret=b"p" * 32)
NOON = 1_775_390_400_000_000
HOUR = 3_600_000_000
ALERT = Alert(
    alert_id="alert_1",
    organisation_id="default",
    team_id="team_payments",
    name="<!channel> dear hour",
    measure="spend",
    threshold=2_000_000_000,
    window_s=3_600,
    destination="ops",
)


class Clock:
    """The time, as the test sets it."""

    def __init__(self) -> None:
        self.us = NOON

    def __call__(self) -> int:
        return self.us


async def set_up(engine: AsyncEngine, alert: Alert = ALERT) -> None:
    async with engine.begin() as connection:
        assert await add_alert(connection, alert)


async def test_an_alert_is_told_once_by_whichever_process_sees_it(engine: AsyncEngine) -> None:
    """From its threshold on, not below it; again after an hour if it still holds."""
    await set_up(engine)
    clock, outbox = Clock(), Outbox(engine, lambda: NOON)
    rounds = [AlertRound(engine, outbox.put, {"ops"}, clock) for _ in range(2)]
    store = LedgerStore(engine)
    await store.insert([settle("r1", at_us=NOON, cost_nanousd=1_999_999_999)])
    for each in rounds:
        await each.look()
    assert (await outbox.state("ops")).waiting == 0
    await store.insert([settle("r2", at_us=NOON + 1, cost_nanousd=1)])
    for each in (*rounds, *rounds):
        await each.look()
    assert (await outbox.state("ops")).waiting == 1
    clock.us = NOON + HOUR
    await store.insert([settle("r3", at_us=NOON + HOUR, cost_nanousd=5_000_000_000)])
    for each in rounds:
        await each.look()
    assert (await outbox.state("ops")).waiting == 2


async def test_what_others_spend_raises_nobodys_alarm(engine: AsyncEngine) -> None:
    """Neither another team nor an organisation that has a team of the same name; and nobody is told where nobody is."""
    await set_up(engine)
    outbox = Outbox(engine, lambda: NOON)
    dear = {"at_us": NOON, "cost_nanousd": 10**13}
    await LedgerStore(engine).insert(
        [settle("r1", organisation_id="globex", **dear), settle("r2", team_id="team_other", **dear)]
    )
    await AlertRound(engine, outbox.put, {"ops"}, Clock()).look()
    await LedgerStore(engine).insert([settle("r3", **dear)])
    await AlertRound(engine, outbox.put, {"others"}, Clock()).look()
    assert (await outbox.state("ops")).waiting == 0


async def test_refusals_are_counted_within_their_time_and_team(engine: AsyncEngine) -> None:
    """Whoever refused; what is older, or another team's, counts for nothing."""
    alert = msgspec.structs.replace(ALERT, measure="refusals", threshold=12, window_s=300)
    store = RefusalStore(engine)

    async def refused(count: int, at_us: int, boot_id: str, team_id: str = "team_payments") -> None:
        minute_us = at_us - at_us % MINUTE_US
        one = Refused(minute_us, "default", team_id, "key", "auto", "rate_limit_exceeded", 429)
        await store.keep(RefusalsTold(boot_id, (RefusedCount(one, count),), 1))

    await refused(900, NOON - 10 * MINUTE_US, "a")
    await refused(900, NOON, "a", "team_other")
    await refused(7, NOON - 4 * MINUTE_US, "a")
    await refused(5, NOON, "b")
    assert await measured(engine, alert, NOON) == (12, True)
    await set_up(engine, alert)
    outbox = Outbox(engine, lambda: NOON)
    await AlertRound(engine, outbox.put, {"ops"}, Clock()).look()
    assert (await outbox.state("ops")).waiting == 1


async def sent(engine: AsyncEngine, destination: Destination) -> None:
    """Sends what one alert tells to a destination."""
    await set_up(engine)
    outbox = Outbox(engine, lambda: NOON)
    await LedgerStore(engine).insert([settle("r", at_us=NOON, cost_nanousd=3_000_000_000)])
    await AlertRound(engine, outbox.put, {"ops"}, Clock()).look()
    sender = Sender(outbox, {"ops": destination}, now_us=lambda: NOON)
    try:
        assert await sender.send_due("ops") == 1
    finally:
        await sender.aclose()
    assert (await outbox.state("ops")).delivered == 1


async def test_slack_gets_words_that_mention_nobody(engine: AsyncEngine) -> None:
    """`text` alone, unsigned; what is Slack's markup in a name is text."""
    got: list[tuple[Mapping[str, str], Any]] = []

    async def take(request: web.Request) -> web.Response:
        got.append((request.headers, await request.json()))
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_post("/hook", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        await sent(engine, Destination(name="ops", url=f"http://127.0.0.1:{port}/hook", shape="slack"))
    finally:
        await runner.cleanup()
    ((headers, body),) = got
    assert list(body) == ["text"]
    assert body["text"].startswith("&lt;!channel&gt; dear hour: spend of team team_payments in the last hour is $3.00")
    assert "webhook-signature" not in headers


class MailTaker(threading.Thread):
    """An SMTP server for one mail."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.said: list[str] = []

    def run(self) -> None:
        talk, _ = self.listener.accept()
        with talk, talk.makefile("rw", newline="\r\n") as lines:
            self._say(lines, "220 here")
            in_data = False
            for line in lines:
                self.said.append(line.rstrip("\r\n"))
                if in_data:
                    in_data = self.said[-1] != "."
                    if not in_data:
                        self._say(lines, "250 taken")
                elif self.said[-1].upper() == "DATA":
                    in_data = True
                    self._say(lines, "354 go on")
                elif self.said[-1].upper() == "QUIT":
                    self._say(lines, "221 bye")
                    return
                else:
                    self._say(lines, "250 fine")

    @staticmethod
    def _say(lines: Any, text: str) -> None:
        lines.write(f"{text}\r\n")
        lines.flush()


@pytest.fixture
def taker() -> Iterator[MailTaker]:
    found = MailTaker()
    found.start()
    yield found
    found.listener.close()
    found.join(5)


async def test_mail_is_handed_to_the_server(engine: AsyncEngine, taker: MailTaker) -> None:
    """To everybody it is for, with the words as its text and the beginning of them as its subject."""
    mailer = Mailer(host="127.0.0.1", port=taker.port, security="none", sender="wb@example.com")
    await sent(engine, Destination(name="ops", shape="mail", to=("a@example.com", "b@example.com"), mailer=mailer))
    await asyncio.to_thread(taker.join, 5)
    whole = "\n".join(taker.said)
    assert [line for line in taker.said if line.lower().startswith("rcpt")] == [
        "rcpt TO:<a@example.com>",
        "rcpt TO:<b@example.com>",
    ]
    assert "Subject: Weighbridge: <!channel> dear hour" in whole
    assert "From: wb@example.com" in whole
    assert "$3.00" in whole


async def test_a_server_that_is_not_there_is_tried_again(engine: AsyncEngine) -> None:
    """Like any receiver that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    outbox = Outbox(engine, lambda: NOON)
    await outbox.put("m", "ops", "t", {"text": "hello"})
    mailer = Mailer(host="127.0.0.1", port=port, security="none", sender="wb@example.com", user="u", password="secret")
    sender = Sender(
        outbox,
        {"ops": Destination(name="ops", shape="mail", to=("a@example.com",), mailer=mailer)},
        now_us=lambda: NOON,
    )
    await sender.send_due("ops")
    await sender.aclose()
    assert (await outbox.state("ops")).waiting == 1
    assert "secret" not in repr(mailer)


def test_words_are_bounded_and_cannot_add_headers() -> None:
    """Other messages are told by their fields; a name with line ends adds no header."""
    assert words_of(b'{"type": "budget.threshold_reached", "data": {"budget_id": "b", "share": null}}') == (
        "budget.threshold_reached\nbudget_id: b\nshare: None"
    )
    assert words_of(b"[") == "A message that cannot be read."
    evil = b'{"data": {"text": "x\\r\\nBcc: all@example.com' + b"y" * 9_000 + b'"}}'
    mail = mail_of(evil, "alert/1\r\nBcc: b", "wb@example.com", ("a@example.com",))
    assert mail["Bcc"] is None
    assert len(mail["Subject"]) < 140
    assert len(slack_body(evil)) < 3_200


async def test_an_incident_is_told_when_it_opens_and_when_it_is_over(engine: AsyncEngine) -> None:
    """Once each, whoever looks: all of it to the operators, to a team its own share by what it asked for, without the upstream's words
    and where it was, and nothing to who was not hurt.
    """
    about = msgspec.structs.replace(ALERT, measure="incidents", threshold=1, team_id="", name="Outages")
    await set_up(engine, msgspec.structs.replace(about, alert_id="all"))
    for team_id in ("team_b", "team_c"):
        await set_up(engine, msgspec.structs.replace(about, alert_id=team_id, team_id=team_id))
    await set_up(engine, msgspec.structs.replace(about, alert_id="many", threshold=139))
    clock, told = Clock(), dict[str, tuple[str, Mapping[str, Any]]]()

    async def put(message_id: str, destination: str, kind: str, body: Mapping[str, Any], **told_to: str | None) -> bool:
        assert destination == "ops"
        assert told_to == {"url": None, "team_id": body["team_id"]}
        told.setdefault(message_id, (kind, body))
        return True

    history = History(engine)
    await history.note([seen(since_us=NOON - MINUTE_US)], "here", NOON)
    for _ in range(2):
        await AlertRound(engine, put, {"ops"}, clock, "default").look()
    assert {(kind, body["alert_id"], body["requests"], body["refused"]) for kind, body in told.values()} == {
        ("incident.opened", "all", 138, 130),
        ("incident.opened", "team_b", 48, 40),
    }
    words = {body["alert_id"]: body["text"] for _, body in told.values()}
    assert words["all"] == (
        "Outages: down, small, since 2026-04-05T11:59:00Z. Its provider refuses our key, so no deployment is called. "
        "Hurt: 138 requests of 2 teams: 130 refused, 8 delayed."
    )
    assert words["team_b"] == (
        "Outages: down, auto, since 2026-04-05T11:59:00Z. Hurt: 48 requests of 1 team: 40 refused, 8 delayed."
    )
    assert {body["alert_id"]: body["subject"] for _, body in told.values()} == {"all": "small", "team_b": "auto"}
    clock.us += HOUR
    await history.note([], "here", clock.us)
    await AlertRound(engine, put, {"ops"}, clock, "default").look()
    closed = [body for kind, body in told.values() if kind == "incident.closed"]
    assert {(body["alert_id"], body["requests"], body["closed_at"]) for body in closed} == {
        ("all", 138, "2026-04-05T12:00:00Z"),
        ("team_b", 48, "2026-04-05T12:00:00Z"),
    }
    assert all("is over after" in body["text"] for body in closed)


async def test_the_worst_open_incident_is_what_is_measured(engine: AsyncEngine) -> None:
    """None while there is none; of a team its own requests."""
    about = msgspec.structs.replace(ALERT, measure="incidents", threshold=1)
    whole, team = (msgspec.structs.replace(about, team_id=team_id) for team_id in ("", "team_b"))
    assert await measured(engine, whole, NOON, "default") is None
    await History(engine).note([seen()], "here", NOON)
    assert [await measured(engine, each, NOON, "default") for each in (whole, team)] == [(138, True), (48, True)]


def taken_by(got: list[Mapping[str, Any]]) -> Put:
    """An outbox that keeps what is put into it once."""
    known: set[str] = set()

    async def put(message_id: str, destination: str, kind: str, told: Mapping[str, Any], **more: str | None) -> bool:
        if message_id in known:
            return False
        known.add(message_id)
        got.append({"to": destination, "type": kind, **told, **more})
        return True

    return put


async def test_budgets_are_told_to_where_a_team_wants(engine: AsyncEngine) -> None:
    """Its own, those of its keys and of its models, each once in its period and again in the next; no tag's and no other team's."""
    accounts = AccountStore(engine)
    await accounts.create_organisation("default")
    await accounts.create_team("team_payments", "Payments")
    await accounts.create_team("team_other", "Other")
    key = await accounts.create_key("team_payments", "prod", PEPPER)
    store, clock = BudgetStore(engine, wall_us), Clock()
    clock.us = wall_us()
    for budget_id, scope, scope_id in (
        ("b_team", "team", "team_payments"),
        ("b_key", "key", key.key_id),
        ("b_model", "team_model", "team_payments/m"),
        ("b_tag", "tag", "default/nightly"),
        ("b_other", "team", "team_other"),
    ):
        await store.put(
            Budget(
                budget_id=budget_id,
                organisation_id="default",
                scope=cast(Scope, scope),
                scope_id=scope_id,
                period="year",
                kind="hard",
                limit_nanousd=10**9,
            )
        )
    await LedgerStore(engine).insert(
        [
            settle(
                f"r_{team}",
                team_id=team,
                key_id=key_id,
                tag="nightly",
                target_id="m",
                at_us=clock.us,
                cost_nanousd=850_000_000,
            )
            for team, key_id in (("team_payments", key.key_id), ("team_other", "key_x"))
        ]
    )
    alert = msgspec.structs.replace(ALERT, measure="budgets", threshold=800_000, name="Budgets")
    await set_up(engine, alert)
    got: list[Mapping[str, Any]] = []
    put = taken_by(got)
    rounds = [AlertRound(engine, put, {"ops"}, clock) for _ in range(2)]
    for each in (*rounds, *rounds):
        await each.look()
    assert sorted(told["budget_id"] for told in got) == ["b_key", "b_model", "b_team"]
    assert {(told["to"], told["type"], told["threshold"]) for told in got} == {
        ("ops", "budget.threshold_reached", "0.80")
    }
    assert await measured(engine, alert, clock.us) == (850_000, True)


async def test_addresses_that_were_kept_in_clear_are_sealed(engine: AsyncEngine) -> None:
    """In alerts and in what the outbox has of them, with the first round; what follows goes to the same address."""
    clear = "slack+https://hooks.slack.com/services/T0/SECRET"
    own = msgspec.structs.replace(ALERT, destination=DESTINATION, address=clear)
    await set_up(engine, own)
    outbox = Outbox(engine, lambda: NOON)
    await outbox.put("alert/alert_1/1", DESTINATION, "t", {}, url=clear, team_id="team_payments")
    await outbox.put("batch/1", DESTINATION, "t", {}, url="https://callers.example/", team_id="team_payments")
    await LedgerStore(engine).insert([settle("r", at_us=NOON, cost_nanousd=3_000_000_000)])
    sealed = SealedAddresses(Sealing((PEPPER,)))
    rules = TeamAddresses(("hooks.slack.com",), CallbackAddresses(()), has_mail=False)
    for _ in range(2):
        await AlertRound(engine, outbox.put, (), Clock(), addresses=rules, sealed=sealed).look()
    (kept,) = await all_alerts(engine)
    due = {each.message_id: each.url or "" for each in await outbox.due(DESTINATION, 10)}
    assert [name for name, url in due.items() if "SECRET" in url] == []
    assert due.pop("batch/1") == "https://callers.example/"
    assert len(due) == 2
    assert {sealed.opened("team_payments", each) for each in (kept.address, *due.values())} == {clear}
