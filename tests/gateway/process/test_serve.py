"""Serving: a socket, one or many workers, and an end that drops nothing. Workers are real processes."""

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.process.listener import PortTaken, bind
from gateway.process.running_child import RestartBackoff
from tests.children import children_of

_TIMEOUT_S = 30.0

_SUPERVISED = """
import os, sys
from gateway.process.listener import bind
from gateway.process.running_child import RestartBackoff
from gateway.process.supervisor import Supervisor
listener = bind("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
command = [sys.executable, "-m", "tests.gateway.process.tiny_worker", "--fd", str(listener.fileno()), "--kind", sys.argv[1]]
control = [sys.executable, "-m", "tests.gateway.process.tiny_control", sys.argv[3]] if len(sys.argv) > 3 else None
patience = RestartBackoff(young_s=float(sys.argv[2]), max_young_deaths=3, first_delay_s=0.01)
supervisor = Supervisor(
    command, control=control, count=2, listener=listener, environ=dict(os.environ), drain_s=5,
    patience=patience,
)
sys.exit(supervisor.run())
"""

_ALONE = """
import sys
from gateway.process.listener import bind
from tests.gateway.process.tiny_worker import run
listener = bind("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
sys.exit(run(["--fd", str(listener.detach()), "--drain-s", sys.argv[1]]))
"""


class _Server:
    """A server as a child process, and the port it listens on."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def get(self, path: str = "/") -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read().decode().split()

    def pids(self, count: int = 2) -> set[int]:
        """The workers, by asking until that many different ones have answered."""
        seen: set[int] = set()

        def all_seen() -> bool:
            seen.add(int(self.get()[0]))
            return len(seen) >= count

        _until(all_seen)
        return seen

    def until_under_way(self) -> None:
        """Wait until a worker is at a slow or an endless request."""
        _until(lambda: self.get()[3] != "0")

    def end(self, signum: int = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return self.process.wait(_TIMEOUT_S)


@contextlib.contextmanager
def _running(script: str, *arguments: str) -> Iterator[_Server]:
    server = _Server(script, *arguments)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def _supervised(
    kind: str = "tiny", young_s: float = 0.0, control_log: Path | None = None
) -> contextlib.AbstractContextManager[_Server]:
    return _running(_SUPERVISED, kind, str(young_s), *([] if control_log is None else [str(control_log)]))


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def _gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_taken_port_is_one_clear_line() -> None:
    """A second server on the same port says so, and what to do."""
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"127\.0\.0\.1:{port}: Address already in use; .* another --port"):
            bind("127.0.0.1", port)


def test_an_address_that_is_being_left_is_waited_for() -> None:
    """The successor of a gateway that is stopping listens as soon as that one's socket is closed."""
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        leaving = threading.Timer(0.1, listener.close)
        leaving.start()
        with contextlib.closing(bind("127.0.0.1", port, patience_s=_TIMEOUT_S)) as successor:
            assert successor.getsockname()[1] == port
        leaving.join()


def test_an_impossible_address_is_one_clear_line() -> None:
    """An address that is not ours cannot be listened on."""
    with pytest.raises(PortTaken, match=r"cannot listen on 192\.0\.2\.1:0"):
        bind("192.0.2.1", 0)


def test_patience_wears_out() -> None:
    """A worker that lived is replaced at once; young deaths wait longer each time, and end in giving up."""
    patience = RestartBackoff(max_young_deaths=5, first_delay_s=1.0, max_delay_s=3.0)
    assert [patience.delay_s(deaths) for deaths in range(6)] == [0.0, 1.0, 2.0, 3.0, 3.0, None]


def test_workers_share_the_port_live_and_end_together() -> None:
    """A killed worker is replaced, SIGHUP reaches all, SIGTERM ends all with status 0."""
    with _supervised() as server:
        first = server.pids()
        os.kill(min(first), signal.SIGKILL)
        _until(lambda: _gone(min(first)))
        second = server.pids()
        assert len(second & first) == 1
        server.process.send_signal(signal.SIGHUP)
        reloaded: set[int] = set()

        def all_reloaded() -> bool:
            pid, reloads, *_ = server.get()
            if int(reloads) == 1:
                reloaded.add(int(pid))
            return reloaded == second

        _until(all_reloaded)
        assert server.end() == 0
        assert all(_gone(pid) for pid in second)


def test_workers_end_when_their_parent_is_killed() -> None:
    """A supervisor that dies without a word leaves no worker behind."""
    with _supervised() as server:
        pids = server.pids()
        server.process.kill()
        _until(lambda: all(_gone(pid) for pid in pids))


def test_workers_that_only_die_young_end_the_supervisor() -> None:
    """An app that cannot start is not restarted for ever: the exit status is not 0."""
    with _supervised("broken", young_s=60.0) as server:
        assert server.process.wait(_TIMEOUT_S) == 1
        assert server.process.stderr is not None
        assert "giving up" in server.process.stderr.read()


def test_a_request_under_way_is_finished_before_the_end() -> None:
    """SIGTERM drains: the app is told, the slow request gets its answer, and the status is 0."""
    with _running(_ALONE, "5") as server:
        server.get()
        answers: list[list[str]] = []
        caller = threading.Thread(target=lambda: answers.append(server.get("/slow")))
        caller.start()
        server.until_under_way()
        assert server.end() == 0
        caller.join()
        assert answers[0][2] == "True"


def test_ctrl_c_ends_cleanly_too() -> None:
    """SIGINT is a stop like any other, with status 0 and no traceback."""
    with _supervised() as server:
        server.pids()
        assert server.end(signal.SIGINT) == 0
        assert server.process.stderr is not None
        assert "Traceback" not in server.process.stderr.read()


class _Kept:
    """A caller with one connection that it keeps for as long as it may, asking again and again."""

    def __init__(self, server: _Server) -> None:
        self.seen: list[int] = []
        self.failure: Exception | None = None
        self._enough = threading.Event()
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_TIMEOUT_S)
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        try:
            while not self._enough.wait(0.005):
                self._connection.request("GET", "/kept")
                reply = self._connection.getresponse()
                self.seen.append(int(reply.read().split()[0]))
        except (OSError, http.client.HTTPException) as error:
            self.failure = error

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()
        self._connection.close()


def test_workers_are_replaced_without_a_word_to_anybody() -> None:
    """SIGUSR2 puts new workers in the place of all; no request is refused or lost, on kept connections neither."""
    with _supervised() as server:
        first = server.pids()
        callers = [_Kept(server) for _ in range(4)]
        slow: list[list[str]] = []
        waiting = threading.Thread(target=lambda: slow.append(server.get("/slow")))
        waiting.start()
        server.process.send_signal(signal.SIGUSR2)
        _until(lambda: all(_gone(pid) for pid in first))
        asked = [len(caller.seen) for caller in callers]
        _until(lambda: all(len(caller.seen) > before for caller, before in zip(callers, asked, strict=True)))
        for caller in callers:
            caller.stop()
            assert caller.failure is None
            assert caller.seen[-1] not in first
        waiting.join()
        assert int(slow[0][0]) in first
        assert not server.pids() & first
        assert server.end() == 0


def test_a_worker_that_cannot_start_replaces_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old workers go on, and the next SIGUSR2 is obeyed again."""
    there = tmp_path / "there"
    monkeypatch.setenv("FUSSY", str(there))
    with _supervised("fussy") as server:
        first = server.pids()
        there.touch()
        server.process.send_signal(signal.SIGUSR2)
        assert server.process.stderr is not None
        while "before it served" not in (said := server.process.stderr.readline()):
            assert said
        assert server.pids() == first
        there.unlink()
        server.process.send_signal(signal.SIGUSR2)
        _until(lambda: all(_gone(pid) for pid in first))
        assert server.end() == 0


def test_a_stop_amid_a_replacement_ends_all() -> None:
    """Old, new and half-started workers end with status 0."""
    with _supervised() as server:
        first = server.pids()
        waiting = threading.Thread(target=lambda: server.get("/slow"))
        waiting.start()
        server.process.send_signal(signal.SIGUSR2)
        _until(lambda: len(children_of(server.process.pid)) > len(first))
        assert server.end() == 0
        waiting.join()


def test_what_outlasts_the_drain_is_cut_off_by_the_app() -> None:
    """The worker is told when the time is over, and what it still says then reaches the caller; the status is 0."""
    with _running(_ALONE, "1") as server:
        server.get()
        answers: list[list[str]] = []
        caller = threading.Thread(target=lambda: answers.append(server.get("/endless")))
        caller.start()
        server.until_under_way()
        assert server.end() == 0
        caller.join()
        assert answers[0][2] == "True"


def test_a_second_signal_is_obeyed_at_once() -> None:
    """It ends by force what would have been waited for, and the status says so."""
    with _running(_ALONE, "30") as server:
        server.get()
        caller = threading.Thread(target=lambda: server.get("/endless"))
        caller.start()
        server.until_under_way()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert server.end() == 1
        caller.join()


def _told(log: Path) -> list[list[str]]:
    """What the control plane wrote: its pid, and what happened."""
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def test_a_killed_control_plane_comes_back_while_workers_serve(tmp_path: Path) -> None:
    """The workers stay the same ones, and each request is answered."""
    log = tmp_path / "control"
    with _supervised(control_log=log) as server:
        workers = server.pids()
        _until(lambda: bool(_told(log)))
        (first, _), *_ = _told(log)
        os.kill(int(first), signal.SIGKILL)
        _until(lambda: len(_told(log)) == 2)
        assert server.pids() == workers
        assert server.end() == 0


def test_the_control_plane_ends_last(tmp_path: Path) -> None:
    """After the last worker, whose books it still brings in; SIGHUP reaches it, too."""
    log = tmp_path / "control"
    with _supervised(control_log=log) as server:
        workers = server.pids()
        _until(lambda: bool(_told(log)))
        server.process.send_signal(signal.SIGHUP)
        _until(lambda: _told(log)[-1][1] == "reloaded")
        slow = threading.Thread(target=lambda: server.get("/slow"))
        slow.start()
        server.until_under_way()
        assert server.end() == 0
        slow.join()
    pid, event, *living = _told(log)[-1]
    assert event == "stopping"
    assert not workers & {int(each) for each in living}
    assert _gone(int(pid))


@pytest.mark.long
def test_a_replacement_reaches_the_control_plane(tmp_path: Path) -> None:
    """SIGUSR2 starts it anew with the workers."""
    log = tmp_path / "control"
    with _supervised(control_log=log) as server:
        first = server.pids()
        _until(lambda: bool(_told(log)))
        server.process.send_signal(signal.SIGUSR2)
        _until(lambda: all(_gone(pid) for pid in first))
        _until(lambda: [event for _, event, *_ in _told(log)].count("serving") == 2)
        assert server.end() == 0


def test_a_control_plane_that_cannot_start_ends_the_supervisor(tmp_path: Path) -> None:
    """With a status that says so, and a line in the log."""
    with _supervised(young_s=60.0, control_log=tmp_path / "nowhere" / "control") as server:
        assert server.process.wait(_TIMEOUT_S) == 1
        assert server.process.stderr is not None
        assert "the control plane keeps dying" in server.process.stderr.read()
