"""The control plane is started, started again when it dies, and ended last. Real processes, with a clock that the test turns."""

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from gateway.process.control_keeper import ControlKeeper
from gateway.process.running_child import RestartBackoff, RunningChild, spawn

_SERVES: Final = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
os.write(int(sys.argv[2]), b"\\n")
signal.pause()
"""
_DIES: Final = "raise SystemExit(3)"
_STUBBORN: Final = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
os.write(int(sys.argv[2]), b"\\n")
signal.pause()
"""
_REFUSES: Final = """
import os, sys
os.write(int(sys.argv[2]), b"the folder cannot be written")
os._exit(78)
"""
_IS_AWAY: Final = """
import os, sys
os.write(int(sys.argv[2]), b"the database is away")
os._exit(75)
"""
_PATIENCE: Final = RestartBackoff(young_s=5.0, max_young_deaths=2, first_delay_s=1.0, max_delay_s=4.0)


class Stage:
    """A keeper, what it started, and the time."""

    def __init__(self, script: str) -> None:
        self.script = script
        self.started: list[RunningChild] = []
        self.gone: list[int] = []
        self.now = 0.0
        self.keeper = ControlKeeper(self._start, _PATIENCE, self.gone.append)

    def _start(self, now: float) -> RunningChild:
        self.started.append(spawn([sys.executable, "-c", self.script], os.environ, now))
        return self.started[-1]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            self.keeper.step(self.now)
            time.sleep(0.005)

    def has_started(self, count: int) -> bool:
        return len(self.started) == count

    def serves(self) -> None:
        self.until(lambda: bool(self.started) and self.started[-1].serves)


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(request.param)
    yield made
    made.keeper.stop()
    made.keeper.kill()
    made.until(lambda: made.keeper.is_over)


@pytest.mark.parametrize("stage", [_SERVES], indirect=True)
def test_a_killed_one_is_started_again(stage: Stage) -> None:
    """At once when it had lived, and whoever counts processes is told."""
    stage.serves()
    stage.now = 100.0
    os.kill(stage.started[0].process.pid, signal.SIGKILL)
    stage.until(lambda: len(stage.started) == 2)
    assert stage.gone == [stage.started[0].process.pid]
    stage.serves()


@pytest.mark.parametrize("stage", [_DIES], indirect=True)
def test_one_that_never_served_is_given_up(stage: Stage) -> None:
    """After a pause between two tries: something is wrong that a restart does not mend."""
    stage.until(lambda: stage.keeper.due_at is not None and len(stage.started) == 1)
    assert stage.keeper.due_at == 1.0
    stage.now = 1.0
    stage.until(lambda: stage.keeper.gave_up)
    assert len(stage.started) == 2


@pytest.mark.parametrize("stage", [_DIES], indirect=True)
def test_a_slow_start_that_fails_is_a_young_death(stage: Stage) -> None:
    """However long it took: otherwise a slow machine would start it again for ever."""
    for started in (1, 2):
        stage.until(functools.partial(stage.has_started, started))
        stage.now += 1_000.0
        stage.until(lambda: stage.keeper.due_at is not None or stage.keeper.gave_up)
        stage.now = stage.keeper.due_at or stage.now
    assert stage.keeper.gave_up
    assert stage.keeper.refusal == ""


@pytest.mark.parametrize("stage", [_REFUSES], indirect=True)
def test_one_that_says_that_waiting_does_not_help_is_believed(stage: Stage) -> None:
    """At its first word, which is kept."""
    stage.until(lambda: stage.keeper.gave_up)
    assert (len(stage.started), stage.keeper.refusal) == (1, "the folder cannot be written")


@pytest.mark.parametrize("stage", [_IS_AWAY], indirect=True)
def test_one_that_waits_for_others_is_never_given_up(stage: Stage) -> None:
    """It is started again after a while, more often than any that dies."""
    for started in range(1, 5):
        stage.until(functools.partial(stage.has_started, started))
        stage.until(lambda: stage.keeper.due_at is not None)
        assert stage.keeper.due_at == stage.now + 2.0
        stage.now += 2.0
    assert not stage.keeper.gave_up


@pytest.mark.parametrize("stage", [_SERVES], indirect=True)
def test_one_that_served_may_refuse_and_come_back(stage: Stage) -> None:
    """A file that was broken meanwhile may be mended: it is tried again as rarely as one that dies."""
    stage.serves()
    stage.script = _REFUSES
    os.kill(stage.started[-1].process.pid, signal.SIGKILL)
    stage.until(lambda: stage.keeper.due_at is not None)
    stage.now = stage.keeper.due_at or 0.0
    stage.until(lambda: stage.has_started(2) and stage.keeper.due_at is not None)
    assert stage.keeper.due_at == stage.now + 4.0
    assert not stage.keeper.gave_up
    stage.script = _SERVES
    stage.now += 4.0
    stage.until(lambda: stage.has_started(3))
    stage.serves()


@pytest.mark.parametrize("stage", [_SERVES], indirect=True)
def test_one_that_served_is_never_given_up(stage: Stage) -> None:
    """Workers serve without it meanwhile."""
    stage.serves()
    stage.script = _DIES
    for started in range(2, 6):
        if started == 2:
            os.kill(stage.started[-1].process.pid, signal.SIGKILL)
        stage.until(lambda: stage.keeper.due_at is not None)
        assert stage.keeper.due_at is not None
        stage.now = stage.keeper.due_at
        stage.until(functools.partial(stage.has_started, started))
    stage.until(lambda: stage.keeper.due_at is not None)
    assert stage.keeper.due_at == stage.now + 4.0
    assert not stage.keeper.gave_up


@pytest.mark.parametrize("stage", [_SERVES], indirect=True)
def test_a_replaced_one_makes_room_without_delay(stage: Stage) -> None:
    """It is asked to go, and the next one comes though the first was young."""
    stage.serves()
    stage.keeper.replace()
    stage.until(lambda: len(stage.started) == 2)
    assert stage.started[0].ended_well()


@pytest.mark.parametrize("stage", [_SERVES, _STUBBORN], indirect=True)
def test_a_stopped_one_is_over(stage: Stage) -> None:
    """And nobody follows it; a bad end is remembered."""
    stage.serves()
    stage.keeper.stop()
    stage.until(lambda: stage.keeper.is_over)
    stage.now = 1000.0
    stage.keeper.step(stage.now)
    assert len(stage.started) == 1
    assert stage.keeper.ended_badly == (stage.script == _STUBBORN)
