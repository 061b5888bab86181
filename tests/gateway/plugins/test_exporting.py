"""Exporters: whatever becomes of them, callers wait for nothing, memory is bounded, and each outcome comes once."""

import asyncio
from collections.abc import Sequence

import pytest

from accounts.caller import TeamSettings
from classifier.prediction import Prompt
from gateway.plugins.calls import Calls
from gateway.plugins.exporting import MOST_AT_ONCE, MOST_WAITING, Exporting
from proxy.dispatch.outcome import RequestOutcome
from tests.cost.entries import until
from tests.gateway.plugins.told import Told
from weighbridge.plugins import Outcome

_LONG_S = 30.0


class Kept:
    """An exporter that keeps what it gets, and does before what it is told to."""

    protocol = 1

    def __init__(self) -> None:
        self.batches: list[Sequence[Outcome]] = []
        self.fails = False
        self.hangs = False

    async def finished(self, outcomes: Sequence[Outcome]) -> None:
        if self.hangs:
            await asyncio.sleep(_LONG_S)
        if self.fails:
            raise ConnectionError("nobody there")
        self.batches.append(outcomes)

    @property
    def ids(self) -> list[str]:
        return [each.request_id for batch in self.batches for each in batch]


def outcome(number: int, settings: TeamSettings | None = None) -> RequestOutcome:
    return RequestOutcome(
        request_id=f"r{number}",
        status=200,
        duration_s=0.1,
        told_after_s=2.0,
        settings=settings,
        prompt=Prompt(text="my own words"),
        error_message="my own words",
    )


def exporting(
    exporter: Kept, *, deadline_s: float = _LONG_S, every_s: float = 0.001, close_s: float = 5.0, text: bool = False
) -> tuple[Exporting, Told]:
    told = Told()
    calls = Calls("house", deadline_s, told)
    made = Exporting(exporter, calls, told, text=text, wall_clock=lambda: 1_000.0, every_s=every_s, close_s=close_s)
    return made, told


async def delivered(told: Told, result: str, number: int) -> None:
    await until(lambda: told.exported[result] >= number)


async def test_outcomes_come_in_batches_once_each_and_in_order() -> None:
    """LiteLLM's integrations saw events twice (14340) or sent the whole list again and again (25660)."""
    kept = Kept()
    made, told = exporting(kept)
    made.start()
    number = 3 * MOST_AT_ONCE + 7
    for each in range(number):
        made.finished(outcome(each))
    await delivered(told, "delivered", number)
    await made.aclose()
    assert kept.ids == [f"r{each}" for each in range(number)]
    assert max(map(len, kept.batches)) == MOST_AT_ONCE
    assert told.exported == {"delivered": number}
    assert kept.batches[0][0].ended_at == 998.0


async def test_a_hanging_exporter_is_bounded_in_memory_and_drops_are_counted() -> None:
    """Case 52 (LiteLLM 25660, 19709): without a bound the process grows until it is killed."""
    kept = Kept()
    kept.hangs = True
    made, told = exporting(kept, close_s=0.01)
    made.start()
    await asyncio.sleep(0.01)
    for each in range(MOST_WAITING + 1_000):
        made.finished(outcome(each))
    await asyncio.sleep(0.01)
    assert made.waiting <= MOST_WAITING
    assert told.exported["dropped"] == 1_000
    await made.aclose()
    assert told.exported["dropped"] + told.exported["lost"] == MOST_WAITING + 1_000
    assert kept.batches == []


async def test_a_failed_batch_is_lost_and_the_next_ones_come() -> None:
    """Kept for a retry without a bound it would grow (LiteLLM 26569); brought twice it would be counted twice."""
    kept = Kept()
    made, told = exporting(kept)
    made.start()
    kept.fails = True
    made.finished(outcome(1))
    await delivered(told, "lost", 1)
    kept.fails = False
    made.finished(outcome(2))
    await delivered(told, "delivered", 1)
    await made.aclose()
    assert kept.ids == ["r2"]


async def test_a_late_exporter_is_taken_out_and_what_comes_then_is_dropped() -> None:
    """Three deadlines, and no more for as long as it is out."""
    kept = Kept()
    kept.hangs = True
    made, told = exporting(kept, deadline_s=0.01)
    made.start()
    for each in range(3):
        made.finished(outcome(each))
        await delivered(told, "lost", each + 1)
    made.finished(outcome(3))
    await delivered(told, "dropped", 1)
    assert told.out == {"house": True}
    await made.aclose()


async def test_what_waits_at_the_end_is_delivered_for_a_bounded_time() -> None:
    """A flush at the end waited for a loop that never ends (pr-agent 2551), or nothing was flushed at all."""
    kept = Kept()
    made, told = exporting(kept, every_s=_LONG_S)
    made.start()
    await asyncio.sleep(0)
    made.finished(outcome(1))
    async with asyncio.timeout(5):
        await made.aclose()
    assert kept.ids == ["r1"]
    assert told.exported == {"delivered": 1}


@pytest.mark.parametrize(
    ("text", "learning", "seen"),
    [(False, "prompts", None), (True, "numbers", None), (True, "off", None), (True, "prompts", "my own words")],
)
async def test_words_are_given_only_where_both_operator_and_team_let_them(
    text: bool, learning: str, seen: str | None
) -> None:
    """Nor is the message of a refusal given, which may repeat them."""
    kept = Kept()
    made, _ = exporting(kept, text=text)
    made.start()
    made.finished(outcome(1, TeamSettings(learning=learning)))  # type: ignore[arg-type]
    await made.aclose()
    assert kept.batches[0][0].text == seen
    assert ("my own words" in repr(kept.batches)) == (seen is not None)
