"""The load of so many users at once, each of whom waits for an answer, thinks, and asks again.

By the interactive response time law, users = rate x (response time + think time): Denning and Buzen, "The Operational Analysis of
Queueing Network Models", ACM Computing Surveys 10(3), 1978. The response time hangs on the fleet that is planned for the rate, so the two
are found together.
"""

from typing import Final

import msgspec

from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import Plan, Question, carried, plan

_CLOSE: Final = 0.002
_LONE: Final = 1e-3
"""A rate at which nobody waits for anybody."""


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """The users of a pool at its busiest."""

    users: int
    think_s: float
    """Seconds between the end of an answer and the user's next request."""
    team_peak: int | None = None
    """The most users that one team has at once."""


class CrowdLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a crowd asks for, and how long it waits."""

    users: int
    think_s: float
    response_s: float
    """Seconds to the last token of a mean answer."""
    requests_per_s: float
    team_peak: int | None = None
    team_requests_per_s: float = 0.0
    team_replicas: int = 0
    """Replicas that this team alone keeps busy."""
    team_tokens_per_minute: int = 0


def planned_for(crowd: Crowd, question: Question) -> tuple[Plan, CrowdLoad]:
    """Return the plan for a crowd, and its load. `question` is at any rate. Raises PlanRefused."""
    if crowd.team_peak is not None and crowd.team_peak > crowd.users:
        raise PlanRefused(
            f"--team-peak {crowd.team_peak:,} is more than all --users, {crowd.users:,}: users are those of all teams together"
        )
    # Nobody is answered sooner than who is alone, so no rate is higher than this one. More load makes answers slower but where it
    # brings another replica, so there may be no rate that fits to the last bit: the next one above is taken.
    lowest, found = 0.0, plan(msgspec.structs.replace(question, requests_per_s=_LONE))
    highest = rate_of(crowd.users, crowd.think_s, _response_s(found))
    found = plan(msgspec.structs.replace(question, requests_per_s=highest))
    while highest - lowest > _CLOSE * highest:
        rate = (lowest + highest) / 2
        tried = plan(msgspec.structs.replace(question, requests_per_s=rate))
        if rate < rate_of(crowd.users, crowd.think_s, _response_s(tried)):
            lowest = rate
        else:
            highest, found = rate, tried
    return found, _load(crowd, found)


def rate_of(users: int, think_s: float, response_s: float) -> float:
    """Return the requests per second of so many users, by the response time law."""
    return users / (think_s + response_s)


def _response_s(found: Plan) -> float:
    """Return the seconds of a mean answer: the first token's median, which is a little less than its mean, and the others."""
    if found.operation is None:
        raise PlanRefused(
            "by the roofline these replicas could not keep up with --tokens-per-gpu, so nobody knows how long an answer takes: "
            "give --qps instead of --users"
        )
    return found.operation.ttft_p50_s + (found.work.output_tokens - 1) * found.operation.tpot_s


def _load(crowd: Crowd, found: Plan) -> CrowdLoad:
    rate = found.requests_per_s
    team = 0.0 if crowd.team_peak is None else rate * crowd.team_peak / crowd.users
    return CrowdLoad(
        users=crowd.users,
        think_s=crowd.think_s,
        response_s=_response_s(found),
        requests_per_s=rate,
        team_peak=crowd.team_peak,
        team_requests_per_s=team,
        team_replicas=carried(found, team) if team else 0,
        team_tokens_per_minute=round(team * found.work.whole * 60),
    )
