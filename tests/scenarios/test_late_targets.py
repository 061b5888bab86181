"""Targets that are too slow for the time that a caller gives: they are left for others before that time is up."""

import asyncio
from typing import Any, Final

import msgspec
import pytest

from accounts.caller import TeamSettings
from providers.config import TimeoutsConfig
from proxy.shared.deadline import DeadlinesSection
from proxy.shared.target_latency import LatencyTracker
from tests.scenarios.test_rules import House, said

pytestmark = pytest.mark.usefixtures("leaping_time")

TEN_S: Final[dict[str, list[tuple[bytes, bytes]]]] = {
    "own": [(b"x-request-timeout-ms", b"10000")],
    "client": [(b"x-stainless-read-timeout", b"10")],
    "tier": [],
}
"""Ten seconds, by whom they are given."""
SHORT: Final = DeadlinesSection.model_validate(
    {"interactive": {"answer_s": 10}, "batch": {"answer_s": 10, "first_token_s": 5}}
)


def a_tracker() -> LatencyTracker:
    return LatencyTracker(asyncio.get_running_loop().time)


def a_house(*scripts: str, latency: LatencyTracker | None = None, **parts: Any) -> House:
    """With the time-outs that are usual, and with what it has seen of its targets."""
    house = House(*scripts, latency=latency or a_tracker(), **parts)
    house.line.config = msgspec.structs.replace(
        house.line.config, timeouts=TimeoutsConfig(), pools={"t0": "own"} if parts.get("settings") else {}
    )
    return house


async def asked(house: House, *, stream: bool, by: str = "own", tier: str = "interactive") -> tuple[int, str, float]:
    """The status of one request, the targets that were called for it, and the seconds that it took."""
    calls, loop = len(house.upstream.calls), asyncio.get_running_loop()
    began_at = loop.time()
    sent = await house.ask(stream=stream, headers=[*TEN_S[by], (b"x-tier", tier.encode())])
    house.line.reports.flush()
    targets = ",".join(each.deployment.target_id for each in list(house.upstream.calls)[calls:])
    return sent[0]["status"], targets, loop.time() - began_at


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tier", ["interactive", "batch"])
@pytest.mark.parametrize("by", TEN_S)
@pytest.mark.parametrize("siblings", [0, 2])
@pytest.mark.parametrize("script", ["slow-first-token-6000ms", "slow-first-token-11000ms", "hang"])
async def test_a_slow_pool_costs_nobody_an_answer(script: str, siblings: int, by: str, tier: str, stream: bool) -> None:
    """The healthy model after it answers each request in time; what is too slow is known soon, and is not asked then."""
    deadlines = SHORT if by == "tier" else DeadlinesSection()
    house = a_house(script, "slow-first-token-1000ms", siblings=[script] * siblings, deadlines=deadlines)
    for _ in range(12):
        status, _, took_s = await asked(house, stream=stream, by=by, tier=tier)
        assert (status, took_s <= 10) == (200, True)
    _, targets, _ = await asked(house, stream=stream, by=by, tier=tier)
    if script != "slow-first-token-6000ms":
        assert targets == "t1"


async def test_a_target_that_was_too_slow_is_tried_again_after_a_while() -> None:
    """It may be fast again: a minute later one request asks it."""
    house = a_house("hang", "ok")
    while (await asked(house, stream=True))[1] != "t1":
        pass
    await asyncio.sleep(61)
    assert (await asked(house, stream=True))[1] == "t0,t1"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("by", TEN_S)
@pytest.mark.parametrize("siblings", [0, 2])
@pytest.mark.parametrize("usual_s", [2.0, 6.0, 9.5])
@pytest.mark.parametrize("other_s", [None, 0.3, 3.0])
async def test_a_pool_that_is_later_than_it_usually_is_leaves_another_its_time(
    other_s: float | None, usual_s: float, siblings: int, by: str, *, stream: bool
) -> None:
    """However long its answers usually take, and whatever is known of the healthy model after it."""
    tracker = a_tracker()
    for target_id, seen_s in (("t0", usual_s), ("t1", other_s)):
        for _ in range(0 if seen_s is None else 10):
            tracker.observe(target_id, seen_s, 0.005)
            tracker.observe_whole(target_id, seen_s or 0.0)
    quick = f"slow-first-token-{round(1000 * (other_s or 0.5))}ms"
    deadlines = SHORT if by == "tier" else DeadlinesSection()
    house = a_house("hang", quick, siblings=["hang"] * siblings, latency=tracker, deadlines=deadlines)
    status, targets, took_s = await asked(house, stream=stream, by=by)
    assert (status, targets[-2:], took_s <= 10) == (200, "t1", True)


@pytest.mark.parametrize("usual_s", [1, 4])
async def test_an_answer_that_is_merely_long_is_waited_for(usual_s: int) -> None:
    """Until the time begins that is kept for the other."""
    tracker = a_tracker()
    for _ in range(10):
        tracker.observe_whole("t0", usual_s)
        tracker.observe_whole("t1", 2)
    house = a_house("slow-first-token-5900ms", "ok", latency=tracker)
    status, called, _ = await asked(house, stream=False)
    assert (status, called) == (200, "t0")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("spill_over", "status", "targets"), [(True, 200, "t0,t1"), (False, 504, "t0")])
async def test_a_team_that_does_not_overflow_keeps_to_its_own(
    *, stream: bool, spill_over: bool, status: int, targets: str
) -> None:
    """What is ours has all of its time then."""
    house = a_house("hang", "ok", settings=TeamSettings(spill_over=spill_over))
    assert (await asked(house, stream=stream))[:2] == (status, targets)


async def test_nothing_is_kept_for_who_is_known_to_fail() -> None:
    """The slow one is waited for to the end where the other's circuit is open."""
    house = a_house("slow-first-token-9000ms", "error-500")
    other = "t1/a"
    while house.breakers.state(other) == "closed":
        permit = house.breakers.try_acquire(other)
        assert permit is not None
        permit.failure(of_everyone=True)
    status, called, took_s = await asked(house, stream=True)
    assert (status, called, round(took_s)) == (200, "t0", 9)


@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_told_in_the_end_names_what_happened(*, stream: bool) -> None:
    """The time, whose it was, and who was asked last."""
    house = a_house("hang", "hang")
    sent = await house.ask(stream=stream, headers=TEN_S["own"])
    assert sent[0]["status"] == 504
    words = b"within the 10000 ms of `x-request-timeout-ms`; `t1` was the last of 2 attempts"
    assert words in said(sent)


async def test_a_second_attempt_beside_a_late_one_has_its_own_time() -> None:
    """Hedged early, the next candidate answers, and the first is not waited for."""
    house = a_house("hang", "slow-first-token-6000ms", hedged_after_s=0.5)
    assert (await asked(house, stream=True))[:2] == (200, "t0,t1")
