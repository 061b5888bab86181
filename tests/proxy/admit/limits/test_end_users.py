"""Limits of end users: whose they are, where they come from, and what they cost those who have none."""

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.caller import Caller
from accounts.store import AccountStore
from proxy.admit.limits.book import MAX_CACHED, LimitBook
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.limiter import BucketLimiter
from proxy.admit.limits.limits_config import LimitsSection
from proxy.admit.limits.refusals import RateLimited
from proxy.admit.limits.rules import BadLimit, Place, Rule, check_place, with_booked_user
from proxy.admit.limits.store import LimitStore
from proxy.shared.redis.redis_config import RedisSection
from proxy.shared.redis.redis_link import RedisLink
from tests.redis_server import RedisServer

CALLER = Caller(key_id="key_1", key_name="ci", team_id="team_a", organisation_id="acme")
OTHER = Caller(key_id="key_2", key_name="ci", team_id="team_b", organisation_id="acme")
EACH = LimitsSection.model_validate({"end_user": {"requests_per_minute": 60, "request_burst": 2, "concurrency": 9}})


def book(section: LimitsSection = EACH, *rules: tuple[str, Limits]) -> LimitBook:
    made = LimitBook(section, ["gpt-4o"])
    made.replace(Rule(place=Place("end_user", scope_id), limits=limits) for scope_id, limits in rules)
    return made


def rates(made: LimitBook, end_user: str, caller: Caller = CALLER) -> dict[str, int]:
    found = made.limits_of(caller, "gpt-4o", end_user)
    return {each.kind: each.rate or each.burst for each in found if each.scope == "end_user"}


def test_an_own_limit_goes_before_the_teams_before_the_configurations() -> None:
    """Value by value; 0 lifts one, and another team's end user of the same name has other buckets."""
    made = book(
        EACH,
        ("team_a/*", Limits(requests_per_minute=30)),
        ("team_a/ada", Limits(requests_per_minute=0, tokens_per_minute=500)),
    )
    assert rates(made, "ada") == {"tokens": 500, "concurrency": 9}
    assert rates(made, "bob") == {"requests": 30, "concurrency": 9}
    assert rates(made, "bob", OTHER) == {"requests": 60, "concurrency": 9}
    assert rates(made, "") == {}
    keys = {each.key for caller in (CALLER, OTHER) for each in made.limits_of(caller, "gpt-4o", "bob")}
    assert len(keys) == 4


def test_end_users_without_a_limit_make_no_entry() -> None:
    """Where nobody limits them, a hundred thousand names are one entry; where somebody does, the cache stays bounded."""
    plain = book(LimitsSection.model_validate({"team": {"requests_per_minute": 5}}))
    first = plain.limits_of(CALLER, "gpt-4o", "ada")
    assert all(plain.limits_of(CALLER, "gpt-4o", f"user-{each}") is first for each in range(1_000))
    bounded = book()
    for each in range(MAX_CACHED + 10):
        bounded.limits_of(CALLER, "gpt-4o", f"user-{each}")
    assert len(bounded._cache) <= MAX_CACHED


async def test_a_refusal_names_the_end_user() -> None:
    """429, and it says whose limit it is; others go on."""
    limiter = BucketLimiter(book().limits_of, lambda: 1, clock=lambda: 0.0)
    for _ in range(2):
        await limiter.admit(CALLER, "gpt-4o", 1, end_user="ada")
    with pytest.raises(RateLimited, match="requests per minute of end user `ada` of team `team_a`: Limit 60, Burst 2"):
        await limiter.admit(CALLER, "gpt-4o", 1, end_user="ada")
    await limiter.admit(CALLER, "gpt-4o", 1, end_user="bob")
    await limiter.admit(CALLER, "gpt-4o", 1)


async def test_two_processes_share_one_end_users_bucket(empty_redis: RedisServer) -> None:
    """Redis counts them together, in one round trip with the other limits, and keeps nothing of those who never call."""
    limiters = []
    links = [RedisLink(empty_redis.url, RedisSection(), f"boot{each}") for each in range(2)]
    made = book(
        LimitsSection.model_validate({"team": {"requests_per_minute": 600}, "end_user": {"requests_per_minute": 2}})
    )
    try:
        for link in links:
            limiters.append(BucketLimiter(made.limits_of, lambda: 2, link=link, rejoin_s=0.0))
            await link.start()
        for limiter in limiters:
            for _ in range(200):
                if limiter.mode == "shared":
                    break
                await asyncio.sleep(0.02)
        await limiters[0].admit(CALLER, "gpt-4o", 1, end_user="ada")
        await limiters[1].admit(CALLER, "gpt-4o", 1, end_user="ada")
        with pytest.raises(RateLimited, match="end user `ada`"):
            await limiters[0].admit(CALLER, "gpt-4o", 1, end_user="ada")
        await limiters[1].admit(CALLER, "gpt-4o", 1, end_user="bob")
    finally:
        for limiter, link in zip(limiters, links, strict=False):
            limiter.close()
            await link.aclose()


@pytest.mark.parametrize(
    "place",
    [
        Place("end_user", "ada"),
        Place("end_user", "*"),
        Place("end_user", "team_a/"),
        Place("end_user", "team_a/a b"),
        Place("end_user", "team_a/ada", "gpt-4o"),
    ],
)
def test_a_place_that_nobody_is_at_is_refused(place: Place) -> None:
    """The message has the right form."""
    with pytest.raises(BadLimit, match="end user"):
        check_place(place)


async def test_rules_of_end_users_are_kept_with_their_team(engine: AsyncEngine) -> None:
    """They are listed with it and with its organisation, and an unknown team has none."""
    accounts, store = AccountStore(engine), LimitStore(engine)
    await accounts.create_team("team_a")
    await accounts.create_team("team_a2")
    place = with_booked_user(Place("end_user", "team_a/ada@example.com"))
    assert place.scope_id.startswith("team_a/digest-")
    for scope_id in (place.scope_id, "team_a/*", "team_a2/bob"):
        await store.put(Rule(place=Place("end_user", scope_id), limits=Limits(concurrency=1)))
    assert {each.place.scope_id for each in await store.of_team("default", "team_a")} == {place.scope_id, "team_a/*"}
    assert await store.of_team("other", "team_a") == []
    assert len(await store.of_organisation("default")) == 3
    assert await store.of_organisation("other") == []
