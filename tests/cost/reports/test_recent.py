"""The latest requests, on SQLite and on PostgreSQL."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.entries import Entry
from cost.reports.recent import ORDERS, OUTCOMES, Order, RecentQuery, RecentReader, RecentRequest, matches
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from tests.cost.entries import reserve
from tests.cost.reports.two_organisations import DAY, OTHERS, TEAM_A, WHOLE, booked, idle, keep

pytestmark = pytest.mark.story


def asked(scope: ReadScope = TEAM_A, **fields: Any) -> RecentQuery:
    return RecentQuery(scope=scope, **fields)


def fell_back(request_id: str, at_us: int, **changes: Any) -> list[Entry]:
    """A request whose first attempt failed, for nothing, and whose second was answered."""
    failed = booked(
        request_id,
        entry="void",
        at_us=at_us,
        served=False,
        status=502,
        cost_nanousd=0,
        baseline_nanousd=None,
        flags=("upstream_error",),
        **changes,
    )
    again = booked(request_id, attempt=2, at_us=at_us + 500, target_id="large", reason="fallback", **changes)
    return [reserve(request_id, organisation_id="acme", team_id="team_a", at_us=at_us - 9), failed, again]


def traffic(count: int, seed: int = 3) -> list[Entry]:
    """Requests of team A with one to three attempts each, some of them at the same moment."""
    draw = random.Random(seed)
    entries: list[Entry] = []
    for number in range(count):
        at_us = DAY + draw.randrange(count * 4)
        for attempt in range(1, draw.choice((2, 2, 2, 3, 4))):
            at_us += draw.randrange(40)
            entries.append(
                booked(
                    f"req_{number:04}",
                    attempt=attempt,
                    entry=draw.choice(("settle", "settle", "void", "expire", "cache")),
                    at_us=at_us,
                    status=draw.choice((200, 200, 200, 502, 499, 0)),
                    served=draw.random() < 0.6,
                    reason=draw.choice(("cheapest-capable", "fallback", "escalated")),
                    target_id=draw.choice(("small", "large")),
                    key_id=draw.choice(("key_a", "key_b")),
                    tag=draw.choice(("", "red")),
                    tier=draw.choice(("interactive", "batch")),
                    usage_source=draw.choice(("upstream", "estimated")),
                    cost_nanousd=draw.choice((None, 7)),
                )
            )
    return entries


def beside(entry: Entry, entries: Sequence[Entry]) -> list[Entry]:
    """The attempts of the entry's request."""
    return [each for each in entries if each.request_id == entry.request_id]


async def every_page(reader: RecentReader, query: RecentQuery) -> list[RecentRequest]:
    """All requests, page after page."""
    found: list[RecentRequest] = []
    while True:
        page = await reader.page(query)
        found += page.requests
        if page.next_place is None:
            return found
        query = msgspec.structs.replace(query, before=page.next_place)


async def test_a_request_is_told_with_all_of_its_attempts(engine: AsyncEngine) -> None:
    """In their order; it costs what all of them cost, and saves against its answer's baseline."""
    await keep(engine, [*fell_back("req_1", DAY + 100), booked("req_0", at_us=DAY)])
    newest, older = (await RecentReader(engine).page(asked())).requests
    assert [(each.attempt, each.entry, each.target_id) for each in newest.attempts] == [
        (1, "void", "small"),
        (2, "settle", "large"),
    ]
    assert (newest.status, newest.told.target_id, newest.at_us) == (200, "large", DAY + 600)
    assert (newest.cost_nanousd, newest.baseline_nanousd, newest.saving_nanousd) == (1_000_001, 4_000_000, 2_999_999)
    assert older.request_id == "req_0"


async def test_attempts_are_made_one_after_the_other(engine: AsyncEngine) -> None:
    """So the caller waited for the failed one too; of what was not streamed or not given there is no first token."""
    await keep(
        engine, [*fell_back("r", DAY + 100), booked("whole", at_us=DAY, stream=False), booked("no", served=False)]
    )
    found = {each.request_id: each for each in (await RecentReader(engine).page(asked())).requests}
    assert (found["r"].took_us, found["r"].first_token_us, found["r"].was_held) == (1_800_000, 1_020_000, False)
    assert (found["whole"].took_us, found["whole"].first_token_us) == (900_000, None)
    assert found["no"].first_token_us is None


async def test_what_a_caller_waited_for_is_counted_from_the_arrival(engine: AsyncEngine) -> None:
    """With the queue before, the retry, and the time for which the answer was held back: not the attempt's own first token."""
    failed = booked(
        "r", served=False, status=502, at_us=DAY + 50, began_us=2_000_000, queued_us=1_900_000, duration_us=500_000
    )
    answered = booked(
        "r", attempt=2, at_us=DAY + 100, began_us=2_700_000, duration_us=900_000, ttft_us=120_000, given_us=3_500_000
    )
    broken = booked("b", served=False, status=502, began_us=0, given_us=40_000)
    whole = booked("w", stream=False, began_us=0, given_us=40_000)
    await keep(engine, [failed, answered, broken, whole])
    found = {each.request_id: each for each in (await RecentReader(engine).page(asked())).requests}
    assert (found["r"].first_token_us, found["r"].took_us) == (3_500_000, 3_600_000)
    assert (found["b"].first_token_us, found["w"].first_token_us) == (40_000, None)


async def test_a_retry_at_the_same_model_is_no_fallback(engine: AsyncEngine) -> None:
    """Each is found by its own filter; what was asked for another reason is neither."""
    failed: dict[str, Any] = {"served": False, "status": 502}
    await keep(
        engine,
        [
            *(booked("again", **failed), booked("again", attempt=2, at_us=DAY + 1)),
            *(booked("other", **failed), booked("other", attempt=2, target_id="large", at_us=DAY + 1)),
            *(booked("rest", **failed), booked("rest", attempt=2, flags=("continued",), at_us=DAY + 1)),
            *(
                booked("weak", **failed),
                booked("weak", attempt=2, target_id="large", reason="escalated", at_us=DAY + 1),
            ),
        ],
    )
    for outcome, wanted in (("retried", "again"), ("fell-back", "other")):
        (found,) = (await RecentReader(engine).page(asked(outcome=outcome))).requests
        assert found.request_id == wanted
        assert (found.was_retried, found.fell_back) == (wanted == "again", wanted == "other")


async def test_what_was_given_again_is_a_request_by_itself(engine: AsyncEngine) -> None:
    """It cost nothing, and what it saved is in no comparison with a baseline."""
    again: dict[str, Any] = {"entry": "cache", "served": False, "reason": "cache", "baseline_nanousd": None}
    await keep(
        engine, [booked("r", at_us=DAY), booked("again", at_us=DAY + 1, cost_nanousd=0, cache_saved_nanousd=7, **again)]
    )
    both = (await RecentReader(engine).page(asked())).requests
    assert [(each.request_id, each.was_given_again) for each in both] == [("again", True), ("r", False)]
    (found,) = (await RecentReader(engine).page(asked(outcome="given-again"))).requests
    assert (found.request_id, found.cost_nanousd, found.saving_nanousd) == ("again", 0, None)


async def test_what_has_no_price_has_no_cost_and_no_saving(engine: AsyncEngine) -> None:
    """One attempt without a price makes the request's cost unknown, not smaller."""
    failed, answered = booked("r", served=False, status=502, cost_nanousd=None), booked("r", attempt=2)
    await keep(engine, [failed, answered])
    (found,) = (await RecentReader(engine).page(asked())).requests
    assert (found.cost_nanousd, found.saving_nanousd, found.baseline_nanousd) == (None, None, 4_000_000)


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("rows", [1, 7, 200])
async def test_every_matching_request_is_listed_once(engine: AsyncEngine, outcome: str, rows: int) -> None:
    """Whatever is looked for and however long a page is, and the database's filter is the one that `matches` tells."""
    entries = traffic(60)
    await keep(engine, entries)
    query = asked(rows=rows, outcome=outcome, key="key_a" if rows == 7 else "")
    found = await every_page(RecentReader(engine), query)
    ids = [each.request_id for each in found]
    assert sorted(ids) == sorted({each.request_id for each in entries if matches(each, query, beside(each, entries))})


@pytest.mark.parametrize(
    "filters",
    [
        {"status": "5xx"},
        {"status": "499"},
        {"slower_us": 500_000},
        {"dearer_nanousd": 7},
        {"since_us": DAY + 60, "until_us": DAY + 180},
        {"since_us": DAY + 60, "status": "200", "slower_us": 400_000, "outcome": "answered"},
    ],
)
async def test_bounds_narrow_in_the_database_as_in_python(engine: AsyncEngine, filters: dict[str, Any]) -> None:
    """Every matching request once, on whatever page, and none beside them."""
    draw = random.Random(5)
    entries = [msgspec.structs.replace(each, duration_us=draw.choice((None, 100_000, 900_000))) for each in traffic(60)]
    await keep(engine, entries)
    query = asked(rows=7, **filters)
    found = [each.request_id for each in await every_page(RecentReader(engine), query)]
    wanted = {each.request_id for each in entries if matches(each, query, beside(each, entries))}
    assert wanted
    assert len(wanted) < 60
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("order", [each for each in ORDERS if each])
async def test_other_orders_list_every_request_once(engine: AsyncEngine, order: Order) -> None:
    """By the sum over a request's attempts; what is unknown comes last."""
    await keep(engine, traffic(60))
    reader, found, page = RecentReader(engine), list[RecentRequest](), 1
    while True:
        told = await reader.page(asked(rows=7, order=order, page=page))
        found += told.requests
        if not told.has_more:
            break
        page += 1
    assert len({each.request_id for each in found}) == len(found) == 60

    def amount(each: RecentRequest) -> int | None:
        tokens = sum(attempt.input_tokens + attempt.output_tokens for attempt in each.attempts)
        return {"cost": each.cost_nanousd, "duration": each.took_us, "tokens": tokens}[order.removeprefix("-")]

    amounts = [amount(each) for each in found]
    known = [each for each in amounts if each is not None]
    assert amounts[: len(known)] == sorted(known, reverse=order.startswith("-"))


async def test_another_order_is_of_the_newest_and_says_how_far_it_looked(engine: AsyncEngine) -> None:
    """The dearest of ten million would be a scan of all of them."""
    await keep(engine, [booked(f"r{number:02}", at_us=DAY + number, cost_nanousd=100 - number) for number in range(40)])
    page = await RecentReader(engine, searched=10).page(asked(order="-cost"))
    assert ([each.request_id for each in page.requests][:2], page.reached_us) == (["r30", "r31"], DAY + 30)
    whole = await RecentReader(engine).page(asked(order="-cost", since_us=DAY, until_us=DAY + 5))
    assert ([each.request_id for each in whole.requests][:1], whole.reached_us) == (["r00"], None)
    nothing = await RecentReader(engine).page(asked(order="cost", tag="nobody's"))
    assert (nothing.requests, nothing.has_more) == ((), False)


async def test_newest_stands_first(engine: AsyncEngine) -> None:
    """By the end of the last attempt, over all pages."""
    await keep(engine, [entry for number in range(30) for entry in fell_back(f"req_{number}", DAY + 10_000 * number)])
    found = await every_page(RecentReader(engine), asked(rows=4))
    assert [each.request_id for each in found] == [f"req_{number}" for number in reversed(range(30))]


@pytest.mark.parametrize("filters", [{"target": "large"}, {"key": "key_b"}, {"tag": "red"}, {"tier": "batch"}])
async def test_filters_narrow(engine: AsyncEngine, filters: dict[str, Any]) -> None:
    """Every request that is shown has an attempt of what was asked for."""
    await keep(engine, traffic(60))
    query = asked(**filters)
    found = await every_page(RecentReader(engine), query)
    assert found
    assert all(any(matches(each, query, request.attempts) for each in request.attempts) for request in found)


async def test_a_search_stops_at_its_bound_and_goes_on_from_there(engine: AsyncEngine) -> None:
    """A rare request does not make the database read everything at once; the page says how far it looked."""
    rare = booked("rare", at_us=DAY, tag="rare")
    await keep(engine, [rare, *(booked(f"req_{number:03}", at_us=DAY + 10 + number) for number in range(100))])
    reader = RecentReader(engine, searched=30)
    page = await reader.page(asked(tag="rare"))
    assert (page.requests, page.reached_us, page.next_place) == ((), DAY + 80, (DAY + 80, "req_070"))
    assert [each.request_id for each in await every_page(reader, asked(tag="rare"))] == ["rare"]


async def test_nobody_reads_what_is_not_theirs(engine: AsyncEngine) -> None:
    """Neither another team's nor another organisation's, by list or by id; nor what no caller asked."""
    await keep(
        engine,
        [
            booked("mine"),
            booked("colleague", team_id="team_b"),
            booked("rival", organisation_id="rival"),
            booked("mine-shadow", origin="shadow"),
            idle("idle/h100/2026-04-05/1/1", team_id="team_a"),
        ],
    )
    reader = RecentReader(engine)
    assert [each.request_id for each in (await reader.page(asked())).requests] == ["mine"]
    assert {each.request_id for each in (await reader.page(asked(WHOLE))).requests} == {"mine", "colleague"}
    assert await reader.one(TEAM_A, "mine") is not None
    for hidden in ("colleague", "rival", "mine-shadow", "nobody's"):
        assert await reader.one(TEAM_A, hidden) is None
    assert await reader.one(OTHERS, "mine") is None


async def test_an_attempt_that_was_given_up_and_came_back_is_told_as_it_ended(engine: AsyncEngine) -> None:
    """Its expiry is no attempt of its own."""
    given_up = booked("r", entry="expire", served=False, status=0, flags=("lost_host",))
    await keep(engine, [given_up])
    assert (await RecentReader(engine).page(asked())).requests[0].last.entry == "expire"
    await keep(engine, [booked("r", at_us=DAY + 99)])
    (found,) = (await RecentReader(engine).page(asked())).requests
    assert [each.entry for each in found.attempts] == ["settle"]


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": 0},
        {"rows": 201},
        {"outcome": "lucky"},
        {"target": "\x00"},
        {"key": "k" * 201},
        {"before": (-1, "a")},
        {"before": (2**63, "a")},
        {"before": (1, "\x00")},
        {"order": "luck"},
        {"page": 0},
        {"status": "6xx"},
        {"slower_us": -1},
        {"dearer_nanousd": 2**62},
    ],
)
def test_what_cannot_be_asked_is_refused(fields: dict[str, Any]) -> None:
    """Before the database sees it."""
    with pytest.raises(BadQuery):
        asked(**fields)
