"""Keeps the control plane running: starts it, starts it again when it dies, and ends it last."""

import logging
import signal
from collections.abc import Callable
from typing import Final

from gateway.process.running_child import RestartBackoff, RunningChild

_log: Final = logging.getLogger("weighbridge.supervisor")


class ControlKeeper:
    """One process, as the supervisor steps through its life.

    Before it has ever served, it is given up when it keeps dying, or says that waiting does not help. Later it is not, because
    workers serve without it.
    """

    def __init__(
        self, start: Callable[[float], RunningChild], patience: RestartBackoff, gone: Callable[[int], None]
    ) -> None:
        self._start = start
        self._patience = patience
        self._gone = gone
        self._running: RunningChild | None = None
        self.has_served = False
        self._is_replaced = False
        self._young_deaths = 0
        self.due_at: float | None = 0.0
        """The time of its next start; None while it runs or is stopped."""
        self.is_stopping = False
        self.gave_up = False
        self.refusal = ""
        """What it said when it was given up at its first word."""
        self.ended_badly = False
        """True when it did not stop as it was told to."""

    @property
    def is_over(self) -> bool:
        """True when it is stopped and has ended."""
        return self.is_stopping and self._running is None

    def step(self, now: float) -> None:
        """Notice the process's end, and start it when that is due."""
        running = self._running
        if running is not None:
            running.look()
            self.has_served = self.has_served or running.serves
            if running.ended:
                self._reap(running, now)
        if self.due_at is not None and now >= self.due_at and not self.is_stopping and not self.gave_up:
            self.due_at = None
            self._running = self._start(now)

    def replace(self) -> None:
        """End the present process; a new one takes its place, and workers wait for it meanwhile."""
        if self._running is not None and not self.is_stopping:
            self._is_replaced = True
            self.send(signal.SIGTERM)

    def stop(self) -> None:
        """End it for good."""
        self.is_stopping = True
        self.due_at = None
        self.send(signal.SIGTERM)

    def send(self, signum: int) -> None:
        if self._running is not None:
            self._running.process.send_signal(signum)

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()

    def _reap(self, dead: RunningChild, now: float) -> None:
        self._running = None
        dead.close()
        self._gone(dead.process.pid)
        if self.is_stopping:
            self.ended_badly = not dead.ended_well()
            return
        if self._is_replaced:
            self._is_replaced = False
            self.due_at = now
            return
        self._ended(dead, now)

    def _ended(self, dead: RunningChild, now: float) -> None:
        status = dead.process.returncode
        if dead.cannot_serve and not self.has_served:
            self.refusal = dead.refusal
            self.gave_up = True
            return
        if dead.refusal:
            again_s = self._patience.max_delay_s if dead.cannot_serve else self._patience.again_s
            _log.error("the control plane cannot serve: %s; starting it again in %g s", dead.refusal, again_s)
            self.due_at = now + again_s
            return
        self._young_deaths = self._young_deaths + 1 if dead.died_young(now, self._patience.young_s) else 0
        delay_s = self._patience.delay_s(self._young_deaths)
        if delay_s is None and not self.has_served:
            _log.error("the control plane keeps dying right after its start (status %s); giving up", status)
            self.gave_up = True
            return
        _log.warning("the control plane %s ended with status %s; starting it again", dead.process.pid, status)
        self.due_at = now + (self._patience.max_delay_s if delay_s is None else delay_s)
