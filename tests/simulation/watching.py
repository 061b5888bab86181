"""What must hold at every moment, looked at after each step of a worker."""

from typing import Final

from tests.simulation.gateways import Worker
from tests.simulation.plan import Plan
from tests.simulation.story import Story
from tests.simulation.upstream import Call

_LEGAL: Final = {
    ("closed", "open"),
    ("paced", "open"),
    ("open", "half-open"),
    ("half-open", "open"),
    ("half-open", "closed"),
    ("half-open", "paced"),
    ("closed", "paced"),
    ("paced", "closed"),
}
"""Moves of a circuit, and of the pace that is told while it is closed."""


class Watch:
    """The watch over one worker: its limits and its circuits."""

    def __init__(self, worker: Worker, plan: Plan, story: Story, calls: list[Call]) -> None:
        self._worker = worker
        self._plan = plan
        self._story = story
        self._calls = calls
        self._states: dict[str, str] = {}
        self._opened_at: dict[str, int] = {}
        self._admitted: dict[str, list[float]] = {}
        self._seen: set[str] = set()
        self.running: dict[str, int] = {}
        """The requests of each team that have a place, as of the last look."""

    def look(self, now: float) -> None:
        """Look at the worker as it is now."""
        if self._worker.is_open.is_set():
            self._look_at_circuits()
            self._look_at_limits(now)

    def _look_at_circuits(self) -> None:
        breakers = self._worker.pipeline.breakers
        for target in self._worker.pipeline.line.config.catalog:
            for deployment in target.deployments:
                name = deployment.deployment_id
                before, state = self._states.get(name, "closed"), breakers.state(name)
                if state == before:
                    continue
                self._states[name] = state
                self._story.tell(self._worker.name, "circuit", of=name, before=before, now=state)
                if (before, state) not in _LEGAL:
                    self._story.violate("a circuit moves legally", of=name, before=before, now=state)
                if state == "open":
                    self._opened_at[name] = len(self._calls)
                elif before == "half-open" and not self._answered_since(name):
                    self._story.violate("a circuit closes by an answer", of=name)

    def _answered_since(self, name: str) -> bool:
        """Return True where the provider has answered anybody since the circuit opened; a refusal for its pace or the request's
        own fault is an answer.
        """
        provider = name.rpartition("/")[2]
        since = self._calls[self._opened_at.get(name, 0) :]
        return any(
            call.provider == provider and (call.said or (call.whole and call.behaviour in {"refuses", "busy"}))
            for call in since
        )

    def _look_at_limits(self, now: float) -> None:
        running: dict[str, int] = {}
        for context in self._worker.pipeline.line._under_way:
            if context.admission is None or context.caller is None:
                continue
            team = context.caller.team_id
            running[team] = running.get(team, 0) + 1
            if context.request_id not in self._seen:
                self._seen.add(context.request_id)
                self._admitted.setdefault(team, []).append(now)
                self._check_rate(team)
        self.running = running
        for team, count in running.items():
            if self._plan.concurrency is not None and count > self._plan.concurrency:
                self._story.violate(
                    "no more run at once than may", team=team, running=count, limit=self._plan.concurrency
                )

    def _check_rate(self, team: str) -> None:
        """A minute's worth at once, and what a minute brings from then on."""
        rate = self._plan.requests_per_minute
        if rate is None:
            return
        times = self._admitted[team]
        for at, first in enumerate(times):
            if len(times) - at > rate + (times[-1] - first) * rate / 60 + 1e-3:
                self._story.violate(
                    "no more are admitted than the rate", team=team, admitted=len(times) - at, since=first
                )
                return
