"""The table of refused requests: newest first, of one team, twice is once, and bounded."""

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from proxy.settle.refusals.counting import RefusedRequest
from proxy.settle.refusals.refused_requests import KEPT_US, MOST_PER_TEAM, RefusedQuery, RefusedRequestStore

NOW_US = 1_750_000_020_000_000
MINE = RefusedQuery(organisation_id="acme", team_id="team")


def refused(number: int, **changes: object) -> RefusedRequest:
    made = RefusedRequest(
        request_id=f"r{number:05}",
        at_us=NOW_US + number,
        organisation_id="acme",
        team_id="team",
        key_id="key",
        model="auto",
        reason="rate_limit_exceeded",
        status=429,
        message="Rate limit reached.",
    )
    return msgspec.structs.replace(made, **changes)


async def ids(store: RefusedRequestStore, **changes: object) -> list[str]:
    return [each.request_id for each in await store.read(msgspec.structs.replace(MINE, **changes))]


async def test_the_newest_of_a_team_that_match(engine: AsyncEngine) -> None:
    """Page by page, by time, key, model and status; another team's or organisation's are never among them."""
    store = RefusedRequestStore(engine)
    others = (refused(8, team_id="rival"), refused(9, request_id="r9", organisation_id="elsewhere"))
    mine = (refused(1), refused(2, status=402, key_id="other", end_user="ann"), refused(3, model="small"))
    for _ in range(2):
        await store.keep((*mine, *others))
    assert await ids(store) == ["r00003", "r00002", "r00001"]
    assert await ids(store, rows=1) == ["r00003"]
    assert await ids(store, before=(NOW_US + 3, "r00003")) == ["r00002", "r00001"]
    assert await ids(store, statuses=(400, 410)) == ["r00002"]
    assert await ids(store, keys=("other", "third")) == ["r00002"]
    assert await ids(store, keys=()) == []
    assert await ids(store, models=("small",)) == ["r00003"]
    assert await ids(store, end_user="ann") == ["r00002"]
    assert await ids(store, words=(("an", "an", (), ()),)) == ["r00002"]
    assert await ids(store, words=(("r0000", "", (), ()), ("small", "", (), ()))) == ["r00003"]
    assert await ids(store, since_us=NOW_US + 2, until_us=NOW_US + 3) == ["r00002"]
    assert await store.one("acme", "team", "r00001") == refused(1)
    assert await store.one("acme", "rival", "r00001") is None


async def test_a_team_keeps_its_newest_and_nothing_older_than_a_month(engine: AsyncEngine) -> None:
    """However many a flood brings."""
    store = RefusedRequestStore(engine)
    await store.keep(tuple(refused(number) for number in range(MOST_PER_TEAM + 3)))
    await store.keep((refused(1, team_id="calm"),))
    await store.forget(NOW_US)
    assert await store.one("acme", "team", "r00002") is None
    assert await store.one("acme", "team", "r00003") is not None
    assert await store.one("acme", "calm", "r00001") is not None
    await store.forget(NOW_US + KEPT_US + MOST_PER_TEAM + 10)
    assert await ids(store) == []
