"""The supervisor: keeps the control plane and worker processes running on one listening socket.

The parent owns the socket and the processes; it serves nothing itself. At a stop it closes its copy of the socket at
once: while any process holds one, new connections wait there unanswered, and no other gateway can listen on the address. A dead worker is replaced, ever
more slowly when it dies young, and when workers only ever die young the parent gives up: something
is wrong that a restart does not mend. A child that says so itself, before the gateway has ever served, ends it at once. Signals are passed on; at a stop the workers go first, since the control plane
brings into the database what they booked.
"""

import contextlib
import logging
import queue
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from gateway.process.control_keeper import ControlKeeper
from gateway.process.running_child import RestartBackoff, RunningChild, spawn

_log = logging.getLogger("weighbridge.supervisor")

_KILL_AFTER_S = 20.0
"""Seconds after the drain in which a worker may close what it holds; the ledger alone waits seconds for a slow
database.
"""
_START_WITHIN_S = 120.0
_LOOK_S = 0.05


class CannotServe(Exception):
    """What no waiting mends, found at the start; the message is the sentence of whoever found it."""


class _Place:
    """One of the worker positions, and its present process."""

    def __init__(self) -> None:
        self.running: RunningChild | None = None
        self.due_at: float | None = 0.0


class Supervisor:
    """The parent of `count` workers of one command, until a signal ends it; SIGUSR2 replaces them one by one.

    The command must take `--ready-fd N`, a pipe for its `StartReport`, and `--start`, whether anybody serves meanwhile. A worker is asked to go, by
    SIGUSR2, when the one that takes its place serves. So there is at most one more than usual, somebody always
    accepts, and a configuration that nobody can start with replaces nobody.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        count: int,
        listener: socket.socket,
        environ: Mapping[str, str],
        drain_s: float,
        control: Sequence[str] | None = None,
        patience: RestartBackoff | None = None,
        gone: Callable[[int], None] = lambda _pid: None,
        serving: Callable[[], None] = lambda: None,
    ) -> None:
        """Workers inherit `listener`, which is closed at a stop. `control` is the control plane's command; without one there are workers alone. `gone` is told of each process that ended.

        `serving` is called once, as soon as all workers and the control plane serve.
        """
        self._command = list(command)
        self._listener = listener
        self._environ = dict(environ)
        self._drain_s = drain_s
        self._patience = patience or RestartBackoff()
        self._gone = gone
        self._serving = serving
        self._has_served = False
        self._refusal = ""
        self._control = (
            None
            if control is None
            else ControlKeeper(lambda now: spawn(control, self._environ, now), self._patience, gone)
        )
        self._places = [_Place() for _ in range(count)]
        self._to_replace: deque[_Place] = deque()
        self._replacing_since = 0.0
        self._once_more = False
        self._fresh: RunningChild | None = None
        self._leaving: RunningChild | None = None
        self._young_deaths = 0
        # A SimpleQueue may be filled from inside a signal handler; other queues may not.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stop_at: float | None = None
        self._status = 0

    def run(self) -> int:
        """Run until stopped. Return the exit status: 0 after a clean stop. Raises CannotServe."""
        with self._listening():
            try:
                while self._step():
                    pass
            finally:
                self._kill()
        if self._refusal:
            raise CannotServe(self._refusal)
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
    def _all(self) -> list[RunningChild]:
        every = [*(place.running for place in self._places), self._fresh, self._leaving]
        return [running for running in every if running is not None]

    def _step(self) -> bool:
        """Advance replacement, wait for the next signal or deadline, and act on it. Return False at the end."""
        now = time.monotonic()
        self._reap_ended(now)
        self._look_after_control(now)
        if self._stop_at is None:
            self._look_whether_all_serve()
            self._start_due(now)
            self._replace(now)
        elif not self._all and (self._control is None or self._control.is_over):
            return False
        elif now >= self._stop_at:
            _log.error("a process did not stop in time and is killed")
            self._status = 1
            self._kill()
            return True
        with contextlib.suppress(queue.Empty):
            self._obey(self._signals.get(timeout=self._wait_s(now)))
        return True

    def _look_whether_all_serve(self) -> None:
        workers = all(place.running is not None and place.running.serves for place in self._places)
        if not self._has_served and workers and (self._control is None or self._control.has_served):
            self._has_served = True
            self._serving()

    def _look_after_control(self, now: float) -> None:
        control = self._control
        if control is None:
            return
        if self._stop_at is not None and not self._all and not control.is_stopping:
            control.stop()
            self._stop_at = max(self._stop_at, now + _KILL_AFTER_S)
        control.step(now)
        if control.gave_up and self._stop_at is None:
            self._give_up(control.refusal)
        if control.ended_badly:
            self._status = 1

    def _wait_s(self, now: float) -> float:
        due = [place.due_at for place in self._places if place.due_at is not None and self._stop_at is None]
        if self._control is not None and self._control.due_at is not None:
            due.append(self._control.due_at)
        if self._stop_at is not None:
            due.append(self._stop_at)
        # One second is the longest that a lost SIGCHLD could delay a replacement.
        longest_s = _LOOK_S if self._fresh is not None or not self._has_served else 1.0
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
        self._listener.close()
        self._send(signal.SIGTERM)

    def _give_up(self, refusal: str = "") -> None:
        self._refusal = self._refusal or refusal
        self._status = 1
        self._stop()

    def _spawn(self, now: float) -> RunningChild:
        start = "first" if not self._has_served else "beside" if self._somebody_serves else "alone"
        return spawn([*self._command, "--start", start], self._environ, now, (self._listener.fileno(),))

    @property
    def _somebody_serves(self) -> bool:
        return any(running.serves for running in self._all)

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
        if self._control is not None:
            self._control.replace()

    def _replace(self, now: float) -> None:
        """Take the next step of a rolling replacement, if one is under way."""
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

    def _watch_start(self, fresh: RunningChild, now: float) -> None:
        if fresh.serves:
            place = self._to_replace.popleft()
            self._fresh, self._leaving, place.running, place.due_at = None, place.running, fresh, None
            if self._leaving is not None:
                self._leaving.end_by = now + self._drain_s + _KILL_AFTER_S
                self._leaving.process.send_signal(signal.SIGUSR2 if self._leaving.serves else signal.SIGTERM)
        elif now - fresh.started_at > _START_WITHIN_S:
            fresh.process.kill()

    def _end_late(self, leaving: RunningChild, now: float) -> None:
        if now >= leaving.end_by:
            _log.error("the replaced worker %s did not stop in time and is killed", leaving.process.pid)
            leaving.process.kill()

    def _reap_ended(self, now: float) -> None:
        for running in self._all:
            running.look()
            if running.ended:
                self._reap(running, now)

    def _reap(self, running: RunningChild, now: float) -> None:
        process = running.process
        running.close()
        self._gone(process.pid)
        if self._stop_at is not None and not running.ended_well():
            self._status = 1
        if running is self._leaving:
            self._leaving = None
            if not running.ended_well():
                _log.error("the replaced worker %s ended with status %s", process.pid, process.returncode)
        elif running is self._fresh:
            self._fresh = None
            self._to_replace.clear()
            if self._stop_at is None:
                _log.error(
                    "a new worker ended with status %s before it served%s; the others stay as they are",
                    process.returncode,
                    f": {running.refusal}" if running.refusal else "",
                )
        else:
            place = next(place for place in self._places if place.running is running)
            place.running = None
            if self._stop_at is None:
                self._worker_died(place, running, now)

    def _worker_died(self, place: _Place, dead: RunningChild, now: float) -> None:
        if dead.cannot_serve and not (self._has_served and self._somebody_serves):
            self._give_up(dead.refusal)
            return
        if dead.refusal:
            again_s = self._patience.max_delay_s if dead.cannot_serve else self._patience.again_s
            _log.error("a worker cannot serve: %s; starting it again in %g s", dead.refusal, again_s)
            place.due_at = now + again_s
            return
        self._young_deaths = self._young_deaths + 1 if dead.died_young(now, self._patience.young_s) else 0
        delay_s = self._patience.delay_s(self._young_deaths)
        if delay_s is None:
            _log.error("workers keep dying right after their start (status %s); giving up", dead.process.returncode)
            self._give_up()
            return
        _log.warning("worker %s ended with status %s; replacing it", dead.process.pid, dead.process.returncode)
        place.due_at = now + delay_s

    def _send(self, signum: int) -> None:
        for running in self._all:
            running.process.send_signal(signum)
        if self._control is not None and signum == signal.SIGHUP:
            self._control.send(signum)

    def _kill(self) -> None:
        for running in self._all:
            running.kill()
        if self._control is not None:
            self._control.kill()
