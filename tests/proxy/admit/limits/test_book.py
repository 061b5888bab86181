"""Which buckets a request draws from, and how what is set becomes known."""

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.caller import Caller
from accounts.store import AccountStore
from proxy.admit.limits.book import MAX_CACHED, LimitBook, LimitWatch, bucket_key, buckets
from proxy.admit.limits.limit import Limit, Limits
from proxy.admit.limits.limit_tables import MODEL_CHARS
from proxy.admit.limits.limits_config import LimitsSection
from proxy.admit.limits.rules import ANY_ID, Place, Rule
from proxy.admit.limits.store import LimitStore, TableVersion
from tests.cost.entries import until

CALLER = Caller(key_id="key_1", key_name="ci", team_id="team_a", organisation_id="acme")
EVERYWHERE = LimitsSection.model_validate(
    {
        "organisation": {"requests_per_minute": 1_000, "tokens_per_minute": 9_000, "token_burst": 500},
        "team": {"requests_per_minute": 100},
        "key": {"concurrency": 4},
        "model": {"requests_per_minute": 50, "request_burst": 5},
        "models": {"gpt-4o": {"requests_per_minute": 0, "concurrency": 2}, "small": {"requests_per_minute": 70}},
    }
)


def book(section: LimitsSection = EVERYWHERE, *rules: Rule) -> LimitBook:
    made = LimitBook(section, ["gpt-4o", "small"])
    made.replace(rules)
    return made


def rule(place: Place, **limits: int | None) -> Rule:
    return Rule(place=place, limits=Limits(**limits))


def figures(limits: tuple[Limit, ...]) -> list[tuple[str, int, int]]:
    return [(limit.key, limit.rate, limit.burst) for limit in limits]


OWN = [
    ("organisation/acme//requests", 1_000, 1_000),
    ("organisation/acme//tokens", 9_000, 500),
    ("team/team_a//requests", 100, 100),
    ("key/key_1//concurrency", 0, 4),
]


def test_the_configured_limits() -> None:
    """Each organisation, team and key over all models; each model for all callers, a named one with its own values."""
    made = book()
    assert figures(made.limits_of(CALLER, "auto")) == [*OWN, ("model/*/auto/requests", 50, 5)]
    assert figures(made.limits_of(CALLER, "gpt-4o")) == [*OWN, ("model/*/gpt-4o/concurrency", 0, 2)]
    assert figures(made.limits_of(CALLER, "small")) == [*OWN, ("model/*/small/requests", 70, 5)]
    scopes = [(limit.scope, limit.kind) for limit in made.limits_of(CALLER, "auto")]
    assert scopes[0] == ("organisation", "requests")
    assert scopes[-2:] == [("key", "concurrency"), ("model", "requests")]


def test_without_limits_there_are_no_buckets() -> None:
    """Nothing is counted where nothing is limited."""
    assert book(LimitsSection()).limits_of(CALLER, "gpt-4o") == ()


def test_rules_lie_over_the_configuration() -> None:
    """Value by value: None is the configuration's, 0 is no limit, and only the one that is named has it."""
    made = book(
        EVERYWHERE,
        rule(Place("organisation", "acme"), requests_per_minute=0, tokens_per_minute=7_000),
        rule(Place("team", "team_a"), request_burst=10, concurrency=3),
        rule(Place("key", "key_1"), concurrency=0),
        rule(Place("model", ANY_ID, "gpt-4o"), tokens_per_minute=5, concurrency=0),
        rule(Place("team", "team_b"), concurrency=1),
    )
    assert figures(made.limits_of(CALLER, "gpt-4o")) == [
        ("organisation/acme//tokens", 7_000, 500),
        ("team/team_a//requests", 100, 10),
        ("team/team_a//concurrency", 0, 3),
        ("model/*/gpt-4o/tokens", 5, 5),
    ]


def test_one_on_one_model_has_a_bucket_of_its_own() -> None:
    """Beside the others, and for that model alone; 0 limits nothing there."""
    made = book(
        EVERYWHERE,
        rule(Place("team", "team_a", "small"), tokens_per_minute=10, concurrency=1),
        rule(Place("key", "key_1", "small"), requests_per_minute=0),
    )
    assert figures(made.limits_of(CALLER, "small"))[-2:] == [
        ("team/team_a/small/tokens", 10, 10),
        ("team/team_a/small/concurrency", 0, 1),
    ]
    assert all("team_a/small" not in limit.key for limit in made.limits_of(CALLER, "auto"))


def test_a_model_that_there_is_not_makes_no_bucket() -> None:
    """Callers choose the text; a thousand names take neither memory nor buckets."""
    made = book(EVERYWHERE)
    first = made.limits_of(CALLER, "ghost")
    assert figures(first) == OWN
    assert all(made.limits_of(CALLER, f"ghost-{number}") is first for number in range(1_000))
    assert len(made._cache) == 1
    assert (made.knows("ghost"), made.knows("auto"), made.knows("small")) == (False, True, True)


def test_a_rule_limits_what_a_wildcard_stands_for() -> None:
    """The configuration has no entry of that name; it is known as long as a rule names it."""
    made = book(LimitsSection(), rule(Place("model", ANY_ID, "openai/gpt-4o"), concurrency=1))
    assert figures(made.limits_of(CALLER, "openai/gpt-4o")) == [("model/*/openai%2Fgpt-4o/concurrency", 0, 1)]
    assert made.limits_of(CALLER, "openai/gpt-5") == ()
    made.replace([])
    assert made.limits_of(CALLER, "openai/gpt-4o") == ()


def test_what_is_worked_out_is_kept_and_bounded() -> None:
    """The same answer again, shared where it is shared, and no more of it than the bound."""
    made = book()
    assert made.limits_of(CALLER, "auto") is made.limits_of(CALLER, "auto")
    other = Caller(key_id="key_2", key_name="ci", team_id="team_a", organisation_id="acme")
    assert made.limits_of(other, "auto")[0] is made.limits_of(CALLER, "auto")[0]
    for number in range(MAX_CACHED + 10):
        caller = Caller(key_id=f"key_{number}", key_name="", team_id="team_a", organisation_id="acme")
        assert made.limits_of(caller, "auto")[3].key == f"key/key_{number}//concurrency"
    assert len(made._cache) <= MAX_CACHED
    assert len(made._by_place) <= MAX_CACHED


def test_changes_hold_at_once() -> None:
    """Rules and configuration alike; the same rules again leave everything as it is."""
    made = book()
    before = made.limits_of(CALLER, "auto")
    made.replace([])
    assert made.limits_of(CALLER, "auto") is before
    made.replace([rule(Place("team", "team_a"), requests_per_minute=7)])
    assert ("team/team_a//requests", 7, 7) in figures(made.limits_of(CALLER, "auto"))
    made.adopt(LimitsSection(), ["new"])
    assert figures(made.limits_of(CALLER, "auto")) == [("team/team_a//requests", 7, 7)]
    assert (made.knows("new"), made.knows("small")) == (True, False)
    made.replace([])
    assert made.limits_of(CALLER, "auto") == ()


_ids = st.text(min_size=1, max_size=64) | st.sampled_from(["*", "a/b", "%2F", "=0", "a//tokens"])
_places = st.builds(
    Place, st.sampled_from(["organisation", "team", "key"]), _ids, st.text(max_size=MODEL_CHARS) | _ids
) | st.builds(Place, st.just("model"), st.just(ANY_ID), st.text(min_size=1, max_size=MODEL_CHARS) | _ids)


@given(_places, _places, st.sampled_from(["requests", "tokens", "concurrency"]))
def test_no_two_places_share_a_bucket(one: Place, other: Place, kind: str) -> None:
    """Whatever stands in ids and names; keys are short and plain."""
    keys = [bucket_key(place, kind) for place in (one, other)]  # type: ignore[arg-type]
    assert (keys[0] == keys[1]) == (one == other)
    assert all(key.isascii() and len(key) <= 300 and key.count("/") == 3 for key in keys)


def test_a_bucket_holds_a_minutes_worth_unless_told() -> None:
    """Bursts above and below the rate are taken as they are; one without a rate makes no bucket."""
    place = Place("key", "k")
    made = buckets(place, Limits(requests_per_minute=60, tokens_per_minute=100, token_burst=1_000))
    assert [(limit.rate, limit.burst) for limit in made] == [(60, 60), (100, 1_000)]
    assert buckets(place, Limits(request_burst=5, token_burst=5)) == ()


@pytest.fixture
async def store(engine: AsyncEngine) -> LimitStore:
    await AccountStore(engine).create_team("team_a")
    return LimitStore(engine)


def requests_of(made: LimitBook) -> list[int]:
    return [limit.rate for limit in made.limits_of(CALLER, "auto")]


async def test_what_is_set_becomes_known(store: LimitStore) -> None:
    """At the next look: set, changed and removed."""
    made = LimitBook(LimitsSection(), [])
    watch = LimitWatch(store, made)
    await watch.refresh()
    assert requests_of(made) == []
    await store.change(Place("team", "team_a"), {"requests_per_minute": 5})
    await watch.refresh()
    assert requests_of(made) == [5]
    await store.change(Place("team", "team_a"), {"requests_per_minute": 6})
    await watch.refresh()
    assert requests_of(made) == [6]
    await store.remove(Place("team", "team_a"))
    await watch.refresh()
    assert requests_of(made) == []


async def test_it_goes_on_looking(store: LimitStore) -> None:
    """As often as the configuration says, which a reload may change."""
    made = LimitBook(LimitsSection(poll_s=0.1), [])
    following = asyncio.create_task(LimitWatch(store, made).follow())
    try:
        await store.change(Place("team", "team_a"), {"requests_per_minute": 5})
        await until(lambda: requests_of(made) == [5])
    finally:
        following.cancel()
        await asyncio.wait({following})


class Flaky(LimitStore):
    """A store whose database can be taken away."""

    gone = False

    async def mark(self) -> TableVersion:
        if self.gone:
            raise OSError("postgresql://user:secret@host is away")
        return await super().mark()


async def test_without_its_database_it_keeps_what_it_knew(
    store: LimitStore, engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, without the address, and takes up what was set meanwhile."""
    made, flaky = LimitBook(LimitsSection(), []), Flaky(engine)
    watch = LimitWatch(flaky, made)
    await store.change(Place("team", "team_a"), {"requests_per_minute": 5})
    await watch.refresh()
    flaky.gone = True
    with caplog.at_level(logging.WARNING, "weighbridge.limits"):
        await watch.refresh()
        await watch.refresh()
    assert [record.getMessage() for record in caplog.records] == [
        "limits cannot be looked up, so they stay as they are: OSError"
    ]
    await store.change(Place("team", "team_a"), {"requests_per_minute": 6})
    await watch.refresh()
    assert requests_of(made) == [5]
    flaky.gone = False
    await watch.refresh()
    assert requests_of(made) == [6]
