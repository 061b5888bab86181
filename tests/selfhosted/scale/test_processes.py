"""Real engine processes, started, drained, killed and ended."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from selfhosted.config import LaunchConfig, PoolConfig
from selfhosted.engines.scrape import HttpFetch, engine_session
from selfhosted.scale import keeper
from selfhosted.scale.engine_sleep import is_sleeping, put_to_sleep, wake
from selfhosted.scale.gateway_client import GatewayClient
from selfhosted.scale.processes import Actuator, end_leftovers
from selfhosted.scale.start_turns import StartTurns
from tests.selfhosted.scale.door import TOKEN, WAIT_S, Door, open_door, until

CHILD = str(Path(__file__).with_name("engine_child.py"))


def launch(tmp_path: Path, **changes: Any) -> LaunchConfig:
    del tmp_path
    # Below what the system gives out by itself, and another range for each test process.
    first = 20_000 + os.getpid() % 1_000 * 10
    return LaunchConfig(
        command=(sys.executable, "-I", CHILD, "{port}", "{name}"), first_port=first, grace_s=5, **changes
    )


@contextlib.asynccontextmanager
async def actuating(door: Door, tmp_path: Path, config: LaunchConfig | None = None) -> AsyncIterator[Actuator]:
    pool = PoolConfig(name="p", targets=("m",), launch=config or launch(tmp_path))
    async with engine_session() as session:
        actuator = Actuator(
            pool,
            config or launch(tmp_path),
            door=GatewayClient(session, door.url, "p", TOKEN),
            fetch=HttpFetch(session),
            folder=tmp_path / "engines",
            environment={},
            prefix="r",
            settle_s=0.05,
            every_s=0.02,
        )
        work = asyncio.ensure_future(actuator.run())
        try:
            yield actuator
        finally:
            actuator.drain_all()
            async with asyncio.timeout(WAIT_S):
                await work


def phases(actuator: Actuator) -> list[str]:
    return sorted(child.phase for child in actuator.children)


async def test_scales_up_and_down_and_streams_finish_before_their_engine_ends(tmp_path: Path) -> None:
    """From one to three and back: what a drained engine streams is whole, and afterwards nothing runs."""
    async with open_door() as door, aiohttp.ClientSession() as client, actuating(door, tmp_path) as actuator:
        door.desired = 1
        await until(lambda: phases(actuator) == ["ready"])
        door.desired = 3
        await until(lambda: phases(actuator) == ["ready"] * 3)
        assert door.takes_work == ["r-1", "r-2", "r-3"]

        async def streamed(name: str) -> str:
            async with client.get(f"{actuator.address(name)}/stream?for=0.7") as reply:
                return (await reply.read()).decode()

        streams = [asyncio.ensure_future(streamed(child.name)) for child in actuator.children]
        await until(lambda: all(child.busy == 1 for child in actuator.children))
        door.desired = 1
        await until(lambda: len(door.takes_work) == 1)
        assert phases(actuator) == ["draining", "draining", "ready"]
        assert all(whole.endswith("end") for whole in await asyncio.gather(*streams))
        await until(lambda: phases(actuator) == ["ready"])
        assert len(door.registered) == 1
    assert door.registered == {}
    assert list((tmp_path / "engines").glob("*.pid")) == []


async def test_a_draining_engine_is_taken_back_before_another_is_started(tmp_path: Path) -> None:
    """It is warm, which a new one would not be for minutes."""
    async with open_door() as door, aiohttp.ClientSession() as client, actuating(door, tmp_path) as actuator:
        door.desired = 1
        await until(lambda: phases(actuator) == ["ready"])
        address = actuator.address("r-1")
        reply = await client.get(f"{address}/stream?for=30")
        await until(lambda: actuator.children[0].busy == 1)
        door.desired = 0
        await until(lambda: door.registered["r-1"]["draining"])
        door.desired = 1
        await until(lambda: phases(actuator) == ["ready"] and door.takes_work == ["r-1"])
        assert actuator.address("r-1") == address
        reply.close()


async def test_an_engine_that_nobody_wants_sleeps_and_is_woken(tmp_path: Path) -> None:
    """The same process, which is no replica meanwhile, and for the gateway another instance afterwards; in the end it ends."""
    config = launch(tmp_path, keep_asleep=1)
    async with open_door() as door, actuating(door, tmp_path, config) as actuator:
        door.desired = 2
        await until(lambda: phases(actuator) == ["ready", "ready"])
        addresses = {child.name: actuator.address(child.name) for child in actuator.children}
        instances = {name: told["instance"] for name, told in door.registered.items()}
        door.desired = 1
        await until(lambda: phases(actuator) == ["asleep", "ready"])
        (asleep,) = [child.name for child in actuator.children if child.phase == "asleep"]
        assert asleep not in door.registered
        door.desired = 2
        await until(lambda: phases(actuator) == ["ready", "ready"] and len(door.takes_work) == 2)
        assert actuator.address(asleep) == addresses[asleep]
        assert door.registered[asleep]["instance"] != instances[asleep]
        door.desired = 0
        await until(lambda: phases(actuator) == ["asleep"])
    assert list((tmp_path / "engines").glob("*.pid")) == []


async def test_an_engine_that_cannot_sleep_is_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that was started without sleep mode answers 404: it goes as it would have without."""
    plain = launch(tmp_path, keep_asleep=1)
    config = plain.model_copy(update={"command": (*plain.command, "no-sleep")})
    async with open_door() as door, actuating(door, tmp_path, config) as actuator:
        door.desired = 1
        await until(lambda: phases(actuator) == ["ready"])
        door.desired = 0
        await until(lambda: phases(actuator) == [])
    assert "neither sleeps nor wakes" in caplog.text


async def test_a_killed_engine_is_started_again(tmp_path: Path) -> None:
    """Under its name, as another instance, so that nobody takes it for the one before."""
    async with open_door() as door, actuating(door, tmp_path) as actuator:
        door.desired = 1
        await until(lambda: phases(actuator) == ["ready"])
        before = door.registered["r-1"]["instance"]
        group = int((tmp_path / "engines" / "r-1.pid").read_text().split()[2])
        os.kill(group, signal.SIGKILL)
        await until(lambda: phases(actuator) == ["waiting"])
        await until(lambda: phases(actuator) == ["ready"] and "r-1" in door.registered)
        assert door.registered["r-1"]["instance"] != before


async def test_an_engine_whose_keeper_was_killed_does_not_stay(tmp_path: Path) -> None:
    """The actuator sees to what the keeper could not."""
    async with open_door() as door, actuating(door, tmp_path) as actuator:
        door.desired = 1
        await until(lambda: phases(actuator) == ["ready"])
        kept, _, group, _ = map(int, (tmp_path / "engines" / "r-1.pid").read_text().split())
        os.kill(kept, signal.SIGKILL)
        await until(lambda: phases(actuator) == ["waiting"])
        await until(lambda: not keeper.alive(group))


async def test_an_unknown_number_changes_nothing(tmp_path: Path) -> None:
    """A gateway that is away, or has decided nothing, ends no engine."""
    async with open_door() as door, actuating(door, tmp_path) as actuator:
        door.desired = 1
        await until(lambda: phases(actuator) == ["ready"])
        for door.away, door.desired in ((True, 1), (False, None)):
            await actuator.step()
            assert phases(actuator) == ["ready"]


async def test_a_gateway_that_is_away_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not every second for every replica."""
    async with open_door() as door, actuating(door, tmp_path) as actuator:
        door.desired = 2
        await until(lambda: phases(actuator) == ["ready", "ready"] and len(door.registered) == 2)
        door.away = True
        await until(lambda: all(f"r-{number} could not be registered" in caplog.text for number in (1, 2)))
        before = caplog.text.count("could not be registered")
        for _ in range(20):
            await actuator.step()
        assert caplog.text.count("could not be registered") == before == 2
        assert caplog.text.count("how many replicas there should be is not known") == 1


async def test_a_command_that_is_not_there_is_tried_again_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With longer and longer waits, and a line in its output file."""
    config = launch(tmp_path).model_copy(update={"command": ("/nowhere/engine",)})
    async with open_door() as door, actuating(door, tmp_path, config) as actuator:
        door.desired = 1
        await until(lambda: phases(actuator) == ["waiting"])
        assert "started again in 1 s" in caplog.text
        assert "/nowhere/engine: No such file" in (tmp_path / "engines" / "r-1.log").read_text()


async def test_the_low_load_part_is_added_only_at_low_load(tmp_path: Path) -> None:
    """The first knows nothing of the load, so it goes without; the next one sees that it is low."""
    config = launch(tmp_path, low_load_arguments=("--speculate", "{name}"))
    async with open_door() as door, actuating(door, tmp_path, config) as actuator:
        door.desired = 1
        await until(lambda: phases(actuator) == ["ready"] and actuator.children[0].busy == 0)
        door.desired = 2
        await until(lambda: phases(actuator) == ["ready", "ready"])
        first, second = ((tmp_path / "engines" / f"r-{number}.log").read_text() for number in (1, 2))
        assert "--speculate" not in first
        assert "'--speculate', 'r-2'" in second


def test_what_a_killed_run_left_is_ended_by_the_next(tmp_path: Path) -> None:
    """An engine whose starter and keeper are both gone; a number that is another process's by now is left alone."""
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    began = Path(f"/proc/{left.pid}/stat").read_text().rpartition(")")[2].split()[19]
    (tmp_path / "reused.pid").write_text(f"999999999 1 {left.pid} {int(began) + 1}\n")
    (tmp_path / "broken.pid").write_text("what\n")
    assert end_leftovers(tmp_path) == 0
    assert left.poll() is None
    (tmp_path / "left.pid").write_text(f"999999999 1 {left.pid} {began}\n")
    assert end_leftovers(tmp_path) == 1
    assert left.wait(timeout=WAIT_S) == -signal.SIGKILL
    assert [file.name for file in tmp_path.glob("*.pid")] == ["broken.pid"]


def test_an_engine_ends_when_its_starter_is_gone_and_its_output_stays_small(tmp_path: Path) -> None:
    """The end of the pipe is enough, and comes after kill -9 too; workers end with the engine."""
    noisy = "import os,time\nif os.fork() == 0: time.sleep(60)\nprint('x' * 90_000, flush=True)\ntime.sleep(60)"
    log = tmp_path / "engine.log"
    command = [sys.executable, "-I", keeper.__file__, str(log), "40000", "0.2", sys.executable, "-c", noisy]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout, process.stdin:
        group = int(process.stdout.readline())
        # What was written is moved away and begun anew, at any moment.
        while not any(tmp_path.glob("engine.log.*")):
            assert process.poll() is None
        process.stdin.close()
        assert process.wait(timeout=WAIT_S) == 128 + signal.SIGTERM
    assert not keeper.alive(group)
    sizes = [file.stat().st_size for file in tmp_path.glob("engine.log*")]
    assert sum(sizes) <= 40_000 + keeper.CHUNK


async def test_an_engine_that_is_warm_before_it_is_wanted(tmp_path: Path) -> None:
    """It sleeps before there was any peak, wakes at the first one, and another one is warmed then."""
    config = launch(tmp_path, warm=1)
    async with open_door() as door, actuating(door, tmp_path, config) as actuator:
        door.desired = 1
        await until(lambda: phases(actuator) == ["asleep", "ready"])
        assert len(door.registered) == 1
        (asleep,) = [child.name for child in actuator.children if child.phase == "asleep"]
        address = actuator.address(asleep)
        door.desired = 2
        await until(lambda: phases(actuator) == ["asleep", "ready", "ready"])
        assert actuator.address(asleep) == address
        assert asleep in door.takes_work


@pytest.mark.long
async def test_an_engine_that_cannot_sleep_is_not_warmed_for_ever(tmp_path: Path) -> None:
    """It is tried three times, and whoever serves is left alone."""
    plain = launch(tmp_path, warm=1)
    config = plain.model_copy(update={"command": (*plain.command, "no-sleep")})
    async with open_door() as door, actuating(door, tmp_path, config) as actuator:
        door.desired = 1
        await until(lambda: actuator._unwarmed == 3)
        assert phases(actuator) == ["ready"]


async def test_engines_that_share_gpus_start_one_after_the_other_and_sleep(tmp_path: Path) -> None:
    """The second one's engine starts when the first one's sleeps; the gateway is told of both then. One that crashes waits until nobody
    is awake.
    """
    turns = StartTurns(("p", "q"))
    async with open_door() as door, engine_session() as session:
        fetch = HttpFetch(session)

        def actuator(name: str) -> Actuator:
            config = launch(tmp_path)
            return Actuator(
                PoolConfig(name=name, targets=(name,), launch=config),
                config,
                door=GatewayClient(session, door.url, "p", TOKEN),
                fetch=fetch,
                folder=tmp_path / name,
                environment={},
                prefix=name,
                fixed=1,
                turns=turns,
                settle_s=0.05,
                every_s=0.02,
            )

        first, second = actuator("p"), actuator("q")
        works = [asyncio.ensure_future(each.run()) for each in (first, second)]
        try:
            await until(lambda: phases(first) == phases(second) == ["ready"])
            assert turns.may_register
            for each, name in ((first, "p-1"), (second, "q-1")):
                assert await is_sleeping(fetch, each.address(name) or "")
            await until(lambda: sorted(door.takes_work) == ["p-1", "q-1"])
            await wake(fetch, first.address("p-1") or "")
            engine = second._engines["q-1"]
            os.killpg(engine.group or 0, signal.SIGKILL)
            await until(lambda: phases(second) == ["waiting"])
            await asyncio.sleep(1.3)
            assert phases(second) == ["waiting"]
            await put_to_sleep(fetch, first.address("p-1") or "")
            await until(lambda: phases(second) == ["ready"])
            assert await is_sleeping(fetch, second.address("q-1") or "")
        finally:
            for each in (first, second):
                each.drain_all()
            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(*works)
