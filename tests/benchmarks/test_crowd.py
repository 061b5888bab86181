import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks import callers, crowd, mock_upstream, sites
from benchmarks.crowd import Callers, Plan, Sample, places
from benchmarks.mock_upstream import FRAMING_EVENTS

_BODY = '{"stream":true,"max_tokens":5,"seed":%d,"messages":[{"role":"user","content":"########"}]}'


@asynccontextmanager
async def _mock() -> AsyncIterator[str]:
    server = await mock_upstream.listen(0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0.01)


def _plan(url: str, *, events: int = 5 + FRAMING_EVENTS, give_up_s: float = 5.0, pace: int = -2) -> Plan:
    return Plan(
        url=url,
        body=_BODY % pace,
        callers=(Callers("heavy", "key-a", 4), Callers("light", "key-b", 2)),
        streams_each=2,
        ramp_s=0.01,
        events=events,
        give_up_s=give_up_s,
    )


async def test_every_caller_holds_one_stream_after_the_other() -> None:
    """All of them whole, on kept connections, and by team."""
    async with _mock() as url:
        result = await crowd.drive(_plan(url))
    assert result.error_kinds == {}
    assert Counter(each.round for each in result.ended) == {0: 6, 1: 6}
    assert Counter(each.caller for each in result.ended) == dict.fromkeys(range(6), 2)
    assert len(result.connects_us) == 6
    assert 1 <= result.peak_streams <= 6
    assert sum(result.peak_by_team.values()) == result.peak_streams
    assert result.samples[-1].events == 12 * (5 + FRAMING_EVENTS)
    assert result.samples[-1].open_streams == 0


async def test_a_stream_with_other_events_is_an_error() -> None:
    """The caller ends, and nothing is counted as whole."""
    async with _mock() as url:
        result = await crowd.drive(_plan(url, events=9))
    assert result.ended == []
    assert result.error_kinds == {"7 events": 6}


async def test_what_does_not_end_in_time_is_an_error() -> None:
    """Patience has an end, and then nothing is left open."""
    async with _mock() as url:
        result = await crowd.drive(_plan(url, give_up_s=1.0, pace=-10_000))
    assert result.error_kinds == {"not ended in time": 6}


async def test_a_server_that_is_not_there_is_an_error() -> None:
    """Once for each caller."""
    async with _mock() as url:
        pass
    result = await crowd.drive(_plan(url))
    assert sum(result.error_kinds.values()) == 6


async def test_a_refusal_is_told_by_its_code() -> None:
    """So that a limit is told from a breakdown."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10_000)
        body = b'{"error":{"message":"no","code":"overloaded"}}'
        writer.write(b"HTTP/1.1 503 No\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    result = await crowd.drive(_plan(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    server.close()
    await asyncio.sleep(0.01)
    assert result.error_kinds == {"status 503 overloaded": 6}


def test_callers_come_mixed() -> None:
    """As many of each team as there are, in an order that the seed decides."""
    of = (Callers("a", "", 50), Callers("b", "", 150))
    order = places(of, 1)
    assert Counter(order) == {0: 50, 1: 150}
    assert order == places(of, 1) != places(of, 2)
    assert 10 < sum(place == 0 for place in order[:100]) < 40


@pytest.mark.parametrize("number", [10_000, 1_000, 17])
def test_a_fifth_are_of_one_team(number: int) -> None:
    """The rest are divided over nine teams as evenly as can be, and nobody is lost."""
    teams = callers.split(number)
    others = [count for team, count in teams.items() if team != callers.HEAVY]
    assert sum(teams.values()) == number
    assert teams[callers.HEAVY] == round(number / 5)
    assert (len(others), max(others) - min(others) <= 1) == (9, True)


def test_the_plateau_is_while_all_are_there() -> None:
    """From the first moment with nearly all to the last before some leave; None when they never all came."""
    samples = [Sample(float(at), count, at * 100, 0.0) for at, count in enumerate([0, 50, 99, 100, 98, 60, 100])]
    found = callers.plateau(samples, 100)
    assert found is not None
    assert (found.begins_s, found.ends_s, found.events, found.events_per_s) == (2.0, 4.0, 200, 100.0)
    assert callers.plateau(samples, 1_000) is None
    assert callers.plateau([], 1) is None


def test_the_pace_leaves_the_cores_some_air() -> None:
    """Twice as dear an event, twice as long between two; longer when callers come; none when those take it all."""
    once = callers.affordable_every_s(100e-6, 0.0, 10_000, 2)
    assert once is not None
    assert callers.affordable_every_s(200e-6, 0.0, 10_000, 2) == pytest.approx(2 * once)
    assert callers.affordable_every_s(100e-6, 0.7, 10_000, 2) == pytest.approx(2 * once)
    assert callers.affordable_every_s(1e-9, 0.0, 10, 64) == 0.05
    assert callers.affordable_every_s(100e-6, 2.0, 10_000, 2) is None


def test_a_slow_pace_has_streams_at_many_moments() -> None:
    """Thousands of streams of one event a second do not all speak at once."""
    loop = asyncio.new_event_loop()
    try:
        assert len(mock_upstream.Wheel(loop, 1.0)._slots) == 100
        assert len(mock_upstream.Wheel(loop, 0.05)._slots) == 10
    finally:
        loop.close()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
async def test_connections_are_told_by_process() -> None:
    """Those that this process has accepted at a port, and of no other port."""
    async with _mock() as url:
        port = int(url.rpartition(":")[2])
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await asyncio.sleep(0.02)
        assert len(sites._sockets_at(port) & sites._sockets_of(os.getpid())) == 3
        for _, writer in opened:
            writer.close()
            await writer.wait_closed()
