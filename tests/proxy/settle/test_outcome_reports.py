"""Telling observers of finished requests, some at a time."""

import asyncio
from typing import Any

import msgspec
import pytest

from proxy.context import RequestContext
from proxy.dispatch.outcome import RequestOutcome, RequestTrace
from proxy.settle import outcome_reports as reporting
from proxy.settle.outcome_reports import Reports
from tests.proxy.contexts import a_context, a_routed_request

pytestmark = pytest.mark.usefixtures("leaping_time")


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer for one than a worker has at a stretch."""
    monkeypatch.setattr(reporting, "_AT_A_STRETCH_S", 10.0)


class Told:
    """Remembers of whom it was told."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.late_s = 0.0

    def finished(self, outcome: RequestOutcome) -> None:
        self.requests.append(outcome.request_id)
        self.late_s = outcome.told_after_s


class Traced(RequestTrace):
    """One whose end counts."""

    is_recorded = True

    def headers(self) -> dict[str, str]:
        return {}

    def finish(self, outcome: RequestOutcome, request_model: str, stream: bool) -> None:
        pass


def finished(request_id: str, **changes: Any) -> RequestContext:
    """One that was routed, and is small."""
    fields = {"request_id": request_id, "routed": a_routed_request(), **changes}
    return msgspec.structs.replace(a_context(), **fields)


async def test_they_are_told_together_in_their_order() -> None:
    """Nobody waits for it; as many as are told at once are not kept longer."""
    told = Told()
    reports = Reports((told,), (3, 3))
    for request_id in ("a", "b"):
        reports.add(finished(request_id), 1.0, None)
    assert told.requests == []
    reports.add(finished("c"), 1.0, None)
    assert told.requests == ["a", "b", "c"]


async def test_the_more_are_under_way_the_more_are_told_of_together() -> None:
    """Within bounds: one more that waits is nothing to each of many."""
    told, under_way = Told(), set(range(3))
    reports = Reports((told,), (2, 4), under_way)
    for request_id in ("a", "b"):
        reports.add(finished(request_id), 1.0, None)
    assert told.requests == []
    reports.add(finished("c"), 1.0, None)
    assert told.requests == ["a", "b", "c"]
    under_way.update(range(9))
    for request_id in ("d", "e", "f"):
        reports.add(finished(request_id), 1.0, None)
    assert told.requests == ["a", "b", "c"]
    reports.add(finished("g"), 1.0, None)
    assert told.requests[3:] == ["d", "e", "f", "g"]


@pytest.mark.usefixtures("leaping_time")
async def test_none_is_told_of_before_its_time_because_of_others() -> None:
    """The time counts from its own end, not from that of those before, which have been told of."""
    told, loop = Told(), asyncio.get_running_loop()
    reports = Reports((told,), (2, 2))
    for request_id in ("a", "b"):
        reports.add(finished(request_id), loop.time(), None)
    await asyncio.sleep(0.015)
    reports.add(finished("c"), loop.time(), None)
    await asyncio.sleep(0.01)
    assert told.requests == ["a", "b"]
    await asyncio.sleep(0.02)
    assert told.requests == ["a", "b", "c"]
    assert told.late_s == pytest.approx(0.02, abs=0.005)


@pytest.mark.usefixtures("leaping_time")
async def test_one_alone_is_told_of_soon() -> None:
    """Also where none follows; and at once where somebody asks."""
    told = Told()
    reports = Reports((told,), (3, 3))
    reports.add(finished("a"), asyncio.get_running_loop().time(), None)
    await asyncio.sleep(0.03)
    assert told.requests == ["a"]
    assert told.late_s == pytest.approx(0.02, abs=0.005)
    reports.add(finished("b"), 1.0, None)
    reports.flush()
    assert told.requests == ["a", "b"]


LARGE = msgspec.structs.replace(a_routed_request().facts, most_input_tokens=1_000_000)


@pytest.mark.parametrize(
    "changes",
    [{"routed": None}, {"trace": Traced()}, {"routed": a_routed_request(facts=LARGE)}],
    ids=("refused", "traced", "large"),
)
async def test_what_is_large_or_traced_does_not_wait(changes: dict[str, Any]) -> None:
    """What is refused may hold a body of any size."""
    told = Told()
    reports = Reports((told,), (3, 3))
    reports.add(finished("a"), 1.0, None)
    reports.add(finished("b", **changes), 1.0, None)
    assert told.requests == ["a", "b"]
