"""The policy of attempts in time: time-outs from plan and deadline, and the second attempt beside a late one."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from accounts.caller import TeamSettings
from cost.ledger.entries import Entry
from providers.retry_budget import RetryBudget
from providers.target import Target
from proxy.dispatch.attempt_policy import (
    AttemptPolicy,
    first_to_succeed,
    hold_within,
    needed_s,
    patience_s,
    places,
    window_s,
)
from proxy.dispatch.load_balancer import TargetRoom
from proxy.errors import DeadlineExceeded
from proxy.plan.route_plan import RoutePlan
from proxy.plan.routed_request import Hold, RoutedRequest
from proxy.shared.deadline import Deadline
from proxy.shared.target_latency import LatencyTracker
from tests.providers.calls import chat_request
from tests.proxy.contexts import ALICE, a_candidate, a_routed_request
from tests.proxy.test_pipeline_admission import _queue
from tests.scenarios.test_rules import House

pytestmark = pytest.mark.usefixtures("leaping_time")

LATE = "slow-first-token-40ms+tokens-5"
LATER = "slow-first-token-45ms+tokens-5"
LOST = ("hedge_lost", "usage_missing")


def told(sent: Sequence[dict[str, Any]]) -> dict[str, str]:
    name = b"x-weighbridge-"
    return {
        key.removeprefix(name).decode(): value.decode() for key, value in sent[0]["headers"] if key.startswith(name)
    }


def test_what_takes_as_long_as_it_is_long_is_not_hedged() -> None:
    """A recording is later than others because it is longer; a chat of the same target is hedged."""
    latency = LatencyTracker(lambda: 0.0)
    for _ in range(20):
        latency.observe_whole("small", 0.01)
    crowd: Any = _Crowd((), ())
    hedging = AttemptPolicy(
        room=TargetRoom(queues=None, replicas=None),
        balancer=crowd,
        latency=latency,
        clock=lambda: 0.0,
        hedging=RetryBudget(1.0, 1, 10.0, lambda: 0.0),
    )
    target = msgspec.structs.replace(a_candidate().target, hedged_tiers=frozenset({"interactive"}))
    chat = a_routed_request()
    heard = a_routed_request(request=msgspec.structs.replace(chat.request, operation="transcriptions"))
    assert hedging.hedge_after_s(target, chat) is not None
    assert hedging.hedge_after_s(target, heard) is None


def closing(house: House) -> list[Entry]:
    return sorted((each for each in house.books.entries if each.entry != "reserve"), key=lambda each: each.attempt)


def ended(house: House) -> list[tuple[str, tuple[str, ...], bool]]:
    """Deployment, flags, and whether its answer was given, of each attempt in its order."""
    return [(each.deployment_id, each.flags, each.served) for each in closing(house)]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_sibling_answers_for_a_late_deployment(*, stream: bool) -> None:
    """The first to begin is given. The other is cancelled and booked by its prompt, flagged, as nobody's saving."""
    house = House(LATE, siblings=["ok"], hedged_after_s=0.01)
    given = told(await house.ask(stream=stream))
    lost, won = closing(house)
    assert ended(house) == [("t0/a", LOST, False), ("t0/0", (), True)]
    assert (lost.reason, lost.status, lost.output_tokens, lost.baseline_nanousd) == ("cheapest-capable", 200, 0, None)
    assert (won.reason, won.status) == ("hedge", 200)
    assert (given["reason"], given["attempts"], given["deployment"]) == ("hedge", "2", "t0/0")
    assert float(given["hedge-cost-usd"]) == (lost.cost_nanousd or 0) / 1e9 > 0
    (outcome,) = house.told.outcomes
    assert [each.result for each in outcome.attempts] == ["hedge_lost", "ok"]
    assert outcome.cost_nanousd == (lost.cost_nanousd or 0) + (won.cost_nanousd or 0)
    assert house.upstream.open_streams == 0


async def test_who_comes_first_after_all_keeps_the_request() -> None:
    """The second attempt is the one that is cancelled, and told with its price."""
    house = House(LATE, siblings=[LATE], hedged_after_s=0.01)
    given = told(await house.ask(stream=True))
    assert ended(house) == [("t0/a", (), True), ("t0/0", LOST, False)]
    assert (given["reason"], given["attempts"]) == ("cheapest-capable", "2")
    assert "hedge-cost-usd" in given


async def test_who_is_overtaken_again_and_again_and_answers_nobody_is_ejected() -> None:
    """A deployment that hangs and whose callers are all helped elsewhere would be asked for ever."""
    house = House("hang", siblings=["ok"], hedged_after_s=0.01, hedged_share=1.0)
    for _ in range(12):
        assert told(await house.ask(stream=True))["deployment"] == "t0/0"
    # Only one key has asked.
    (told_of,) = house.breakers.telling().values()
    assert (told_of.state, told_of.only_for) == ("closed", 1)
    assert [each.result for outcome in house.told.outcomes for each in outcome.attempts].count("hedge_lost") == 5


async def test_who_is_late_and_answers_somebody_is_not() -> None:
    """One that loses races is slow, not ill."""
    house = House(LATE, siblings=["ok"], hedged_after_s=0.01, hedged_share=1.0)
    for _ in range(4):
        await house.ask(stream=True)
    permit = house.breakers.try_acquire("t0/a")
    assert permit is not None
    permit.success()
    for _ in range(4):
        await house.ask(stream=True)
    assert house.breakers.state("t0/a") == "closed"


async def test_without_a_sibling_the_next_candidate_is_asked() -> None:
    """It is the same plan that a fallback follows, and no fallback is counted."""
    house = House(LATE, "ok", hedged_after_s=0.01)
    assert told(await house.ask(stream=True))["target"] == "t1"
    assert ended(house) == [("t0/a", LOST, False), ("t1/a", (), True)]


async def test_of_one_request_in_twenty_there_are_two_attempts_at_most() -> None:
    """And one at first: however late everything is, the work is not doubled."""
    house = House(LATE, siblings=[LATE], hedged_after_s=0.01)
    for _ in range(40):
        await house.ask(stream=True)
    assert sum(each.reason == "hedge" for each in closing(house)) in {2, 3}


async def test_nothing_is_hedged_unless_it_is_wanted() -> None:
    """The default is one attempt."""
    house = House(LATE, "ok", siblings=["ok"])
    assert told(await house.ask(stream=True))["attempts"] == "1"


@pytest.mark.parametrize("second", ["error-500", "cut-0", "hang"])
async def test_a_second_attempt_that_fails_costs_nobody_the_first(second: str) -> None:
    """It is one attempt more in the books."""
    house = House(LATE, siblings=[second], hedged_after_s=0.01)
    assert told(await house.ask(stream=True))["deployment"] == "t0/a"
    assert [each.served for each in closing(house)] == [True, False]


async def test_when_both_fail_the_next_candidate_answers() -> None:
    """A race that nobody wins is one failure, which falls back like any other."""
    house = House("slow-first-token-20ms+error-500", "ok", siblings=["error-500"], hedged_after_s=0.01)
    assert told(await house.ask(stream=True))["target"] == "t1"
    assert house.upstream.open_streams == 0


@pytest.mark.parametrize("hung_up_s", [0.005, 0.02, 0.04])
async def test_a_caller_that_hangs_up_ends_both(hung_up_s: float) -> None:
    """Before the second began, while both run, and at the first token: each is settled once, as its caller's doing."""
    house = House(LATE, siblings=[LATER], hedged_after_s=0.01)
    await house.ask(stream=True, hang_up_after_s=hung_up_s)
    entries = [(each.attempt, each.entry == "reserve") for each in house.books.entries]
    assert len(entries) == len(set(entries)) == 2 * (1 if hung_up_s < 0.01 else 2)
    assert "caller_gone" in closing(house)[0].flags
    assert house.upstream.open_streams == house.line.in_flight == 0


async def test_the_place_of_each_attempt_is_given_back() -> None:
    """The second takes a free place only, of its own; a full queue has none, and the first is waited for."""
    async with _queue("t0") as queues:
        house = House(LATE, siblings=["ok"], queues=queues, hedged_after_s=0.01)
        assert told(await house.ask(stream=True))["deployment"] == "t0/0"
        assert (queues.state("own").in_flight, queues.state("own").in_flight_tokens) == (0, 0)
    async with _queue("t0", tokens=1) as queues:
        house = House(LATE, siblings=["ok"], queues=queues, hedged_after_s=0.01)
        assert told(await house.ask(stream=True))["attempts"] == "1"


async def test_what_lost_still_says_how_late_its_target_is() -> None:
    """Its first token would have come later still, so it counts as having come then."""
    latency = LatencyTracker(asyncio.get_running_loop().time)
    house = House(LATE, siblings=["ok"], hedged_after_s=0.001, latency=latency)
    for _ in range(5):
        # What lost counts once; the others are too few for a second attempt, and are late themselves.
        await house.ask(stream=False)
    late_s = latency.late_s("t0", "interactive", stream=False)
    assert late_s is not None
    assert late_s > 0.001


def test_no_lesser_answer_and_no_other_arm_of_the_experiment_stands_in() -> None:
    """A sibling comes first, then the next candidate, if it is as good and the request is not held out."""
    first, second = a_candidate("small"), a_candidate("big", reason="fallback")
    routed = a_routed_request(plan=RoutePlan(candidates=(first, second), rejected=()))
    found = [(each.target.target_id, each.reason) for each in places(first, routed, sibling=True)]
    assert found == [("small", "hedge"), ("big", "hedge")]
    assert list(places(second, routed, sibling=False)) == []
    held_out = a_routed_request(plan=routed.plan, arm="holdout")
    assert list(places(first, held_out, sibling=False)) == []
    thrifty = msgspec.structs.replace(ALICE, settings=TeamSettings(spill_over=False))
    assert list(places(first, a_routed_request(plan=routed.plan, caller=thrifty), sibling=False)) == []
    lesser = RoutePlan(candidates=(first, a_candidate("tiny", reason="degraded")), rejected=())
    assert list(places(first, a_routed_request(plan=lesser), sibling=False)) == []


async def test_of_two_that_succeed_at_once_the_first_counts() -> None:
    """And when all fail, the first one's error does."""

    async def ends(value: int) -> int:
        if value < 0:
            raise ValueError(value)
        return value

    def racing(*values: int) -> list[asyncio.Task[int]]:
        return [asyncio.ensure_future(ends(value)) for value in values]

    assert await first_to_succeed(racing(1, 2)) == 1
    assert await first_to_succeed(racing(-1, 2)) == 2
    with pytest.raises(ValueError, match="-1"):
        await first_to_succeed(racing(-1, -2))


def until(answer_at: float, *, own: bool = False) -> Deadline:
    return Deadline(arrived_at=0.0, first_token_at=answer_at, answer_at=answer_at, own=own)


@pytest.mark.parametrize(
    ("usual_s", "guess_s", "left_s", "kept_s"),
    [
        (2.0, 15.0, 10.0, 4.0),
        (0.005, 15.0, 10.0, 2.5),
        (0.005, 15.0, 600.0, 15.0),
        (1.0, 15.0, math.inf, 15.0),
        (4.0, 15.0, 10.0, 5.0),
        (None, 15.0, 60.0, 15.0),
        (None, 15.0, 10.0, 5.0),
        (None, 15.0, math.inf, 15.0),
    ],
)
def test_twice_the_usual_time_is_kept_for_who_comes_next(
    usual_s: float | None, guess_s: float, left_s: float, kept_s: float
) -> None:
    """The guess where it is not known; a quarter of what is left, or the guess, at least; and half of what is left at most."""
    assert needed_s(usual_s, guess_s, left_s) == kept_s


@pytest.mark.parametrize(
    ("left_s", "kept_s", "window"),
    [
        # Nobody else may answer.
        (10.0, None, 10.0),
        (math.inf, None, math.inf),
        (10.0, 2.0, 8.0),
        (10.0, 5.0, 5.0),
        (600.0, 24.0, 576.0),
    ],
)
def test_all_tries_at_a_target_leave_what_is_kept(left_s: float, kept_s: float | None, window: float) -> None:
    """Whatever the target usually takes: another one has time to answer."""
    assert window_s(left_s, kept_s) == window


@pytest.mark.parametrize(
    ("window", "spent_s", "usual_s", "stream", "others", "again", "waits_s"),
    [
        (math.inf, 0.0, None, True, False, False, None),
        (math.inf, 0.0, None, True, True, False, 10.0),
        (math.inf, 0.0, None, True, False, True, 10.0),
        (8.0, 0.0, None, True, False, False, 8.0),
        (8.0, 0.0, None, True, True, False, 8.0),
        # A sibling has its time, too, and the last try what is left of the target's.
        (8.0, 0.0, None, True, True, True, 4.0),
        (8.0, 4.0, None, True, True, False, 4.0),
        (8.0, 0.0, 2.0, True, True, True, 6.0),
        (8.0, 6.0, 2.0, True, True, False, 2.0),
        (8.0, 8.5, 2.0, True, True, False, 0.001),
        # A target that usually takes longer than the limit is not late for it.
        (math.inf, 0.0, 20.0, True, True, True, 60.0),
        (30.0, 0.0, 20.0, True, True, False, 30.0),
        (30.0, 0.0, None, True, True, False, 10.0),
        (30.0, 0.0, None, True, False, False, 30.0),
        # A whole answer shows nothing before its end, so a sibling is left nothing.
        (8.0, 0.0, None, False, True, True, 8.0),
        (30.0, 2.0, None, False, True, False, 28.0),
        (math.inf, 0.0, None, False, False, False, None),
        (-1.0, 0.0, None, False, False, False, 0.001),
    ],
)
def test_a_try_leaves_time_for_who_else_may_answer(
    window: float,
    spent_s: float,
    usual_s: float | None,
    *,
    stream: bool,
    others: bool,
    again: bool,
    waits_s: float | None,
) -> None:
    """Of its target's time; where nobody else may answer, it has all of that."""
    found = patience_s(window, spent_s, usual_s, 10.0, stream=stream, others=others, again=again)
    assert found == waits_s


@pytest.mark.parametrize(("left_s", "holds_s"), [(math.inf, 30.0), (100.0, 30.0), (8.0, 4.0), (-1.0, 0.001)])
def test_what_is_held_back_is_released_in_time_to_be_read(left_s: float, holds_s: float) -> None:
    """Half of what is left at most."""
    hold = Hold(max_bytes=1, max_s=30.0)
    assert hold_within(a_routed_request(deadline=until(left_s)), hold, 0.0).max_s == holds_s


class _Crowd:
    """The pools of these targets are full, and those are ill."""

    replicas = None

    def __init__(self, full: tuple[str, ...], ill: tuple[str, ...]) -> None:
        self.full = full
        self.ill = ill

    def crowd(self, target: Target) -> object:
        return object() if target.target_id in self.full else None

    def has_healthy(self, target: Target, _caller: object, _tried: object) -> bool:
        return target.target_id not in self.ill


def policy(
    latency: LatencyTracker | None = None, *, ill: tuple[str, ...] = (), full: tuple[str, ...] = ()
) -> AttemptPolicy:
    crowd: Any = _Crowd(full, ill)
    room = TargetRoom(queues=None, replicas=crowd)
    return AttemptPolicy(room=room, balancer=crowd, latency=latency, clock=lambda: 0.0)


def late(*names: str, left_s: float = 10.0, stream: bool = True, spill_over: bool = True) -> RoutedRequest:
    """A request with these candidates and so much time; the first one is our own, and those called `pool-…` are, too."""
    candidates = tuple(a_candidate(name) for name in names)
    candidates = tuple(
        msgspec.structs.replace(each, target=msgspec.structs.replace(each.target, pool="h100"))
        if each.target.target_id.startswith("pool-")
        else each
        for each in candidates
    )
    return a_routed_request(
        plan=RoutePlan(candidates=candidates, rejected=()),
        request=chat_request(stream=stream),
        deadline=Deadline(arrived_at=0.0, first_token_at=1.0, answer_at=left_s, own=True),
        caller=msgspec.structs.replace(ALICE, settings=TeamSettings(spill_over=spill_over)),
        pools={name: "h100" for name in names if name.startswith("pool-") or name == names[0]},
    )


@pytest.mark.parametrize(
    ("ill", "full", "spill_over", "waits_s"),
    [
        ((), (), True, 7.5),
        # Who comes after it is slower: 3 s, twice, but half of the time at most.
        (("fast",), (), True, 5.0),
        (("fast", "pool-b"), (), True, 10.0),
        (("fast",), ("pool-b",), True, 10.0),
        ((), (), False, 5.0),
        (("pool-b",), (), False, 10.0),
        ((), ("pool-b",), False, 10.0),
    ],
)
def test_time_is_kept_for_who_is_healthy_has_room_and_may_be_paid_for(
    ill: tuple[str, ...], full: tuple[str, ...], *, spill_over: bool, waits_s: float
) -> None:
    """For the least demanding of them; where nobody is, the target has all of the time."""
    latency = LatencyTracker(lambda: 0.0)
    for _ in range(8):
        latency.observe("fast", 1.0, 0.01)
        latency.observe("pool-b", 3.0, 0.01)
    routed = late("own", "fast", "pool-b", spill_over=spill_over)
    own, chosen = routed.plan.candidates[0], policy(latency, ill=ill, full=full)
    assert chosen.patience_s(own, routed, 0.0, 0.0, False, chosen.kept_s(own, routed, 0.0)) == waits_s


@pytest.mark.parametrize(
    ("stream", "own_s", "next_s", "left_s", "asked"),
    [
        (True, 6.0, 1.0, 10.0, True),
        (True, 9.0, 1.0, 10.0, False),
        (True, 9.0, None, 10.0, False),
        (True, 9.0, 1.0, 60.0, True),
        # Nobody is faster.
        (True, 9.0, 9.5, 10.0, True),
        (True, None, 1.0, 10.0, True),
        (False, 6.0, 1.0, 10.0, True),
        (False, 9.0, 1.0, 10.0, False),
        (False, 9.9, 1.0, 10.0, False),
        (False, 9.9, None, 10.0, False),
        (False, 9.9, 9.95, 10.0, True),
        (False, None, 1.0, 10.0, True),
    ],
)
def test_who_usually_takes_too_long_is_passed_over_for_a_faster_one(
    own_s: float | None, next_s: float | None, left_s: float, *, stream: bool, asked: bool
) -> None:
    """From the start: what it usually takes would leave the other too little."""
    latency = LatencyTracker(lambda: 0.0)
    for name, usual_s in (("own", own_s), ("next", next_s)):
        for _ in range(8):
            if usual_s is not None and stream:
                latency.observe(name, usual_s, 0.0)
            elif usual_s is not None:
                latency.observe_whole(name, usual_s)
    routed = late("own", "next", left_s=left_s, stream=stream)
    if asked:
        policy(latency).start_by(routed.plan.candidates[0], routed)
    else:
        with pytest.raises(DeadlineExceeded):
            policy(latency).start_by(routed.plan.candidates[0], routed)
