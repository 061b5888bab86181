"""Incidents: nothing on a quiet day, and each trouble by its own name."""

from typing import Any

import msgspec
import pytest

from api.live.first_seen import FirstSeen
from api.live.recent import ENOUGH
from api.operations.incidents import incidents
from api.operations.targets import figures_snapshot

FIGURES = {
    **figures_snapshot(None),
    "attempts": ENOUGH,
    "failed_share": 0.0,
    "model_ttft_p50_s": 0.3,
    "model_ttft_p95_s": 0.8,
    "usual_model_ttft_p50_s": 0.3,
}


def refused(team_id: str | None, refusals: int, key_id: str | None = "key_1") -> dict[str, Any]:
    return {"team_id": team_id, "key_id": key_id, "status": 429, "reason": "rate_limit_exceeded", "refusals": refusals}


def quiet() -> dict[str, Any]:
    """All is well."""
    return {
        "patience_s": 15.0,
        "process": {"draining": False, "is_refusing": False, "in_flight": 3, "max_in_flight": 100},
        "targets": [
            {
                "target_id": "small",
                "pool": None,
                "provider": "openai",
                "run": {"failures": 0, "since_us": None, "teams": 0, "minute_attempts": 0, "minute_failures": 0},
                "state": "ok",
                "why": None,
                "available": 2,
                "is_priced": True,
                "recent": FIGURES,
                "deployments": [{"breaker": {"state": "closed"}}, {"breaker": {"state": "closed"}}],
            }
        ],
        "pools": {
            "data": [
                {
                    "name": "gpu",
                    "state": "ok",
                    "problems": [],
                    "kv_usage": 0.5,
                    "desired": 2,
                    "counts": {"ready": 2},
                }
            ],
            "registry": {"reachable": True, "problem": None},
        },
        "queues": [
            {"name": "q", "waiting": 0, "in_flight_tokens": 99, "capacity_tokens": 100, "predicted_wait_s": 0.0}
        ],
        "stores": {
            "database": {"answers": True, "took_s": 0.001},
            "redis": {"configured": False, "answers": False, "problem": None},
            "journal": {"accepting": True, "oldest_s": 0.1, "waiting": 2, "unbooked": 0, "settle_failures": 0},
            "books_check": {"differences": 0},
            "keys": {"unverified": None},
        },
        "refusals": {"data": [refused("team_a", 99)]},
        "spend": {"times_usual": 1.1, "spent_nanousd": 20_000_000_000},
        "classifier": {"fallback_reason": None, "drift": "steady"},
    }


def test_a_quiet_day_has_no_problem() -> None:
    """Nothing is told where nothing is wrong, and unknown is no problem."""
    told = quiet()
    assert incidents(told) == []
    told["spend"] = {"times_usual": 40.0, "spent_nanousd": 1_000_000_000}
    assert incidents(told) == []
    told["spend"]["times_usual"] = None
    told["stores"]["books_check"]["differences"] = None
    told["targets"][0]["recent"] = figures_snapshot(None)
    assert incidents(told) == []


def at(told: dict[str, Any], path: str, value: Any) -> None:
    """Sets what lies there; numbers are places in lists."""
    *places, last = path.split(".")
    found: Any = told
    for place in places:
        found = found[int(place)] if place.isdigit() else found[place]
    found[last] = value


@pytest.mark.parametrize(
    ("path", "value", "kind", "severity"),
    [
        ("targets.0.state", "down", "down", "bad"),
        ("stores.keys.unverified", "none of the keys works: 1 key. Give it the pepper", "configuration", "bad"),
        ("targets.0.state", "degraded", "down", "warn"),
        ("targets.0.is_priced", False, "configuration", "warn"),
        ("targets.0.recent", {**FIGURES, "failed_share": 0.06}, "errors", "warn"),
        ("targets.0.recent", {**FIGURES, "failed_share": 0.4}, "errors", "bad"),
        ("targets.0.recent", {**FIGURES, "turned_away": 5}, "saturated", "warn"),
        ("targets.0.recent", {**FIGURES, "model_ttft_p95_s": 9.0}, "slow", "warn"),
        ("targets.0.recent", {**FIGURES, "model_ttft_p50_s": 0.7}, "slow", "warn"),
        ("pools.data.0.kv_usage", 0.97, "saturated", "warn"),
        ("pools.data.0.desired", 3, "saturated", "warn"),
        ("pools.data.0.problems", [{"kind": "none_ready", "text": "no replica can serve"}], "down", "warn"),
        ("pools.registry", {"reachable": False, "problem": "the database does not answer"}, "unreachable", "warn"),
        ("queues.0.waiting", 4, "saturated", "warn"),
        ("stores.database", {"answers": False, "took_s": None}, "unreachable", "bad"),
        ("stores.database", {"answers": True, "took_s": 0.6}, "slow", "warn"),
        ("stores.redis", {"configured": True, "answers": False, "problem": "late"}, "unreachable", "warn"),
        ("stores.journal.accepting", False, "saturated", "bad"),
        ("stores.journal.oldest_s", 30.0, "saturated", "warn"),
        ("stores.journal.unbooked", 1, "books", "bad"),
        ("stores.books_check.differences", 2, "books", "bad"),
        ("process.draining", True, "down", "warn"),
        ("process.is_refusing", True, "saturated", "bad"),
        ("process.in_flight", 99, "saturated", "bad"),
        ("spend.times_usual", 3.0, "spend", "warn"),
        ("classifier.fallback_reason", "disabled by configuration", "configuration", "warn"),
        ("classifier.drift", "drifted", "drift", "warn"),
    ],
)
def test_each_trouble_is_told(path: str, value: Any, kind: str, severity: str) -> None:
    """Exactly once, with what it is about, what it means and where to look."""
    told = quiet()
    at(told, path, value)
    found = incidents(told)
    assert [(each.kind, each.severity) for each in found] == [(kind, severity)]
    assert found[0].subject
    assert found[0].text
    assert found[0].advice
    assert found[0].href.startswith("/dashboard/operations")


def test_the_gravest_come_first() -> None:
    """Whatever order they are found in."""
    told = quiet()
    at(told, "stores.redis", {"configured": True, "answers": False, "problem": "late"})
    at(told, "targets.0.state", "down")
    assert [each.severity for each in incidents(told)] == ["bad", "warn"]
    assert msgspec.structs.asdict(incidents(told)[0])["subject"] == "small"


def test_who_floods_is_named_once_with_the_key_that_has_most() -> None:
    """By team, the one with most first; callers without a known key are told as such."""
    told = quiet()
    told["refusals"]["data"] = [refused("a", 60), refused("a", 70, "key_2"), refused(None, 500, None), refused("b", 99)]
    found = [(each.kind, each.subject) for each in incidents(told)]
    assert found == [("flooding", "unknown callers"), ("flooding", "a")]
    text = incidents(told)[1].text
    assert text.startswith("130 requests were refused in ten minutes, mostly with 429")
    assert text.endswith("70 of them to the key key_2")
    told["refusals"]["data"] = None
    assert incidents(told) == []


def test_a_failing_target_is_one_line_with_since_when_and_whom_it_hit() -> None:
    """Not another for its share of failures."""
    told = quiet()
    told["targets"][0] |= {
        "state": "failing",
        "run": {"failures": 4, "since_us": 7, "teams": 2, "minute_attempts": 5, "minute_failures": 4},
        "recent": {**FIGURES, "failed": 18, "failed_share": 0.9},
    }
    (found,) = incidents(told)
    assert (found.severity, found.kind, found.since_us, found.requests, found.teams) == ("bad", "errors", 7, 18, 2)
    assert found.text.startswith("its last 4 attempts failed; 4 of 5 attempts")


def test_one_outage_is_one_line() -> None:
    """What follows from something else is told with it: a pool's targets and queues, a provider's models, what the
    database's absence brings.
    """
    told = quiet()
    (ours,) = told["targets"]
    ours |= {"pool": "gpu", "provider": "vllm", "state": "down"}
    run = {"failures": 9, "since_us": 50, "teams": 1, "minute_attempts": 9, "minute_failures": 9}
    bought = {**ours, "pool": None, "provider": "openai", "state": "failing", "run": run}
    told["targets"] = [
        ours,
        {**bought, "target_id": "large", "recent": {**FIGURES, "failed": 9}},
        {**bought, "target_id": "tiny", "run": {**run, "since_us": 40}},
    ]
    at(told, "pools.data.0.state", "down")
    at(told, "pools.data.0.problems", [{"kind": "none_ready", "text": "no replica can serve"}])
    told["queues"][0] |= {"waiting": 4, "targets": ["small"]}
    at(told, "stores.database", {"answers": False, "took_s": None})
    at(told, "stores.journal.oldest_s", 30.0)
    at(told, "pools.registry", {"reachable": False, "problem": "the database does not answer"})
    found = {each.subject: each for each in incidents(told)}
    assert set(found) == {"gpu", "openai", "database"}
    assert [line.partition(":")[0] for line in found["gpu"].also] == ["small", "q"]
    assert (found["gpu"].severity, found["gpu"].requests) == ("bad", 4)
    assert [line.partition(":")[0] for line in found["openai"].also] == ["large", "tiny"]
    assert (found["openai"].since_us, found["openai"].requests) == (40, 9)
    assert [line.partition(":")[0] for line in found["database"].also] == ["journal", "registry"]


def test_one_model_that_fails_is_no_outage_of_its_provider() -> None:
    """Nor is one beside another that answers."""
    told = quiet()
    (well,) = told["targets"]
    told["targets"] = [well, {**well, "target_id": "large", "state": "down"}]
    assert [each.subject for each in incidents(told)] == ["large"]


def test_what_does_not_know_when_it_began_is_dated_by_when_it_was_seen() -> None:
    """The first look counts, an earlier own time more, and what was over begins anew."""
    seen = FirstSeen()
    assert seen.dated({"a": None, "b": 5}, 10) == {"a": 10, "b": 5}
    assert seen.dated({"a": None, "b": None}, 20) == {"a": 10, "b": 5}
    seen.dated({}, 30)
    assert seen.dated({"a": None}, 40) == {"a": 40}
