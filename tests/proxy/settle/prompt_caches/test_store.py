"""The table of what was lost: processes add to the same rows, teams are apart, and nothing stays for ever."""

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.reports.scope import ReadScope
from cost.times import DAY_US
from proxy.settle.prompt_caches.store import CacheLossStore
from proxy.settle.prompt_caches.watch import CacheDelta, PromptCacheWatch
from selfhosted.prefixes.store import PrefixWriter

DAY = 20_000 * DAY_US
MINE = ReadScope(organisation_id="acme", team_id="team")


def delta(cause: str = "time", **changes: Any) -> CacheDelta:
    whose = {"organisation_id": "acme", "team_id": "team", "target_id": "m", "day_us": DAY}
    amounts = {"requests": 1, "tokens": 100, "nanousd": 7, "unpriced": 1}
    return CacheDelta(**{**whose, "cause": cause, **amounts, **changes})


async def test_deltas_of_all_processes_are_added(engine: AsyncEngine) -> None:
    one, other = CacheLossStore(engine), CacheLossStore(engine)
    await one.add([delta(), delta("id", nanousd=900)])
    await other.add([delta(), delta(day_us=DAY + DAY_US), delta(target_id="n")])
    found = await one.read(MINE, DAY, DAY + 2 * DAY_US)
    assert [
        (each.cause, each.target_id, each.requests, each.tokens, each.nanousd, each.unpriced) for each in found
    ] == [
        ("id", "m", 1, 100, 900, 1),
        ("time", "m", 3, 300, 21, 3),
        ("time", "n", 1, 100, 7, 1),
    ]
    assert [each.requests for each in await one.read(MINE, DAY + DAY_US, DAY + 2 * DAY_US)] == [1]


async def test_names_that_are_cut_alike_are_added(engine: AsyncEngine) -> None:
    store = CacheLossStore(engine)
    await store.add([delta(target_id="m" * 130 + "1"), delta(target_id="m" * 130 + "2")])
    (found,) = await store.read(MINE, DAY, DAY + DAY_US)
    assert found.requests == 2


async def test_nobody_reads_what_is_anothers(engine: AsyncEngine) -> None:
    store = CacheLossStore(engine)
    await store.add([delta(), delta(team_id="other")])
    assert await store.read(ReadScope(organisation_id="else", team_id="team"), DAY, DAY + DAY_US) == []
    assert len(await store.read(MINE, DAY, DAY + DAY_US)) == 1


async def test_old_days_go(engine: AsyncEngine) -> None:
    store = CacheLossStore(engine)
    await store.add([delta(), delta(day_us=DAY + DAY_US)])
    await store.prune(DAY + DAY_US)
    assert [each.requests for each in await store.read(MINE, 0, DAY + 9 * DAY_US)] == [1]


async def test_counts_that_were_surely_not_written_come_with_the_next(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """And what is logged says which counts they are."""

    class Away:
        async def add(self, deltas: object, committing: object = None) -> None:
            raise OSError

    watch, store = PromptCacheWatch(key=b"k"), CacheLossStore(engine)
    watch.put_back([delta()])
    await PrefixWriter(watch, Away(), what="what prompt caches gave").flush()
    assert "what prompt caches gave is not written" in caplog.text
    await PrefixWriter(watch, store).flush()
    await PrefixWriter(watch, store).aclose()
    (found,) = await store.read(MINE, DAY, DAY + DAY_US)
    assert found.requests == 1
