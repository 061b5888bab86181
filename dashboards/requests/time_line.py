"""The time line of a request: what its caller waited for, from its arrival to the end of the answer. Pure."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from cost.ledger.entries import Entry
from cost.reports.recent import LEAST_STEP_US, RecentRequest, Way
from dashboards.ui.tables import Column
from dashboards.ui.words import NOT_GIVEN

TIME_LINE: Final = (
    Column("at", "After", "seconds", "From the request's arrival", sortable=False),
    Column("step", "Step", sortable=False),
    Column("took", "Lasted", "seconds", sortable=False),
)
_US: Final = 1_000_000
_ASKED: Final[dict[Way, str]] = {
    "first": "{target} asked",
    "retry": "{target} asked again: a retry",
    "fallback": "{target} asked instead: a fallback",
    "continued": "Another replica of {target} asked for the rest",
    "escalated": "{target} asked, as the answer before was weak",
    "hedge": "{target} asked beside it, as it was late",
    "agreement": "{target} asked, one of two beside each other",
}


class Step(NamedTuple):
    """One step: microseconds from the request's arrival, and how long it lasted; None for a moment."""

    at_us: int
    what: str
    took_us: int | None


def steps(request: RecentRequest) -> list[Step]:
    """Return the steps in the order of time; none for a request that was booked before its arrival was."""
    if any(each.began_us is None or each.duration_us is None for each in request.attempts):
        return []
    first_us = min((each.began_us or 0) - (each.queued_us or 0) for each in request.attempts)
    found = [Step(0, "Arrived; limits, budgets and models looked at", max(0, first_us))]
    for each, way in zip(request.attempts, request.ways, strict=True):
        found += _of_attempt(request, each, way)
    found += [*_given(request), Step(request.took_us or 0, "Ended", None)]
    return sorted(found, key=lambda step: step.at_us)


def step_rows(request: RecentRequest) -> list[dict[str, Any]]:
    """Return the table's rows."""
    return [
        {"at": step.at_us / _US, "step": step.what, "took": None if step.took_us is None else step.took_us / _US}
        for step in steps(request)
    ]


def _of_attempt(request: RecentRequest, entry: Entry, way: Way) -> Iterator[Step]:
    began_us, queued_us = entry.began_us or 0, entry.queued_us or 0
    before = [
        (each.began_us or 0) + (each.duration_us or 0) for each in request.attempts if each.attempt < entry.attempt
    ]
    if queued_us >= LEAST_STEP_US:
        yield Step(began_us - queued_us, "Waited in a queue for a place", queued_us)
    paused_us = began_us - queued_us - max(before, default=began_us)
    if paused_us >= LEAST_STEP_US:
        yield Step(began_us - queued_us - paused_us, "Waited before the next attempt", paused_us)
    yield Step(began_us, _ASKED[way].format(target=entry.target_id), entry.duration_us)
    if entry.flags[:1] in NOT_GIVEN and entry.ttft_us is not None and entry.duration_us is not None:
        yield Step(
            began_us + entry.ttft_us,
            "Its answer held back to be judged, and not given",
            entry.duration_us - entry.ttft_us,
        )


def _given(request: RecentRequest) -> Iterator[Step]:
    """Yield the caller's first token, and before it the time for which the answer was held back."""
    entry = next((each for each in request.attempts if each.given_us is not None), None)
    if entry is None or entry.given_us is None:
        return
    held_us = request.held_us
    if held_us is not None:
        yield Step(entry.given_us - held_us, "Held back to be judged", held_us)
    yield Step(entry.given_us, "First token to the caller" if entry.stream else "Answer to the caller", None)
