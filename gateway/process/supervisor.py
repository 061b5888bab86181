"""The supervisor: keeps worker processes running on one listening socket.

The parent owns the socket and the workers; it serves nothing itself. A dead worker is replaced, ever
more slowly when it dies young, and when workers only ever die young the parent gives up: something
is wrong that a restart does not mend. Signals are passed on.
"""

import contextlib
import logging
import os
import queue
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

_log = logging.getLogger("weighbridge.supervisor")

_KILL_AFTER_S = 20.0
"""Seconds after the drain in which a worker may close what it holds; the ledger alone waits seconds for a slow
database.
"""
_START_WITHIN_S = 120.0
_LOOK_S = 0.05


class RestartBackoff(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on restarts: the lifetime below which a worker died young, and how often in a row that may happen."""

    young_s: float = 5.0
    max_young_deaths: int = 8
    first_delay_s: float = 0.1
    max_delay_s: float = 10.0

    def delay_s(self, young_deaths: int) -> float | None:
        """Seconds until a dead worker is replaced; None to give up."""
        if young_deaths >= self.max_young_deaths:
            return None
        if young_deaths == 0:
            return 0.0
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** (young_deaths - 1))


class _Running:
    """One worker process."""

    def __init__(self, process: subprocess.Popen[bytes], ready_fd: int, started_at: float) -> None:
        self.process = process
        self.started_at = started_at
        self.serves = False
        self.end_by = 0.0
        self._ready_fd: int | None = ready_fd
        os.set_blocking(ready_fd, False)

    def look(self) -> None:
        """Checks whether the worker has reported that it serves."""
        if self._ready_fd is None:
            return
        try:
            said = os.read(self._ready_fd, 1)
        except BlockingIOError:
            return
        self.serves = bool(said)
        self.forget()

    def forget(self) -> None:
        if self._ready_fd is not None:
            os.close(self._ready_fd)
            self._ready_fd = None

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class _Place:
    """One of the worker positions, and its present process."""

    def __init__(self) -> None:
        self.running: _Running | None = None
        self.due_at: float | None = 0.0


class Supervisor:
    """Runs `count` workers of one command until a signal ends it; SIGUSR2 replaces them one by one.

    The command must take `--ready-fd N`, a pipe that it writes to as soon as it serves. A worker is asked to go, by
    SIGUSR2, when the one that takes its place serves. So there is at most one more than usual, somebody always
    accepts, and a configuration that nobody can start with replaces nobody.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        count: int,
        inherited_fd: int,
        environ: Mapping[str, str],
        drain_s: float,
        patience: RestartBackoff | None = None,
        worker_gone: Callable[[int], None] = lambda _pid: None,
    ) -> None:
        self._command = list(command)
        self._fd = inherited_fd
        self._environ = dict(environ)
        self._drain_s = drain_s
        self._patience = patience or RestartBackoff()
        self._worker_gone = worker_gone
        self._places = [_Place() for _ in range(count)]
        self._to_replace: deque[_Place] = deque()
        self._replacing_since = 0.0
        self._once_more = False
        self._fresh: _Running | None = None
        self._leaving: _Running | None = None
        self._young_deaths = 0
        # A SimpleQueue may be filled from inside a signal handler; other queues may not.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stop_at: float | None = None
        self._status = 0

    def run(self) -> int:
        """Runs until stopped. Returns the exit status: 0 after a clean stop."""
        with self._listening():
            try:
                while self._step():
                    pass
            finally:
                self._kill()
        return self._status

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)
        before = {signum: signal.signal(signum, lambda signum, _frame: self._signals.put(signum)) for signum in wanted}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    @property
    def _all(self) -> list[_Running]:
        every = [*(place.running for place in self._places), self._fresh, self._leaving]
        return [running for running in every if running is not None]

    def _step(self) -> bool:
        """Advances replacement, waits for the next signal or deadline, and acts on it. Returns False at the end."""
        now = time.monotonic()
        self._reap_ended(now)
        if self._stop_at is None:
            self._start_due(now)
            self._replace(now)
        elif not self._all:
            return False
        elif now >= self._stop_at:
            _log.error("a worker did not stop in time and is killed")
            self._status = 1
            self._kill()
            return True
        with contextlib.suppress(queue.Empty):
            self._obey(self._signals.get(timeout=self._wait_s(now)))
        return True

    def _wait_s(self, now: float) -> float:
        due = [place.due_at for place in self._places if place.due_at is not None and self._stop_at is None]
        if self._stop_at is not None:
            due.append(self._stop_at)
        # One second is the longest that a lost SIGCHLD could delay a replacement.
        longest_s = _LOOK_S if self._fresh is not None else 1.0
        return min([longest_s, *(max(0.01, moment - now) for moment in due)])

    def _obey(self, signum: int) -> None:
        if signum == signal.SIGHUP:
            self._send(signal.SIGHUP)
        elif signum == signal.SIGUSR2:
            self._replace_all()
        elif signum in {signal.SIGTERM, signal.SIGINT}:
            if self._stop_at is None:
                self._stop()
            else:
                _log.warning("stopping at once: a second signal came")
                self._status = 1
                self._kill()

    def _stop(self) -> None:
        self._stop_at = time.monotonic() + self._drain_s + _KILL_AFTER_S
        self._to_replace.clear()
        self._send(signal.SIGTERM)

    def _spawn(self, now: float) -> _Running:
        ready_fd, told_fd = os.pipe()
        try:
            process = subprocess.Popen(  # noqa: S603 - our own command line
                [*self._command, "--ready-fd", str(told_fd)],
                stdin=subprocess.PIPE,
                pass_fds=(self._fd, told_fd),
                env=self._environ,
                # A Ctrl-C reaches the whole terminal group; workers hear of it from here only, once.
                process_group=0,
            )
        finally:
            os.close(told_fd)
        return _Running(process, ready_fd, now)

    def _start_due(self, now: float) -> None:
        for place in self._places:
            if place.due_at is not None and place.due_at <= now:
                place.running = self._spawn(now)
                place.due_at = None

    def _replace_all(self) -> None:
        if self._stop_at is not None:
            return
        if self._to_replace or self._fresh is not None or self._leaving is not None:
            _log.warning("the workers are being replaced already; they will be once more")
            self._once_more = True
            return
        _log.warning("replacing %d workers, one after the other", len(self._places))
        self._to_replace.extend(self._places)
        self._replacing_since = time.monotonic()

    def _replace(self, now: float) -> None:
        """Takes the next step of a rolling replacement, if one is under way."""
        if self._leaving is not None:
            self._end_late(self._leaving, now)
        elif self._fresh is not None:
            self._watch_start(self._fresh, now)
        elif self._to_replace:
            old = self._to_replace[0].running
            if old is None or old.started_at > self._replacing_since:
                # It died meanwhile, so that who comes or has come after it is new as it is.
                self._to_replace.popleft()
            else:
                self._fresh = self._spawn(now)
        elif self._once_more:
            self._once_more = False
            self._replace_all()

    def _watch_start(self, fresh: _Running, now: float) -> None:
        if fresh.serves:
            place = self._to_replace.popleft()
            self._fresh, self._leaving, place.running, place.due_at = None, place.running, fresh, None
            if self._leaving is not None:
                self._leaving.end_by = now + self._drain_s + _KILL_AFTER_S
                self._leaving.process.send_signal(signal.SIGUSR2 if self._leaving.serves else signal.SIGTERM)
        elif now - fresh.started_at > _START_WITHIN_S:
            fresh.process.kill()

    def _end_late(self, leaving: _Running, now: float) -> None:
        if now >= leaving.end_by:
            _log.error("the replaced worker %s did not stop in time and is killed", leaving.process.pid)
            leaving.process.kill()

    def _reap_ended(self, now: float) -> None:
        for running in self._all:
            running.look()
            if running.ended:
                self._reap(running, now)

    def _reap(self, running: _Running, now: float) -> None:
        process = running.process
        running.forget()
        if process.stdin is not None:
            process.stdin.close()
        self._worker_gone(process.pid)
        if self._stop_at is not None and process.returncode not in {0, -signal.SIGTERM}:
            self._status = 1
        if running is self._leaving:
            self._leaving = None
            if process.returncode not in {0, -signal.SIGTERM}:
                _log.error("the replaced worker %s ended with status %s", process.pid, process.returncode)
        elif running is self._fresh:
            self._fresh = None
            self._to_replace.clear()
            if self._stop_at is None:
                _log.error(
                    "a new worker ended with status %s before it served; the others stay as they are",
                    process.returncode,
                )
        else:
            place = next(place for place in self._places if place.running is running)
            place.running = None
            if self._stop_at is None:
                self._worker_died(place, running, now)

    def _worker_died(self, place: _Place, dead: _Running, now: float) -> None:
        young = now - dead.started_at < self._patience.young_s
        self._young_deaths = self._young_deaths + 1 if young else 0
        delay_s = self._patience.delay_s(self._young_deaths)
        if delay_s is None:
            _log.error("workers keep dying right after their start (status %s); giving up", dead.process.returncode)
            self._stop()
            self._status = 1
            return
        _log.warning("worker %s ended with status %s; replacing it", dead.process.pid, dead.process.returncode)
        place.due_at = now + delay_s

    def _send(self, signum: int) -> None:
        for running in self._all:
            running.process.send_signal(signum)

    def _kill(self) -> None:
        for running in self._all:
            running.kill()
