"""The live tail's stream: what it sends, when it ends, and who may listen."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.access import OrganisationRole
from api.live.newest import EndedAttempt
from api.live.tail import DecisionTail
from cost.ledger.store import LedgerStore
from cost.times import wall_us
from dashboards.operations.decisions_page import Filter, decision_events
from dashboards.web.cookie import COOKIE
from tests.api.live.ledger import BASE_US, ended
from tests.api.live.turns import Turns
from tests.running_gateway import Running, model, running_gateway
from tests.signed_in import cookie_of, signed_in

ALL = Filter()
PATH = "/dashboard/operations/decisions"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    models = [model("small", [{"kind": "scripted", "upstream_model": "x"}])]
    async with running_gateway(tmp_path, models) as found:
        yield found


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


def never() -> bool:
    return False


async def book(engine: AsyncEngine, number: int, **fields: object) -> None:
    await LedgerStore(engine).insert([ended(number, BASE_US + number, **fields)])


async def test_rows_come_newest_first_with_an_id(engine: AsyncEngine) -> None:
    """One event for what ended in a moment, named by its last decision, so that a reader goes on from there."""
    await book(engine, 1)
    await book(engine, 2)
    tail = DecisionTail(engine, sleep=Turns())
    events = decision_events(tail, "", ALL, still_may=yes, is_draining=never)
    assert await anext(events) == "retry: 2000\n\n"
    told = await anext(events)
    assert told.startswith(f"event: decision\nid: {BASE_US + 2}-1-settle-req_000002\ndata: ")
    assert told.endswith("\n\n")
    assert told.index("req_000002", told.index("data:")) < told.index("req_000001")
    assert all(line.startswith(("event: ", "id: ", "data: ")) for line in told.splitlines() if line)
    await events.aclose()
    again = decision_events(tail, f"{BASE_US + 1}-1-settle-req_000001", ALL, still_may=yes, is_draining=never)
    await anext(again)
    assert "req_000001" not in (await anext(again)).partition("data:")[2]
    await again.aclose()
    assert tail.viewers == 0


async def test_names_stay_inert(engine: AsyncEngine) -> None:
    """Markup in a name is text, and no name begins another event."""
    await book(engine, 1, team_id="<img src=x onerror=alert(1)>", alias="a\n\nevent: end\ndata: x", target_id="</tr>")
    events = decision_events(DecisionTail(engine, sleep=Turns()), "", ALL, still_may=yes, is_draining=never)
    await anext(events)
    told = await anext(events)
    assert "<img" not in told
    assert "event: end" not in told.splitlines()
    assert told.count("\n\n") == 1
    await events.aclose()


async def test_a_filter_lets_only_its_own_through(engine: AsyncEngine) -> None:
    """By team, by target, what failed, what was weighed."""
    await book(engine, 1, team_id="team_b", status=502, served=False)
    await book(engine, 2, complexity=None)
    found = await _kept(engine)
    assert [each.request_id for each in found if Filter(team="team_b").lets(each)] == ["req_000001"]
    assert [each.request_id for each in found if Filter(only="failed").lets(each)] == ["req_000001"]
    assert [each.request_id for each in found if Filter(only="auto").lets(each)] == ["req_000001"]
    assert [each.request_id for each in found if Filter(target="other").lets(each)] == []


async def _kept(engine: AsyncEngine) -> tuple[EndedAttempt, ...]:
    async with DecisionTail(engine, sleep=Turns()).watching() as viewer:
        return (await viewer.take(5)).decisions


async def test_who_may_no_longer_see_it_is_let_go(engine: AsyncEngine) -> None:
    """At the next beat, with a word, and nothing more is sent."""
    tail = DecisionTail(engine, sleep=Turns())
    events = decision_events(tail, "", ALL, still_may=no, is_draining=never, beat_s=0, turn_s=0)
    await anext(events)
    told = [event async for event in events]
    assert len(told) == 1
    assert told[0].startswith("event: end\ndata: You are signed out")
    assert tail.viewers == 0


async def test_it_ends_when_the_process_stops(engine: AsyncEngine) -> None:
    """Without a word: the browser connects again, to a process that goes on."""
    stopping = [False]
    events = decision_events(
        DecisionTail(engine, sleep=Turns()), "", ALL, still_may=yes, is_draining=lambda: stopping[0], turn_s=0
    )
    await anext(events)
    stopping[0] = True
    assert [event async for event in events] == []


async def test_one_too_many_is_told_so(engine: AsyncEngine) -> None:
    """It gets a sound reply that says why it ends."""
    tail = DecisionTail(engine, most_viewers=0, sleep=Turns())
    told = [event async for event in decision_events(tail, "", ALL, still_may=yes, is_draining=never)]
    assert told[1].startswith("event: end\ndata: This page already has its limit of")


async def test_a_quiet_stream_shows_that_it_lives(engine: AsyncEngine) -> None:
    """At each beat there is an event, so that nobody between takes the connection for dead."""
    events = decision_events(
        DecisionTail(engine, sleep=Turns()), "", ALL, still_may=yes, is_draining=never, beat_s=0, turn_s=0
    )
    await anext(events)
    assert await anext(events) == "event: note\ndata: \n\n"
    await events.aclose()


async def test_the_page_and_its_stream(running: Running) -> None:
    """What is there stands on the page; what ends then comes by the stream, once, over a real socket."""
    store = LedgerStore(running.engine)
    await store.insert([ended(1, wall_us())])
    async with signed_in(running, role="operator") as browser:
        page = await browser.get(PATH)
        assert page.status == 200
        assert "req_000001" in page.text
        stream = page.text.partition('data-stream="')[2].partition('"')[0].replace("&amp;", "&")
        assert "no-store" in page.headers["cache-control"]
        headers = {"cookie": f"{COOKIE}={browser.cookie}"}
        async with aiohttp.ClientSession() as session, session.get(running.url + stream, headers=headers) as reply:
            assert (reply.status, reply.content_type) == (200, "text/event-stream")
            await store.insert([ended(2, wall_us())])
            text = ""
            async with asyncio.timeout(20):
                while "req_000002" not in text:
                    text += (await reply.content.readany()).decode()
            assert "req_000001" not in text


async def test_the_operators_organisation_alone_listens(running: Running) -> None:
    """Decisions of all organisations are told to those who run the gateway, whatever else somebody is."""
    await running.accounts.create_organisation("acme")
    roles: tuple[OrganisationRole, ...] = ("operator", "finance", "admin")
    for organisation, role in ((each, role) for each in ("default", "acme") for role in roles):
        cookie = await cookie_of(running, f"{role}@{organisation}.example.com", role=role, organisation_id=organisation)
        headers = {"cookie": f"{COOKIE}={cookie}"}
        for path in (PATH, f"{PATH}/stream"):
            async with aiohttp.ClientSession() as session, session.get(running.url + path, headers=headers) as reply:
                assert reply.status == (200 if organisation == "default" else 403)
