"""Keeps worker processes running on one listening socket.

The parent owns the socket and the workers; it serves nothing itself. A dead worker is replaced, ever
more slowly when it dies young, and when workers only ever die young the parent gives up: something
is wrong that a restart does not mend. Signals are passed on.
"""

import contextlib
import logging
import queue
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

_log = logging.getLogger("weighbridge.supervisor")

_KILL_AFTER_S = 5.0
"""How long after the drain a worker may take to close what it holds."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a worker must live to count as well, and how often in a row they may die younger."""

    young_s: float = 5.0
    max_young_deaths: int = 8
    first_delay_s: float = 0.1
    max_delay_s: float = 10.0

    def delay_s(self, young_deaths: int) -> float | None:
        """Seconds until a dead worker is replaced; None is giving up."""
        if young_deaths >= self.max_young_deaths:
            return None
        if young_deaths == 0:
            return 0.0
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** (young_deaths - 1))


class _Worker:
    """One place among the workers, whoever fills it at the moment."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.due_at: float | None = 0.0


class Supervisor:
    """Runs `count` workers of one command until a signal ends it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        count: int,
        inherited_fd: int,
        environ: Mapping[str, str],
        drain_s: float,
        patience: Patience | None = None,
        worker_gone: Callable[[int], None] = lambda _pid: None,
    ) -> None:
        self._command = list(command)
        self._fd = inherited_fd
        self._environ = dict(environ)
        self._drain_s = drain_s
        self._patience = patience or Patience()
        self._worker_gone = worker_gone
        self._workers = [_Worker() for _ in range(count)]
        self._young_deaths = 0
        # A SimpleQueue may be filled from inside a signal handler; other queues may not.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stop_at: float | None = None
        self._status = 0

    def run(self) -> int:
        """Returns the exit status: 0 after a clean stop."""
        with self._listening():
            try:
                while self._step():
                    pass
            finally:
                self._kill()
        return self._status

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        before = {signum: signal.signal(signum, lambda signum, _frame: self._signals.put(signum)) for signum in wanted}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _step(self) -> bool:
        """Replaces, waits for the next signal or deadline, and acts on it; False is the end."""
        now = time.monotonic()
        self._reap(now)
        if self._stop_at is None:
            self._start_due(now)
        alive = any(worker.process for worker in self._workers)
        if self._stop_at is not None and not alive:
            return False
        if self._stop_at is not None and now >= self._stop_at:
            _log.error("a worker did not stop in time and is killed")
            self._status = 1
            self._kill()
            return True
        with contextlib.suppress(queue.Empty):
            self._obey(self._signals.get(timeout=self._wait_s(now)))
        return True

    def _wait_s(self, now: float) -> float:
        due = [worker.due_at for worker in self._workers if worker.due_at is not None and self._stop_at is None]
        if self._stop_at is not None:
            due.append(self._stop_at)
        # One second is the longest that a lost SIGCHLD could delay a replacement.
        return min([1.0, *(max(0.01, moment - now) for moment in due)])

    def _obey(self, signum: int) -> None:
        if signum == signal.SIGHUP:
            self._send(signal.SIGHUP)
        elif signum in {signal.SIGTERM, signal.SIGINT}:
            if self._stop_at is None:
                self._stop()
            else:
                _log.warning("stopping at once: a second signal came")
                self._status = 1
                self._kill()

    def _stop(self) -> None:
        self._stop_at = time.monotonic() + self._drain_s + _KILL_AFTER_S
        self._send(signal.SIGTERM)

    def _start_due(self, now: float) -> None:
        for worker in self._workers:
            if worker.due_at is None or worker.due_at > now:
                continue
            worker.process = subprocess.Popen(  # noqa: S603 - our own command line
                self._command,
                stdin=subprocess.PIPE,
                pass_fds=(self._fd,),
                env=self._environ,
                # A Ctrl-C reaches the whole terminal group; workers hear of it from here only, once.
                process_group=0,
            )
            worker.started_at = now
            worker.due_at = None

    def _reap(self, now: float) -> None:
        for worker in self._workers:
            if worker.process is None or worker.process.poll() is None:
                continue
            process, worker.process = worker.process, None
            if process.stdin is not None:
                process.stdin.close()
            self._worker_gone(process.pid)
            if self._stop_at is None:
                self._mourn(worker, process, now)
            elif process.returncode not in {0, -signal.SIGTERM}:
                self._status = 1

    def _mourn(self, worker: _Worker, process: subprocess.Popen[bytes], now: float) -> None:
        young = now - worker.started_at < self._patience.young_s
        self._young_deaths = self._young_deaths + 1 if young else 0
        delay_s = self._patience.delay_s(self._young_deaths)
        if delay_s is None:
            _log.error("workers keep dying right after their start (status %s); giving up", process.returncode)
            self._stop()
            self._status = 1
            return
        _log.warning("worker %s ended with status %s; replacing it", process.pid, process.returncode)
        worker.due_at = now + delay_s

    def _send(self, signum: int) -> None:
        for worker in self._workers:
            if worker.process is not None:
                worker.process.send_signal(signum)

    def _kill(self) -> None:
        for worker in self._workers:
            if worker.process is not None:
                worker.process.kill()
                worker.process.wait()
