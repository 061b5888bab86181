"""What needs somebody now: nothing on a quiet day, and each trouble by its own name."""

from typing import Any

import msgspec
import pytest

from dashboards.live.recent import ENOUGH
from dashboards.operations.problems import problems
from dashboards.operations.targets import figures_snapshot

FIGURES = {
    **figures_snapshot(None),
    "attempts": ENOUGH,
    "failed_share": 0.0,
    "ttft_p50_s": 0.3,
    "ttft_p95_s": 0.8,
    "usual_ttft_p50_s": 0.3,
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
        },
        "refusals": {"data": [refused("team_a", 99)]},
        "spend": {"times_usual": 1.1, "spent_nanousd": 20_000_000_000},
        "classifier": {"fallback_reason": None, "drift": "steady"},
    }


def test_a_quiet_day_has_no_problem() -> None:
    """Nothing is told where nothing is wrong, and unknown is no problem."""
    told = quiet()
    assert problems(told) == []
    told["spend"] = {"times_usual": 40.0, "spent_nanousd": 1_000_000_000}
    assert problems(told) == []
    told["spend"]["times_usual"] = None
    told["stores"]["books_check"]["differences"] = None
    told["targets"][0]["recent"] = figures_snapshot(None)
    assert problems(told) == []


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
        ("targets.0.state", "down", "open", "bad"),
        ("targets.0.state", "degraded", "open", "warn"),
        ("targets.0.is_priced", False, "configured", "warn"),
        ("targets.0.recent", {**FIGURES, "failed_share": 0.06}, "burning", "warn"),
        ("targets.0.recent", {**FIGURES, "failed_share": 0.4}, "burning", "bad"),
        ("targets.0.recent", {**FIGURES, "turned_away": 5}, "full", "warn"),
        ("targets.0.recent", {**FIGURES, "ttft_p95_s": 9.0}, "slow", "warn"),
        ("targets.0.recent", {**FIGURES, "ttft_p50_s": 0.7}, "slow", "warn"),
        ("pools.data.0.kv_usage", 0.97, "full", "warn"),
        ("pools.data.0.desired", 3, "full", "warn"),
        ("pools.data.0.problems", [{"kind": "none_ready", "text": "no replica can serve"}], "open", "warn"),
        ("pools.registry", {"reachable": False, "problem": "the database does not answer"}, "away", "warn"),
        ("queues.0.waiting", 4, "full", "warn"),
        ("stores.database", {"answers": False, "took_s": None}, "away", "bad"),
        ("stores.database", {"answers": True, "took_s": 0.6}, "slow", "warn"),
        ("stores.redis", {"configured": True, "answers": False, "problem": "late"}, "away", "warn"),
        ("stores.journal.accepting", False, "full", "bad"),
        ("stores.journal.oldest_s", 30.0, "full", "warn"),
        ("stores.journal.unbooked", 1, "books", "bad"),
        ("stores.books_check.differences", 2, "books", "bad"),
        ("process.draining", True, "open", "warn"),
        ("process.is_refusing", True, "burning", "bad"),
        ("process.in_flight", 99, "full", "bad"),
        ("spend.times_usual", 3.0, "burning", "warn"),
        ("classifier.fallback_reason", "disabled by configuration", "configured", "warn"),
        ("classifier.drift", "drifted", "slow", "warn"),
    ],
)
def test_each_trouble_is_told(path: str, value: Any, kind: str, severity: str) -> None:
    """Exactly once, with what it is about, what it means and where to look."""
    told = quiet()
    at(told, path, value)
    found = problems(told)
    assert [(each.kind, each.severity) for each in found] == [(kind, severity)]
    assert found[0].subject
    assert found[0].text
    assert found[0].href.startswith("/dashboard/operations")


def test_the_gravest_come_first() -> None:
    """Whatever order they are found in."""
    told = quiet()
    at(told, "stores.redis", {"configured": True, "answers": False, "problem": "late"})
    at(told, "targets.0.state", "down")
    assert [each.severity for each in problems(told)] == ["bad", "warn"]
    assert msgspec.structs.asdict(problems(told)[0])["subject"] == "small"


def test_who_floods_is_named_once_with_the_key_that_has_most() -> None:
    """By team, the one with most first; callers without a known key are told as such."""
    told = quiet()
    told["refusals"]["data"] = [refused("a", 60), refused("a", 70, "key_2"), refused(None, 500, None), refused("b", 99)]
    found = [(each.kind, each.subject) for each in problems(told)]
    assert found == [("flooding", "unknown callers"), ("flooding", "a")]
    text = problems(told)[1].text
    assert text.startswith("130 requests were refused in ten minutes, mostly with 429")
    assert text.endswith("70 of them to the key key_2")
    told["refusals"]["data"] = None
    assert problems(told) == []


def test_a_failing_target_is_one_line_with_since_when_and_whom_it_hit() -> None:
    """Not another for its share of failures."""
    told = quiet()
    told["targets"][0] |= {
        "state": "failing",
        "run": {"failures": 4, "since_us": 0, "teams": 2, "minute_attempts": 5, "minute_failures": 4},
        "recent": {**FIGURES, "failed_share": 0.9},
    }
    (found,) = problems(told)
    assert (found.severity, found.kind) == ("bad", "burning")
    assert found.text.startswith("its last 4 attempts failed, since 1970-01-01T00:00:00Z, of 2 teams; 4 of 5 attempts")
