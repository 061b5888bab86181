"""Incidents: nothing on a quiet day, and each trouble by its own name."""

from typing import Any

import msgspec
import pytest

from api.incidents.kept import changes
from api.live.first_seen import FirstSeen
from api.live.recent import ENOUGH
from api.operations.incidents import Incident, counted, told_incident
from api.operations.incidents import incidents as found_in
from api.operations.state import judge, lasting
from api.operations.targets import figures_snapshot
from cost.times import MINUTE_US
from dashboards.ui.incident_words import hit_words
from proxy.settle.hurt.counting import Fate
from proxy.settle.hurt.store import HurtSum

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
                "run": {
                    "failures": 0,
                    "since_us": None,
                    "first_us": None,
                    "teams": 0,
                    "minute_attempts": 0,
                    "minute_failures": 0,
                },
                "late": [],
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
                    "waiting": 0,
                    "targets": ["own"],
                    "replicas": [1, 2],
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
        "batches": [],
        "spend": {"times_usual": 1.1, "spent_nanousd": 20_000_000_000},
        "classifier": {"fallback_reason": None, "drift": "steady"},
    }


def incidents(told: dict[str, Any]) -> list[Incident]:
    """What is found in a snapshot once it is judged, as operators' pages do."""
    judge(told["targets"], told["pools"]["data"], told["queues"], told["patience_s"])
    return found_in(told)


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
        ("targets.0.recent", {**FIGURES, "failed": 7, "failed_share": 0.35}, "errors", "warn"),
        ("targets.0.recent", {**FIGURES, "failed": 13, "failed_share": 0.65}, "errors", "bad"),
        ("targets.0.recent", {**FIGURES, "turned_away": 7}, "saturated", "warn"),
        ("targets.0.recent", {**FIGURES, "model_ttft_p95_s": 9.0, "sure_ttft_p95_s": 8.0}, "slow", "warn"),
        ("targets.0.recent", {**FIGURES, "model_ttft_p50_s": 0.7, "sure_ttft_p50_s": 0.6}, "slow", "warn"),
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


@pytest.mark.parametrize(
    "recent",
    [
        {"failed": 1, "failed_share": 0.05},
        {"failed": 6, "failed_share": 0.3},
        {"turned_away": 6},
        {"model_ttft_p95_s": 9.0, "sure_ttft_p95_s": 5.0},
        {"model_ttft_p50_s": 0.7, "sure_ttft_p50_s": 0.5},
    ],
)
def test_what_may_be_chance_is_no_trouble(recent: dict[str, Any]) -> None:
    """A few of twenty attempts: a target that is well has that several times a day."""
    told = quiet()
    at(told, "targets.0.recent", {**FIGURES, **recent})
    assert incidents(told) == []
    assert told["targets"][0]["state"] == "ok"


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


def hurt(
    targets: tuple[str, ...], requests: int, *, team: str = "a", minute: int = 1, fate: Fate = "refused"
) -> HurtSum:
    """Requests of a team in a minute, and what became of them."""
    return HurtSum(
        start_us=minute * MINUTE_US,
        is_minute=True,
        organisation_id="org",
        team_id=team,
        key_id=f"key_{team}",
        model="small",
        targets=targets,
        fate=fate,
        requests=requests,
    )


def test_a_failing_target_is_one_line_that_begins_with_its_cause() -> None:
    """Not another for its share of failures; since when the run began."""
    told = quiet()
    told["targets"][0] |= {
        "state": "failing",
        "why": "its provider refuses our key (401)",
        "run": {"failures": 4, "since_us": 7, "first_us": 3, "teams": 2, "minute_attempts": 5, "minute_failures": 4},
        "recent": {**FIGURES, "failed": 18, "failed_share": 0.9},
    }
    (found,) = incidents(told)
    assert (found.severity, found.kind, found.since_us) == ("bad", "errors", 7)
    assert found.text.startswith("its provider refuses our key (401): its last 4 attempts failed, and 4 of 5 attempts")


def test_an_incident_counts_everybody_once() -> None:
    """Each request is in one row, whatever targets it tried; of all teams, from the minute of the beginning on."""
    incident = Incident(
        severity="bad", kind="down", subject="p", text="", advice="", href="", targets=("large", "tiny", "many/*")
    )
    rows = [
        hurt(("large", "tiny"), 100, minute=2),
        hurt(("tiny",), 30, team="b", minute=3),
        hurt(("many/one",), 8, team="b", minute=3, fate="rerouted"),
        hurt(("other",), 1_000, team="c", minute=3),
        hurt(("large",), 500, minute=1),
    ]
    found = counted(incident, rows, 2 * MINUTE_US + 7)
    assert (found.requests, found.refused, found.teams, found.keys) == (138, 130, 2, 2)
    assert [(each.team_id, each.requests, each.refused) for each in found.hurt] == [("a", 100, 100), ("b", 38, 30)]
    assert hit_words(told_incident(found)) == "138 requests of 2 teams: 130 refused, 8 delayed"
    nobody = counted(incident, [], 0)
    assert (nobody.requests, hit_words(told_incident(nobody))) == (0, "nobody so far")


def test_one_outage_is_one_line() -> None:
    """What follows from something else is told with it: a pool's targets and queues, a provider's models, what the
    database's absence brings.
    """
    told = quiet()
    (ours,) = told["targets"]
    ours |= {"pool": "gpu", "provider": "vllm", "state": "down"}
    run = {"failures": 9, "since_us": 50, "first_us": 9, "teams": 1, "minute_attempts": 9, "minute_failures": 9}
    bought = {**ours, "pool": None, "provider": "openai", "state": "failing", "run": run, "why": "it answered 500"}
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
    assert (found["gpu"].severity, found["gpu"].targets) == ("bad", ("own", "small"))
    assert [line.partition(":")[0] for line in found["openai"].also] == ["large", "tiny"]
    assert (found["openai"].since_us, found["openai"].targets) == (40, ("large", "tiny"))
    assert found["openai"].text == "it answered 500: all of its 2 models that are asked fail"
    assert set(found["openai"].places) == {"provider/openai", "target/large", "target/tiny"}
    assert [line.partition(":")[0] for line in found["database"].also] == ["journal", "registry"]


@pytest.mark.parametrize(
    ("path", "value", "target", "pool"),
    [
        ("targets.0.recent", {**FIGURES, "failed": 7, "failed_share": 0.35}, "partly_failing", "partly_failing"),
        ("targets.0.recent", {**FIGURES, "failed": 13, "failed_share": 0.65}, "failing", "failing"),
        ("targets.0.recent", {**FIGURES, "turned_away": 7}, "saturated", "saturated"),
        ("targets.0.recent", {**FIGURES, "model_ttft_p95_s": 9.0, "sure_ttft_p95_s": 8.0}, "slow", "slow"),
        ("targets.0.is_priced", False, "unpriced", "ok"),
        ("pools.data.0.kv_usage", 0.99, "saturated", "saturated"),
        ("pools.data.0.desired", 3, "degraded", "degraded"),
        ("pools.data.0.state", "degraded", "degraded", "degraded"),
        ("queues.0.waiting", 4, "saturated", "ok"),
        ("targets.0.state", "down", "down", "ok"),
    ],
)
def test_nothing_is_well_beside_an_open_incident(path: str, value: Any, target: str, pool: str) -> None:
    """A target's state is the worst of its own, its pool's and its queue's; a pool's of its own and of how its targets do."""
    told = quiet()
    told["targets"][0]["pool"] = "gpu"
    told["queues"][0]["targets"] = ["small"]
    at(told, path, value)
    found = incidents(told)
    assert found
    assert (told["targets"][0]["state"], told["pools"]["data"][0]["state"]) == (target, pool)


def test_what_is_over_is_not_well_until_its_incident_is_closed() -> None:
    """Nor what another host alone sees."""
    (kept,) = changes(incidents(with_state("down")), [], "here", 1_000)
    for boot_id, now_us, state in (
        ("here", 2_000, "recovering"),
        ("there", 2_000, "down"),
        ("there", 10**9, "recovering"),
    ):
        told = quiet()
        judge(told["targets"], told["pools"]["data"], (), 15.0, lasting([kept.kept], boot_id, now_us))
        assert told["targets"][0]["state"] == state
        assert told["targets"][0]["since_us"] == 1_000
        assert found_in(told) == []


def with_state(state: str) -> dict[str, Any]:
    told = quiet()
    at(told, "targets.0.state", state)
    return told


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


@pytest.mark.parametrize(("ready", "told"), [(8, None), (5, None), (4, "1 of 2 desired replicas are ready")])
def test_ranks_of_a_pool_are_ordered_by_the_process(ready: int, told: str | None) -> None:
    """Two processes of four ranks are what is wanted, however many replicas those are."""
    found = quiet()
    found["pools"]["data"][0] |= {"ranks": 4, "counts": {"ready": ready}, "replicas": list(range(8))}
    assert [each.text for each in incidents(found) if "desired" in each.text] == ([] if told is None else [told])
