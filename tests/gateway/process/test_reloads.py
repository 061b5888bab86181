"""A reload is asked for and answered, by processes that do, that do not, and that are gone."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.configuration.settings import Outcome
from gateway.process.announced import Gateway, announced, running
from gateway.process.reloads import ReloadTeller, reload

CHANGED = Outcome(changed=("providers.models",), needs_restart=("server.port",))


@pytest.fixture
def at_reload() -> Iterator[Callable[[Callable[[], None]], None]]:
    """What this process does at SIGHUP."""
    before = signal.getsignal(signal.SIGHUP)

    def take(act: Callable[[], None]) -> None:
        signal.signal(signal.SIGHUP, lambda _number, _frame: act())

    yield take
    signal.signal(signal.SIGHUP, before)


def _gateway(folder: Path) -> Gateway:
    return Gateway(os.getpid(), str(folder / "gateway.yaml"), str(folder))


def test_what_each_process_made_of_it(tmp_path: Path, at_reload: Callable[[Callable[[], None]], None]) -> None:
    """One that is dead is not waited for."""
    worker, control = (ReloadTeller(tmp_path / "reloads", plane) for plane in ("worker", "control"))
    for each in (worker, control):
        each.begin()
    dead = tmp_path / "reloads" / "worker-4194303"
    dead.write_bytes((tmp_path / "reloads" / f"worker-{os.getpid()}").read_bytes())

    def both() -> None:
        worker.tell(CHANGED)
        control.tell(Outcome())

    at_reload(both)
    for _ in range(2):
        told = reload(_gateway(tmp_path), 30)
        assert told == {f"worker-{os.getpid()}": CHANGED, f"control-{os.getpid()}": Outcome()}


def test_who_does_not_answer(tmp_path: Path, at_reload: Callable[[Callable[[], None]], None]) -> None:
    """One process of two, and a gateway that has no process yet."""
    worker, control = (ReloadTeller(tmp_path / "reloads", plane) for plane in ("worker", "control"))
    at_reload(lambda: worker.tell(CHANGED))
    assert reload(_gateway(tmp_path / "none"), 0.1) is None
    for each in (worker, control):
        each.begin()
    assert reload(_gateway(tmp_path), 0.1) is None


def test_a_gateway_is_found_while_it_runs(tmp_path: Path) -> None:
    """By its configuration; what a killed one left is swept away."""
    folder, config = tmp_path / "serving", tmp_path / "gateway.yaml"
    assert running(folder, config) == []
    with announced(folder, _gateway(tmp_path)):
        (folder / "4194303").write_text("left behind")
        assert running(folder, config) == [_gateway(tmp_path)]
        assert running(folder, tmp_path / "other.yaml") == []
        assert [path.name for path in folder.iterdir()] == [str(os.getpid())]
    assert running(folder, config) == []


def test_a_folder_that_cannot_be_written_hinders_no_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with announced(tmp_path / "file" / "serving", _gateway(tmp_path)):
        pass
