"""The last minutes' figures: by hand, bounded, and compared with a day ago."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from api.live.recent import ENOUGH_OF_YESTERDAY, WINDOW_US, RecentReader, quantile, usual_by_now
from cost.ledger.store import LedgerStore
from cost.times import DAY_US, HOUR_US
from tests.api.live.ledger import BASE_US, ended

NOW_US = BASE_US - BASE_US % DAY_US + 100 * DAY_US + HOUR_US // 2


def reader(engine: AsyncEngine, clock: list[float]) -> RecentReader:
    return RecentReader(engine, now_us=lambda: NOW_US, clock=lambda: clock[0])


async def test_what_failed_is_told_apart_from_what_had_no_room(engine: AsyncEngine) -> None:
    """Errors, lost hosts and refusals for want of room are counted each by itself; a caller that hung up is neither."""
    at_us = NOW_US - 1_000
    await LedgerStore(engine).insert(
        [
            ended(1, at_us),
            ended(2, at_us, status=502, ttft_us=None, duration_us=1_000),
            ended(3, at_us, status=429, entry="void", ttft_us=None),
            ended(4, at_us, status=499),
            ended(5, at_us, entry="expire", status=0, ttft_us=None),
            ended(6, at_us, target_id="large", deployment_id="large/main", tier="batch", ttft_us=900_000),
            ended(7, NOW_US - WINDOW_US - 1),
        ]
    )
    found = await reader(engine, [0.0]).recent()
    assert (found.all.attempts, found.all.failed, found.all.turned_away) == (6, 2, 1)
    assert found.by_target["small"].failed_share == pytest.approx(0.4)
    assert found.by_target["small"].ttft_p50_s == pytest.approx(0.2)
    assert found.by_target["small"].tokens_per_s == pytest.approx(49.0)
    assert found.by_deployment["large/main"].attempts == 1
    assert found.by_tier["batch"].ttft_p95_s == pytest.approx(0.9)
    assert found.whole
    assert found.since_us == NOW_US - WINDOW_US


async def test_a_wildcard_has_the_figures_of_all_its_names(engine: AsyncEngine) -> None:
    """What fails there is shown where its circuit is, and at its own name."""
    names = [f"many/{number % 2}" for number in range(4)]
    await LedgerStore(engine).insert(
        [
            ended(number, NOW_US - 1_000, target_id=name, deployment_id="many/*/main", status=502)
            for number, name in enumerate(names)
        ]
    )
    found = await reader(engine, [0.0]).recent()
    assert {name: each.failed for name, each in found.by_target.items()} == {"many/*": 4, "many/0": 2, "many/1": 2}
    assert found.runs["many/*"].is_failing
    assert found.all.attempts == 4


async def test_the_first_token_is_the_callers_and_the_models_own_stands_beside_it(engine: AsyncEngine) -> None:
    """A queue, a retry and a hold are in the caller's; whether a model is slow is told by its own."""
    at_us = NOW_US - 1_000
    await LedgerStore(engine).insert([ended(1, at_us, ttft_us=300_000, given_us=3_860_000)])
    found = (await reader(engine, [0.0]).recent()).by_target["small"]
    assert found.ttft_p50_s == pytest.approx(3.86)
    assert found.model_ttft_p50_s == pytest.approx(0.3)


async def test_only_streams_have_a_speed(engine: AsyncEngine) -> None:
    """A whole answer comes with its first token, and one that broke off is no measure: neither makes the median."""
    at_us = NOW_US - 1_000
    whole = [ended(each, at_us, stream=False, ttft_us=1_199_400, output_tokens=50) for each in range(1, 40)]
    broken = ended(50, at_us, served=False, status=502, ttft_us=1_199_999)
    await LedgerStore(engine).insert([*whole, broken, ended(60, at_us)])
    assert (await reader(engine, [0.0]).recent()).all.tokens_per_s == pytest.approx(49.0)


@pytest.mark.parametrize(
    ("statuses", "failures", "is_failing"),
    [
        ((401, 401, 401), 3, True),
        ((401, 429, 502, 200), 3, True),
        ((200, 502, 502, 502, 502, 502), 0, True),
        ((200, 502, 502, 502, 200), 0, False),
        ((200, 502, 200, 200), 0, False),
        ((502, 502), 2, False),
        ((400, 400, 400), 0, False),
        ((499, 502, 502), 0, False),
    ],
)
async def test_a_run_of_failures_of_any_kind_is_seen_at_once(
    engine: AsyncEngine, statuses: tuple[int, ...], failures: int, *, is_failing: bool
) -> None:
    """Newest first: a refused key, no room, errors; a bad request and who hung up say nothing of the target."""
    ends = [
        ended(place, NOW_US - 1_000 - place, status=status, served=status == 200, team_id=f"team_{place % 2}")
        for place, status in enumerate(statuses)
    ]
    await LedgerStore(engine).insert(ends)
    run = (await reader(engine, [0.0]).recent()).runs["small"]
    assert (run.failures, run.is_failing) == (failures, is_failing)
    assert run.minute_attempts == len(statuses)
    if failures:
        assert (run.since_us, run.teams) == (NOW_US - 1_000 - (failures - 1), min(2, failures))


async def test_nothing_is_no_zero(engine: AsyncEngine) -> None:
    """Without attempts there are no shares and no times."""
    found = (await reader(engine, [0.0]).recent()).all
    assert (found.attempts, found.failed_share, found.ttft_p50_s, found.tokens_per_s) == (0, None, None, None)


async def test_a_day_ago_is_what_is_usual(engine: AsyncEngine) -> None:
    """The median of the same minutes of yesterday, where there were enough; one look serves all for a while."""
    yesterday_us = NOW_US - DAY_US - 1_000
    await LedgerStore(engine).insert(
        [ended(number, yesterday_us, ttft_us=400_000) for number in range(ENOUGH_OF_YESTERDAY)]
        + [ended(300, yesterday_us, target_id="rare"), ended(200, NOW_US - 1), ended(201, NOW_US - 1, target_id="rare")]
    )
    clock = [0.0]
    made = reader(engine, clock)
    found = await made.recent()
    assert found.by_target["small"].usual_model_ttft_s == pytest.approx(0.4)
    assert found.by_target["rare"].usual_model_ttft_s is None
    assert await made.recent() is found
    clock[0] = 3.0
    assert await made.recent() is not found


async def test_the_hour_is_held_against_the_same_hour(engine: AsyncEngine) -> None:
    """Half of an hour is compared with half of the median of that hour on other days."""
    entries = [ended(0, NOW_US - 1, cost_nanousd=900)]
    entries += [ended(day, NOW_US - day * DAY_US, cost_nanousd=100 * day) for day in range(1, 6)]
    entries += [ended(50, NOW_US - HOUR_US, cost_nanousd=7)]
    await LedgerStore(engine).insert(entries)
    found = await reader(engine, [0.0]).spend()
    assert (found.spent_nanousd, found.usual_nanousd) == (900, 150)


def test_too_early_or_too_new_to_say() -> None:
    """The first minutes of an hour, and the first days of a gateway, are compared with nothing."""
    assert usual_by_now([100, 100, 100], 0.1) is None
    assert usual_by_now([100, 100], 0.5) is None
    assert usual_by_now([100, 300, 200], 0.5) == 100
    assert quantile([], 0.5) is None
    assert quantile([1.0, 2.0, 3.0], 0.95) == 3.0
