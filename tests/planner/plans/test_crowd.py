"""Users who wait, think and ask again."""

import pytest

from planner.plans.crowd import Crowd, planned_for, rate_of
from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import Plan
from planner.plans.sizing import Work
from tests.planner.plans.questions import question


def test_a_thousand_streams_of_thirty_tokens_a_second_are_thirty_thousand() -> None:
    """Who asks again at once waits 10 s for 300 tokens: 100 requests a second; at 4,000 tokens a replica, 8 replicas."""
    tokens = rate_of(1_000, 0.0, 300 / 30) * 300
    assert tokens == 30_000
    assert -(-tokens // 4_000) == 8


@pytest.mark.parametrize(("users", "think_s"), [(10, 5.0), (500, 0.0), (10_000, 30.0), (10_000, 300.0)])
def test_the_law_holds_with_the_answers_of_the_very_fleet(users: int, think_s: float) -> None:
    """Users are rate x (response + think time), the response being that of the planned replicas at that rate; none asks for more."""
    found, load = planned_for(Crowd(users=users, think_s=think_s), question())
    assert load.requests_per_s == found.requests_per_s
    assert load.response_s == answered_in(found)
    # Where one replica more would make the answers faster, no rate fits to the last bit.
    assert users <= load.requests_per_s * (answered_in(found) + think_s) <= 1.15 * users


def answered_in(found: Plan) -> float:
    assert found.operation is not None
    return found.operation.ttft_p50_s + (found.work.output_tokens - 1) * found.operation.tpot_s


def test_who_thinks_longer_needs_fewer_replicas() -> None:
    """And longer answers need more."""
    asked = question()
    replicas = [planned_for(Crowd(users=10_000, think_s=each), asked)[0].replicas for each in (0.0, 30.0, 120.0, 900.0)]
    assert replicas == sorted(replicas, reverse=True)
    assert replicas[0] > replicas[-1]
    longer = question(work=Work(input_tokens=asked.work.input_tokens, output_tokens=4 * asked.work.output_tokens))
    assert planned_for(Crowd(users=10_000, think_s=120.0), longer)[0].replicas > replicas[2]


def test_a_teams_peak_is_its_part_of_the_load() -> None:
    """With the replicas that it keeps busy and the tokens that it may have a minute."""
    found, load = planned_for(Crowd(users=10_000, think_s=30.0, team_peak=2_000), question())
    assert load.team_requests_per_s == pytest.approx(load.requests_per_s / 5)
    assert load.team_replicas == pytest.approx(found.replicas / 5, abs=1)
    assert load.team_tokens_per_minute == pytest.approx(load.team_requests_per_s * 60 * found.work.whole, abs=1)


def test_a_crowd_that_cannot_be_is_refused() -> None:
    """A team of more users than all, and speeds that the model of the engine contradicts."""
    with pytest.raises(PlanRefused, match="--team-peak 11 is more than all --users"):
        planned_for(Crowd(users=10, think_s=1.0, team_peak=11), question())
    with pytest.raises(PlanRefused, match="--qps instead of --users"):
        planned_for(Crowd(users=100_000, think_s=1.0), question(tokens_per_gpu=1_000_000.0))
