"""How fast, how hard and how often not at all: of the latest attempts, on SQLite and on PostgreSQL."""

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.reports.latency import BINS, LatestReader, Sample, complexities, failures, latency
from tests.cost.reports.two_organisations import DAY, TEAM_A, WHOLE, booked, keep


def sample(**changes: Any) -> Sample:
    """A streamed answer whose first token came after a tenth of a second."""
    usual: dict[str, Any] = {
        "at_us": DAY,
        "request_id": "r",
        "attempt": 1,
        "target_id": "small",
        "alias": "auto",
        "status": 200,
        "served": True,
        "reason": "cheapest-capable",
        "stream": True,
        "complexity": 0.2,
        "ttft_us": 100_000,
        "given_us": None,
        "duration_us": 1_100_000,
        "output_tokens": 101,
        "flags": (),
    }
    return Sample(**{**usual, **changes})


def test_a_continued_answer_has_no_first_token_of_its_own() -> None:
    """That of the rest came while the caller was reading the first part."""
    assert sample().ttft_s == 0.1
    assert sample(flags=("continued",)).ttft_s is None
    assert sample(flags=("continued",), given_us=50_000).ttft_s == 0.05


def test_the_first_token_is_the_callers() -> None:
    """After a queue, a retry or a hold it comes later than the attempt's own; of what was booked before, that is all there is."""
    assert sample(ttft_us=100_000, given_us=3_860_000).ttft_s == 3.86
    assert sample(ttft_us=100_000, given_us=3_860_000, served=False).ttft_s is None


async def test_the_latest_of_a_scope_and_no_more(engine: AsyncEngine) -> None:
    """Newest first; nobody else's, and nothing that no caller asked."""
    mine = [booked(f"m{number}", at_us=DAY + number, flags=("absurd_usage",)) for number in range(5)]
    others = [booked("b", team_id="team_b"), booked("r", organisation_id="rival"), booked("s", origin="shadow")]
    await keep(engine, [*mine, *others])
    reader = LatestReader(engine)
    found = await reader.read(TEAM_A, 3)
    assert [each.request_id for each in found] == ["m4", "m3", "m2"]
    assert found[0].flags == ("absurd_usage",)
    assert {each.request_id for each in await reader.read(WHOLE)} == {"m0", "m1", "m2", "m3", "m4", "b"}


async def test_what_the_latest_attempts_asked_for(engine: AsyncEngine) -> None:
    """With alias, attempt and cost, of this scope alone, and nothing from before."""
    reader = LatestReader(engine)
    assert await reader.asked(TEAM_A, 0) == ()
    mine = [
        booked("a", at_us=DAY),
        booked("a", attempt=2, at_us=DAY + 1),
        booked("n", alias="gpt-5", at_us=DAY + 2),
    ]
    await keep(engine, [*mine, booked("b", team_id="team_b")])
    found = await reader.asked(TEAM_A, DAY)
    assert [(each.alias, each.attempt) for each in found] == [("gpt-5", 1), ("auto", 2), ("auto", 1)]
    assert {each.cost_nanousd for each in found} == {mine[0].cost_nanousd}
    assert len(await reader.asked(TEAM_A, DAY + 2)) == 1


def test_percentiles_are_of_streamed_answers() -> None:
    """Of those that were not streamed or not given, the first token tells nothing of the wait."""
    streamed = [sample(ttft_us=each * 10_000, duration_us=each * 10_000 + 2_000_000) for each in range(1, 101)]
    noise = [sample(stream=False, ttft_us=9_000_000), sample(served=False, ttft_us=9_000_000)]
    whole, small = latency([*streamed, *noise])
    assert (whole.target_id, small.target_id) == ("", "small")
    assert (whole.ttft.count, whole.ttft.p50_s, whole.ttft.p95_s, whole.ttft.p99_s) == (100, 0.5, 0.95, 0.99)
    assert whole.tpot.p50_s == pytest.approx(0.02)


def test_a_few_answers_have_no_percentiles() -> None:
    """A count, and nothing that looks like knowledge; nor has one token a time for each after the first."""
    (whole, _) = latency([sample(output_tokens=1)] * 19)
    assert (whole.ttft.count, whole.ttft.p50_s) == (19, None)
    assert whole.tpot.count == 0
    assert latency([]) == latency([sample(stream=False)])


def test_prompts_fall_into_their_bins() -> None:
    """Both ends included; what was not weighed, not answered or drawn by chance is left out."""
    found = complexities(
        [
            sample(complexity=0.0),
            sample(complexity=1.0, target_id="large"),
            sample(complexity=0.5),
            sample(complexity=None),
            sample(complexity=0.5, served=False),
            sample(complexity=0.5, reason="holdout", target_id="large"),
        ]
    )
    (small, mine), (large, theirs) = found.by_target
    assert (small, large, found.mainstay, found.count) == ("small", "large", "small", 3)
    assert (mine[0], mine[BINS // 2], sum(mine), theirs[-1]) == (1, 1, 2, 1)
    assert found.threshold is None
    assert (complexities([]).mainstay, complexities([]).threshold) == ("", None)


def test_the_threshold_parts_what_happened() -> None:
    """With its exceptions on either side counted."""
    easy = [sample(complexity=0.1 + each / 1_000) for each in range(90)]
    hard = [sample(complexity=0.7 + each / 1_000, target_id="large") for each in range(30)]
    odd = [sample(complexity=0.12, target_id="large"), sample(complexity=0.75)]
    found = complexities([*easy, *hard, *odd]).threshold
    assert found is not None
    assert found.at == pytest.approx((0.189 + 0.7) / 2)
    assert found.mainstay_is_below
    assert found.mainstay == pytest.approx(90 / 91)
    assert found.others == pytest.approx(30 / 31)
    turned = complexities([*easy[:20], *hard]).threshold
    assert turned is not None
    assert turned.at == pytest.approx((0.119 + 0.7) / 2)
    assert (turned.mainstay_is_below, turned.mainstay, turned.others) == (False, 1.0, 1.0)


def test_there_is_no_threshold_where_complexity_decides_nothing() -> None:
    """Few on one side, both everywhere alike, or all prompts equally hard."""
    easy = [sample(complexity=0.1 + each / 1_000) for each in range(90)]
    alike = [sample(complexity=0.1 + each / 1_000, target_id="large") for each in range(0, 90, 2)]
    few = [sample(complexity=0.9, target_id="large")] * 9
    same = [sample(target_id="large")] * 50
    for others in (few, alike, []):
        assert complexities([*easy, *others]).threshold is None
    assert complexities([*([sample()] * 60), *same]).threshold is None


def test_failures_are_told_by_target_and_cause() -> None:
    """The most frequent first. A weak answer that a better one stood in for is no failure."""
    down = sample(request_id="d", served=False, status=502, flags=("upstream_error",))
    found = failures(
        [
            sample(),
            down,
            down,
            sample(served=False, status=499, flags=("caller_gone", "usage_missing"), target_id="large", request_id="g"),
            sample(request_id="d", attempt=2, target_id="large", reason="fallback"),
            sample(request_id="e", served=False, status=200, flags=("escalated",)),
            sample(request_id="e", attempt=2, target_id="large", reason="escalated"),
            sample(request_id="h", served=False, status=429),
            sample(request_id="i", served=False, status=0),
        ]
    )
    assert (found.attempts, found.failed, found.rescued, found.lost, found.escalated) == (9, 5, 1, 3, 1)
    assert found.by_cause == (
        ("small", "upstream_error", 2),
        ("large", "caller_gone", 1),
        ("small", "status 429", 1),
        ("small", "unknown", 1),
    )
