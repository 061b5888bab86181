"""Exporters: each has a bounded queue and a task of its own, so that none of them costs a caller anything."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from gateway.plugins.calls import Calls, NoAnswer
from proxy.dispatch.outcome import RequestOutcome
from weighbridge.plugins import Exporter, Outcome

MOST_WAITING: Final = 10_000
"""Outcomes that wait for one exporter; more are dropped, the newest first."""
MOST_AT_ONCE: Final = 200
_EVERY_S: Final = 1.0
CLOSE_S: Final = 5.0
"""Seconds that an exporter has at the end for what still waits."""


class ExportObserver(Protocol):
    """Counts outcomes; PluginMetrics is one."""

    def count_exported(self, plugin: str, result: str, outcomes: int) -> None: ...


class Exporting:
    """The queue before one exporter, an Observer of the pipeline."""

    def __init__(
        self,
        exporter: Exporter,
        calls: Calls,
        observer: ExportObserver,
        *,
        text: bool = False,
        wall_clock: Callable[[], float] = time.time,
        every_s: float = _EVERY_S,
        close_s: float = CLOSE_S,
    ) -> None:
        self._exporter = exporter
        self._calls = calls
        self._observer = observer
        self._text = text
        self._wall_clock = wall_clock
        self._every_s = every_s
        self._close_s = close_s
        self._waiting: deque[Outcome] = deque()
        self._wanted = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """The outcomes that wait."""
        return len(self._waiting)

    def finished(self, outcome: RequestOutcome) -> None:
        """Take an outcome, or count it as dropped. Never blocks, never raises."""
        if len(self._waiting) >= MOST_WAITING:
            self._observer.count_exported(self._calls.name, "dropped", 1)
            return
        self._waiting.append(outcome_as_told(outcome, self._wall_clock(), text=self._text))
        if len(self._waiting) >= MOST_AT_ONCE:
            self._wanted.set()

    def start(self) -> None:
        """Begin to deliver."""
        self._task = asyncio.create_task(self._deliver(), name=f"exporter-{self._calls.name}")

    async def aclose(self) -> None:
        """Deliver what waits, for a bounded time, and count the rest as dropped."""
        self._is_closing = True
        self._wanted.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=self._close_s)
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._waiting:
            self._observer.count_exported(self._calls.name, "dropped", len(self._waiting))
            self._waiting.clear()

    async def _deliver(self) -> None:
        while self._waiting or not self._is_closing:
            if len(self._waiting) < MOST_AT_ONCE and not self._is_closing:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), self._every_s)
                self._wanted.clear()
            if self._waiting:
                await self._deliver_some()

    async def _deliver_some(self) -> None:
        # Taken out before it is delivered: a batch that fails is lost, and never brought twice.
        batch = tuple([self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))])
        result = "lost"
        try:
            await self._calls.ask(lambda: self._exporter.finished(batch))
            result = "delivered"
        except NoAnswer as none:
            result = "dropped" if none.result == "out" else "lost"
        finally:
            self._observer.count_exported(self._calls.name, result, len(batch))


def outcome_as_told(outcome: RequestOutcome, now: float, *, text: bool) -> Outcome:
    """Return an outcome as exporters see it: without the caller's words, unless they are granted and the team lets them be kept."""
    keeps = text and outcome.settings is not None and outcome.settings.learning == "prompts"
    answered = next((each for each in outcome.attempts if each.target_id == outcome.target_id), None)
    return Outcome(
        request_id=outcome.request_id,
        ended_at=now - outcome.told_after_s,
        status=outcome.status,
        error_code=outcome.error_code,
        duration_s=outcome.duration_s,
        ttft_s=outcome.ttft_s,
        organisation_id=outcome.organisation_id,
        team_id=outcome.team_id,
        key_id=outcome.key_id,
        end_user=outcome.end_user,
        operation=outcome.operation,
        asked_model=outcome.asked_model,
        tier=outcome.tier,
        stream=outcome.stream,
        target_id=outcome.target_id,
        provider="" if answered is None else answered.provider,
        reason=outcome.reason,
        attempts=len(outcome.attempts),
        input_tokens=outcome.input_tokens,
        cached_input_tokens=outcome.cached_input_tokens,
        output_tokens=outcome.output_tokens,
        cost_nanousd=outcome.cost_nanousd,
        baseline_nanousd=outcome.baseline_nanousd,
        complexity=outcome.complexity,
        escalated_from=outcome.escalated_from,
        text=outcome.prompt.text if keeps and outcome.prompt is not None else None,
    )
