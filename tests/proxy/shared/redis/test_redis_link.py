"""The link of a process to a real Redis, in good times and in bad ones."""

import asyncio
import contextlib
import hashlib
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.redis_link import RedisLink
from proxy.shared.redis.scripts import Script, script
from proxy.shared.redis.shared_state import FailureKind, LinkObserver, ScriptRunner, SharedStateUnavailable
from tests.redis_server import RedisServer
from tests.toxic import toxic_proxy

_PATIENCE_S = 30.0
PREFIX = "{weighbridge}:"
# Quick to notice and quick to come back, so that a test takes little time; generous enough for a busy machine.
# A busy machine is no sick Redis, so only those give up soon who wait for one that never answers.
SECTION = RedisSection(timeout_s=5.0, slow_s=2.0, probe_s=0.05, connect_timeout_s=10.0)
QUICK = RedisSection(timeout_s=0.4, slow_s=0.2, probe_s=0.05, connect_timeout_s=1.0)


def lua(text: str) -> Script:
    return Script("test", text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


ECHO = lua("return ARGV[1]")
ADD = lua("return redis.call('INCRBY', KEYS[1], ARGV[1])")
WRONG = lua("return redis.call('NOSUCHCOMMAND')")
# Takes one of a limit for a holder, as admission does.
HOLD = lua(
    """
    if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return redis.error_reply('NOHOLDER') end
    redis.call('HINCRBY', KEYS[2], 'one', 1)
    return redis.call('INCR', KEYS[3])
    """
)
SPIN = lua("local n = 0; for i = 1, tonumber(ARGV[1]) do n = n + i end; return n")


class Watched(LinkObserver):
    """Counts what a link tells."""

    def __init__(self) -> None:
        self.calls = 0
        self.failures: Counter[FailureKind] = Counter()
        self.up: list[bool] = []
        self.primary_changes = 0

    def observe_redis_call(self, seconds: float) -> None:
        self.calls += 1

    def count_redis_failure(self, kind: FailureKind) -> None:
        self.failures[kind] += 1

    def set_redis_up(self, *, up: bool) -> None:
        self.up.append(up)

    def count_primary_change(self) -> None:
        self.primary_changes += 1


@contextlib.asynccontextmanager
async def linked(
    url: str,
    boot_id: str = "boot",
    *,
    section: RedisSection = SECTION,
    watched: Watched | None = None,
    heartbeat_s: float = 1.0,
    lost_after_s: float = 5.0,
    up: bool = True,
) -> AsyncIterator[RedisLink]:
    link = RedisLink(url, section, boot_id, observer=watched, heartbeat_s=heartbeat_s, lost_after_s=lost_after_s)
    await link.start()
    try:
        if up:
            # A busy machine may have answered a PING slowly.
            await until(lambda: link.healthy)
        yield link
    finally:
        await link.aclose()


async def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


async def hold(asking: ScriptRunner) -> Any:
    """Takes one of the limit `one`."""
    keys = (f"{PREFIX}holders", f"{PREFIX}held:{asking.holder}", f"{PREFIX}total:one")
    return await asking.call(HOLD, keys, (asking.holder,))


def total(server: RedisServer) -> int:
    """What all holders have of the limit `one`."""
    return int(server.ask("EVAL", "return tonumber(redis.call('GET', KEYS[1]) or 0)", "1", f"{PREFIX}total:one")[1:])


def holders(server: RedisServer) -> list[str]:
    """Of those that these tests make, who is registered."""
    made = (f"{boot}:{number}" for boot in ("boot", "a", "b") for number in range(1, 10))
    found = [name for name in made if server.ask("ZSCORE", f"{PREFIX}holders", name) != "$-1"]
    assert server.ask("ZCARD", f"{PREFIX}holders") == f":{len(found)}"
    return found


async def test_a_call_runs_its_script(empty_redis: RedisServer) -> None:
    """The script is loaded by the way, and arguments of every kind arrive whole."""
    async with linked(empty_redis.url) as link:
        assert link.healthy
        assert link.holder == "boot:1"
        assert link.live == 1
        for value, said in (
            ("ä b", "ä b".encode()),
            (b"\x00\xff", b"\x00\xff"),
            (7, b"7"),
            (0.1 + 0.2, b"0.30000000000000004"),
        ):
            assert await link.call(ECHO, (), (value,)) == said


async def test_calls_of_one_moment_each_get_their_own_reply(empty_redis: RedisServer) -> None:
    """A thousand callers share one connection, and far more calls than may be under way at once are all answered."""
    watched = Watched()
    async with linked(empty_redis.url, section=RedisSection(timeout_s=4, slow_s=1), watched=watched) as link:
        said = await asyncio.gather(*(link.call(ECHO, (), (number,)) for number in range(1_000)))
        assert said == [str(number).encode() for number in range(1_000)]
        assert not watched.failures


async def test_what_is_told_comes_before_what_is_asked_later(empty_redis: RedisServer) -> None:
    """Tells wait for nothing, and keep their place among the calls."""
    async with linked(empty_redis.url) as link:
        key = (f"{PREFIX}sum",)
        assert all(link.tell(ADD, key, (1,)) for _ in range(50))
        assert await link.call(ADD, key, (0,)) == 50


async def test_a_fault_of_one_script_fails_that_call_alone(empty_redis: RedisServer) -> None:
    """Its neighbours in the same moment are answered, and the link stays."""
    watched = Watched()
    async with linked(empty_redis.url, watched=watched) as link:
        for _ in range(10):
            calls = [link.call(ECHO, (), ("a",)), link.call(WRONG, (), ()), link.call(ECHO, (), ("b",))]
            said = await asyncio.gather(*calls, return_exceptions=True)
            assert (said[0], said[2]) == (b"a", b"b")
            assert isinstance(said[1], SharedStateUnavailable)
            assert said[1].kind == "error"
        assert link.healthy
        assert link.holder == "boot:1"
        assert watched.failures["error"] == 10


async def test_a_caller_that_leaves_takes_nobody_along(empty_redis: RedisServer) -> None:
    """Those cancelled before sending were never sent; of others the reply is handed on; all the rest are answered."""
    async with linked(empty_redis.url) as link:
        key = (f"{PREFIX}sum",)
        taken: list[int] = []
        tasks = [asyncio.create_task(link.call(ADD, key, (1,), unwanted=taken.append)) for _ in range(20)]
        others = [asyncio.create_task(link.call(ECHO, (), (number,))) for number in range(20)]
        # Two turns: they have asked, and it was sent.
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        for task in tasks[1:]:
            task.cancel()
        assert await asyncio.gather(*others) == [str(number).encode() for number in range(20)]
        assert all(
            isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*tasks, return_exceptions=True)
        )
        done = await link.call(ADD, key, (0,))
        assert taken == list(range(1, done + 1))
        assert done == 19


async def test_a_reply_that_comes_as_its_caller_leaves_is_not_lost(empty_redis: RedisServer) -> None:
    """Between the reply and the caller's next step there is a moment; what was taken is given back then too."""
    async with linked(empty_redis.url) as link:
        await link.call(ECHO, (), (1,))
        taken: list[int] = []

        async def leave() -> None:
            await link.call(ECHO, (), (1,))
            # The other's reply was read together with this one, and it has not gone on yet.
            leaving.cancel()

        first = asyncio.create_task(leave())
        leaving = asyncio.create_task(link.call(ADD, (f"{PREFIX}sum",), (1,), unwanted=taken.append))
        await first
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await link.call(ECHO, (), (1,))
        assert taken == [1]


async def test_a_library_of_another_make_is_told_at_the_start(
    empty_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise look like a Redis that is never there."""
    monkeypatch.setattr("proxy.shared.redis.redis_wire._WRITER", "_moved_elsewhere")
    link = RedisLink(empty_redis.url, SECTION, "boot-a")
    with pytest.raises(RuntimeError, match=r"installed redis \d.*requirements/base\.txt"):
        await link.start()
    await link.aclose()


async def test_an_unreachable_redis_hinders_no_start_and_is_found_later(empty_redis: RedisServer) -> None:
    """Without Redis calls fail at once; when it appears, the link comes up by itself."""
    empty_redis.kill()
    watched = Watched()
    begun = time.monotonic()
    async with linked(empty_redis.url, watched=watched, up=False) as link:
        assert time.monotonic() - begun < 30
        assert not link.healthy
        with pytest.raises(SharedStateUnavailable):
            await link.call(ECHO, (), (1,))
        assert not link.tell(ECHO, (), (1,))
        assert watched.failures["dropped"] == 1
        empty_redis.start()
        await until(lambda: link.healthy)
        assert await link.call(ECHO, (), (1,)) == b"1"
        assert watched.up == [False, True]


async def test_a_hanging_redis_hinders_no_start_no_call_and_no_stop(empty_redis: RedisServer) -> None:
    """It accepts connections and never answers: everything ends within its limit."""
    empty_redis.freeze()
    begun = time.monotonic()
    async with linked(empty_redis.url, section=QUICK, up=False) as link:
        assert not link.healthy
        with pytest.raises(SharedStateUnavailable):
            await link.call(ECHO, (), (1,))
    assert time.monotonic() - begun < 60
    empty_redis.thaw()


async def test_a_redis_that_freezes_is_given_up_after_one_time_out(empty_redis: RedisServer) -> None:
    """All who wait are told, later callers at once, and stopping does not wait for it."""
    lost: list[str] = []
    watched = Watched()
    async with linked(empty_redis.url, section=QUICK, watched=watched) as link:
        link.on_lost(lambda: lost.append(link.holder))
        await link.call(ECHO, (), (1,))
        empty_redis.freeze()
        said = await asyncio.gather(*(link.call(ECHO, (), (1,)) for _ in range(50)), return_exceptions=True)
        assert {each.kind for each in said if isinstance(each, SharedStateUnavailable)} <= {"late", "slow"}
        assert all(isinstance(each, SharedStateUnavailable) for each in said)
        assert not link.healthy
        assert lost == ["boot:1"]
        assert watched.up[-1] is False
        with pytest.raises(SharedStateUnavailable, match="open"):
            await link.call(ECHO, (), (1,))
    empty_redis.thaw()


async def test_what_a_frozen_redis_executes_late_counts_for_nobody(empty_redis: RedisServer) -> None:
    """The old connection's commands name a holder that the new one has replaced."""
    async with linked(empty_redis.url, section=QUICK) as link:
        assert await hold(link) == 1
        empty_redis.freeze()
        said = await asyncio.gather(*(hold(link) for _ in range(20)), return_exceptions=True)
        assert all(isinstance(each, SharedStateUnavailable) for each in said)
        empty_redis.thaw()
        await until(lambda: link.healthy)
        assert link.holder != "boot:1"
        # What the old holder had is given back, what it was late to take included.
        assert total(empty_redis) == 0
        assert await hold(link) == 1
        assert holders(empty_redis) == [link.holder]


async def test_a_redis_that_was_started_anew_is_told_everything_again(empty_redis: RedisServer) -> None:
    """It has neither scripts nor holders: the link is lost, and recovers with a new holder before anybody calls."""
    order: list[str] = []
    async with linked(empty_redis.url) as link:
        await link.call(ECHO, (), (1,))

        async def tell_again(asking: ScriptRunner) -> None:
            assert not link.healthy
            with pytest.raises(SharedStateUnavailable):
                await link.call(ECHO, (), (1,))
            order.append(f"recovered {await hold(asking)}")

        link.on_lost(lambda: order.append("lost"))
        link.on_recovered(tell_again)
        link.on_usable(lambda: order.append(f"usable {link.healthy}"))
        empty_redis.restart()
        await until(lambda: "lost" in order and link.healthy)
        assert order == ["lost", "recovered 1", "usable True"]
        assert await link.call(ECHO, (), (1,)) == b"1"
        assert total(empty_redis) == 1


async def test_forgotten_scripts_are_a_redis_that_was_started_anew(empty_redis: RedisServer) -> None:
    """A server behind a proxy may be another one without the connection breaking."""
    async with linked(empty_redis.url) as link:
        await link.call(ECHO, (), (1,))
        empty_redis.empty()
        with pytest.raises(SharedStateUnavailable, match="lost"):
            await link.call(ECHO, (), (1,))
        await until(lambda: link.healthy and link.holder != "boot:1")
        assert await link.call(ECHO, (), (1,)) == b"1"


async def test_a_process_that_was_taken_for_dead_comes_back_as_a_new_holder(empty_redis: RedisServer) -> None:
    """What it held was given back, so it registers anew and tells what it has in flight."""
    async with linked(empty_redis.url, "a", heartbeat_s=30.0) as frozen:
        await hold(frozen)
        recovered: list[str] = []

        async def tell_again(asking: ScriptRunner) -> None:
            recovered.append(asking.holder)
            await hold(asking)

        frozen.on_recovered(tell_again)
        async with linked(empty_redis.url, "b", heartbeat_s=0.05, lost_after_s=0.3) as other:
            await until(lambda: holders(empty_redis) == ["b:1"])
            assert total(empty_redis) == 0
            # It counts the living with its next heartbeat.
            await until(lambda: other.live == 1)
            with pytest.raises(SharedStateUnavailable, match="lost"):
                await hold(frozen)
            await until(lambda: frozen.healthy)
            assert recovered == ["a:2"]
            assert total(empty_redis) == 1
            await until(lambda: other.live == 2)


async def test_each_process_counts_those_that_live(empty_redis: RedisServer) -> None:
    """One that stops gives back what it held and is not counted from then on."""
    async with linked(empty_redis.url, "a", heartbeat_s=0.05) as stays:
        async with linked(empty_redis.url, "b", heartbeat_s=0.05) as goes:
            await hold(goes)
            await hold(stays)
            await until(lambda: stays.live == 2 and goes.live == 2)
            assert total(empty_redis) == 2
        assert total(empty_redis) == 1
        assert holders(empty_redis) == ["a:1"]
        await until(lambda: stays.live == 1)


async def test_who_died_before_the_clock_was_set_back_is_gone_all_the_same(empty_redis: RedisServer) -> None:
    """What it holds is given back within seconds, not when the clock is where it was."""
    register = (script("holders").text, "1", f"{PREFIX}holders", "register", PREFIX)
    now_ms = 10_000_000
    assert empty_redis.ask("EVAL", *register, "a", "1", "5000", str(now_ms)) == ":1"
    empty_redis.ask("HSET", f"{PREFIX}held:a:1", "one", "3")
    empty_redis.ask("SET", f"{PREFIX}total:one", "4")
    assert empty_redis.ask("EVAL", *register, "b", "1", "5000", str(now_ms - 4_000)) == ":2"
    refresh = (script("holders").text, "1", f"{PREFIX}holders", "refresh", PREFIX)
    assert empty_redis.ask("EVAL", *refresh, "b", "1", "5000", str(now_ms - 3_600_000)) == ":1"
    assert holders(empty_redis) == ["b:1"]
    assert total(empty_redis) == 1


async def test_a_registration_that_comes_late_pushes_nobody_out(empty_redis: RedisServer) -> None:
    """A frozen server may execute it after the one that followed."""
    async with linked(empty_redis.url) as link:
        empty_redis.restart()
        await until(lambda: link.healthy and link.holder != "boot:1")
        late = ("register", PREFIX, "boot", "1", "5000", "")
        said = empty_redis.ask("EVAL", script("holders").text, "1", f"{PREFIX}holders", *late)
        assert said.startswith("-NOHOLDER")
        assert holders(empty_redis) == [link.holder]


async def test_a_slow_redis_is_given_up_and_comes_back(empty_redis: RedisServer) -> None:
    """Slow replies are used; several in a row are too many; then it is tried until it is quick again."""
    watched = Watched()
    section = RedisSection(timeout_s=1.0, slow_s=0.05, probe_s=0.05, connect_timeout_s=1.0)
    async with toxic_proxy(empty_redis.port) as wire, linked(wire.url, section=section, watched=watched) as link:
        assert await link.call(ECHO, (), (0,)) == b"0"
        wire.slow(0.12)
        answered = 0
        with contextlib.suppress(SharedStateUnavailable):
            for number in range(20):
                assert await link.call(ECHO, (), (number,)) == str(number).encode()
                answered += 1
        assert 1 <= answered <= 5
        assert not link.healthy
        assert watched.failures["slow"] >= 5
        await asyncio.sleep(0.3)
        assert not link.healthy
        wire.calm()
        await until(lambda: link.healthy)
        assert await link.call(ECHO, (), (1,)) == b"1"


@pytest.mark.parametrize("spoil", ["swallow", "reset", "slice"])
async def test_a_bad_wire_mixes_up_no_replies(empty_redis: RedisServer, spoil: str) -> None:
    """Each caller hears its own reply or that there is none, and afterwards all is well again."""
    async with toxic_proxy(empty_redis.port) as wire, linked(wire.url) as link:

        async def ask(number: int) -> None:
            await asyncio.sleep(number * 0.001)
            with contextlib.suppress(SharedStateUnavailable):
                assert await link.call(ECHO, (), (number,)) == str(number).encode()

        asking = [asyncio.create_task(ask(number)) for number in range(200)]
        await asyncio.sleep(0.05)
        match spoil:
            case "swallow":
                wire.swallow()
            case "reset":
                wire.reset()
            case _:
                wire.slice(3)
        await asyncio.gather(*asking)
        wire.calm()
        await until(lambda: link.healthy)
        assert await link.call(ECHO, (), (7,)) == b"7"


async def test_a_late_loop_is_not_a_slow_redis(empty_redis: RedisServer) -> None:
    """When this process itself did not run for a while, the replies that lie there are read and used."""
    watched = Watched()
    section = RedisSection(timeout_s=0.6, slow_s=0.44)
    async with linked(empty_redis.url, section=section, watched=watched) as link:
        for _ in range(3):
            calls = [asyncio.create_task(link.call(ECHO, (), (number,))) for number in range(5)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            time.sleep(0.7)  # noqa: ASYNC251 - the loop must stand still
            await asyncio.gather(*calls)
        assert link.holder == "boot:1"
        assert not watched.failures["late"]
        assert not watched.failures["slow"]


@pytest.mark.long
async def test_a_script_that_keeps_redis_busy_costs_the_connection_only(empty_redis: RedisServer) -> None:
    """Calls behind it are late, and when it is done the link is whole again."""
    section = RedisSection(timeout_s=0.1, slow_s=0.05, probe_s=0.05)
    async with linked(empty_redis.url, section=section) as link:
        with pytest.raises(SharedStateUnavailable):
            await link.call(SPIN, (), (100_000_000,))
        await until(lambda: link.healthy)
        assert await link.call(ECHO, (), (1,)) == b"1"


async def test_more_than_may_wait_is_refused_and_never_sent(empty_redis: RedisServer) -> None:
    """A caller beyond the bound is told at once; a Redis that stands still makes nobody wait for longer than that."""
    watched = Watched()
    async with linked(empty_redis.url, section=QUICK, watched=watched) as link:
        empty_redis.freeze()
        said = await asyncio.gather(*(link.call(ECHO, (), (1,)) for _ in range(9_000)), return_exceptions=True)
        kinds = Counter(each.kind for each in said if isinstance(each, SharedStateUnavailable))
        assert kinds.total() == 9_000
        # Beyond the bound at once, and what was not sent after a quarter of the time.
        assert kinds["busy"] >= 800
        assert set(kinds) <= {"busy", "late", "slow"}
    empty_redis.thaw()


async def test_a_handover_that_fails_keeps_the_link_closed(
    empty_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls are let through only once what was decided without Redis could be told to it."""
    tries: list[str] = []

    async def faulty(asking: ScriptRunner) -> None:
        tries.append(asking.holder)
        if len(tries) < 3:
            raise RuntimeError("not yet")

    link = RedisLink(empty_redis.url, SECTION, "boot")
    link.on_recovered(faulty)
    with caplog.at_level(logging.CRITICAL):
        await link.start()
        await until(lambda: link.healthy)
    assert tries == ["boot:1", "boot:2", "boot:3"]
    assert holders(empty_redis) == ["boot:3"]
    await link.aclose()


async def test_a_password_is_neither_logged_nor_raised(
    empty_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong with the address."""
    caplog.set_level(logging.DEBUG)
    url = f"redis://someone:hunter2@127.0.0.1:{empty_redis.port}/0"
    async with linked(url, up=False) as link:
        assert not link.healthy
        assert link.place == f"127.0.0.1:{empty_redis.port}"
    with pytest.raises(ValueError, match="address of Redis") as raised:
        RedisLink("redis://:hunter2@host:port", SECTION, "boot")
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in caplog.text


async def test_a_password_opens_the_door(empty_redis: RedisServer) -> None:
    """The user and the database of the address are used."""
    assert empty_redis.ask("ACL", "SETUSER", "gate", "on", ">s3cret@/", "~*", "+@all") == "+OK"
    url = f"redis://gate:s3cret%40%2F@127.0.0.1:{empty_redis.port}/3"
    try:
        async with linked(url) as link:
            assert link.healthy
            assert await link.call(ADD, (f"{PREFIX}sum",), (1,)) == 1
            # Asked of database 0.
            assert empty_redis.ask("EXISTS", f"{PREFIX}sum") == ":0"
    finally:
        empty_redis.ask("ACL", "DELUSER", "gate")


async def test_every_key_expires(empty_redis: RedisServer) -> None:
    """What is left behind by processes that are all gone does not stay for ever."""
    async with linked(empty_redis.url, heartbeat_s=0.05) as link:
        await hold(link)
        await asyncio.sleep(0.2)
        for name in ("holders", f"held:{link.holder}"):
            assert int(empty_redis.ask("TTL", f"{PREFIX}{name}")[1:]) > 0


def test_redis_is_imported_only_by_those_who_have_one() -> None:
    """It takes longer to import than everything else of the gate together."""
    code = "import sys, proxy.shared.redis.redis_link; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
