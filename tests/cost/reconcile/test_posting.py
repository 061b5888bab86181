"""Posting closes the gap: exactly, once, and without taking more from anybody than there was."""

import asyncio
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.entries import Entry
from cost.ledger.store import LedgerStore
from cost.meters import METER_COLUMNS
from cost.reconcile.anthropic import read_anthropic
from cost.reconcile.ledger_side import booked, is_posted, posting_alone
from cost.reconcile.matching import Matching, OurRow, Reconciliation, compare
from cost.reconcile.openai import read_openai
from cost.reconcile.posting import TooManyEntries, entries_of, posting_id, spread
from cost.reconcile.statement import PARTS, TOKEN_METERS, BadExport, Statement
from tests.cost.entries import settle
from tests.cost.reconcile.exports import (
    DAY_US,
    anthropic_bucket,
    anthropic_cost,
    anthropic_usage,
    file_of,
    openai_bucket,
    openai_cost,
    openai_usage,
    page,
)
from tests.cost.reconcile.ours import after, row
from tests.examples import examples

DAY_LENGTH_US = 86_400_000_000
LATER_US = DAY_US + 30 * DAY_LENGTH_US
MATCHING = Matching(
    upstream_models={"gpt-4o": ("gpt-4o",), "small": ("gpt-4o-mini",), "twin": ("gpt-4o-mini",)},
    keys=(("pk_1", "key_a"), ("pk_1", "key_b"), ("pk_2", "key_c")),
)
UNMAPPED = msgspec.structs.replace(MATCHING, keys=())


def posted(statement: Statement, rows: list[OurRow], matching: Matching) -> tuple[list[Entry], Reconciliation]:
    """The entries, and the comparison with the books that have them."""
    entries = entries_of(compare(statement, rows, matching), "reconciliation/x/y", LATER_US)
    return entries, compare(statement, after(rows, entries), matching)


@given(st.integers(-(10**15), 10**15), st.lists(st.integers(0, 10**12), min_size=1, max_size=8))
def test_parts_add_up_to_the_whole(amount: int, weights: list[int]) -> None:
    """Exactly, with the sign of the whole, and each within one of its share."""
    parts = spread(amount, weights)
    assert sum(parts) == amount
    total = sum(weights) or len(weights)
    for part, weight in zip(parts, weights if sum(weights) else [1] * len(weights), strict=True):
        assert part * amount >= 0
        assert abs(abs(part) * total - abs(amount) * weight) < total


def test_the_largest_remainder_gets_what_is_left() -> None:
    """7 over 1, 1 and 1 is 3, 2 and 2; what has no weight gets nothing."""
    assert spread(7, [1, 1, 1]) == [3, 2, 2]
    assert spread(-7, [1, 1, 1]) == [-3, -2, -2]
    assert spread(10, [1, 0, 2]) == [3, 0, 7]
    assert spread(3, [0, 0]) == [2, 1]


_models = st.sampled_from(["gpt-4o", "gpt-4o-2024-08-06", "gpt-4o-mini", "o9", "o9-0101"])
_counts = st.integers(0, 50)
_dollars = st.decimals(Decimal(-1), Decimal(3), places=11)
_usage = st.builds(
    lambda model, fresh, cached, written, output, key: openai_usage(
        model,
        fresh + cached + written,
        output,
        input_cached_tokens=cached,
        input_cache_write_tokens=written,
        api_key_id=key,
    ),
    st.none() | _models,
    _counts,
    _counts,
    _counts,
    _counts,
    st.none() | st.sampled_from(["pk_1", "pk_2", "pk_3"]),
)
_items = st.none() | st.sampled_from(
    ["web search", "gpt-4o", "gpt-4o, input", "gpt-4o-mini, output", "o9, cached input"]
)
_cost = st.builds(
    lambda item, amount, key: openai_cost(item, str(amount), api_key_id=key),
    _items,
    _dollars,
    st.none() | st.sampled_from(["pk_1", "pk_2"]),
)


def _within(tokens: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Parts of these sizes, cut to what their meters have."""
    left, parts = list(tokens), []
    for place, size in zip(PARTS.values(), sizes, strict=True):
        parts.append(min(size, left[place]))
        left[place] -= parts[-1]
    return tuple(parts)


_rows = st.builds(
    lambda day, names, tokens, meters, legacy, sizes: row(
        day_us=DAY_US + day * DAY_LENGTH_US,
        **names,
        tokens=tokens,
        meters=meters,
        cost_nanousd=sum(meters) + legacy,
        parts=_within(tokens, sizes),
    ),
    st.integers(0, 1),
    st.fixed_dictionaries(
        {
            "team_id": st.sampled_from(["a", "b", ""]),
            "key_id": st.sampled_from(["key_a", "key_b", "key_c", "key_d"]),
            "target_id": st.sampled_from(["gpt-4o", "small", "twin", "o9", "gone"]),
        }
    ),
    st.tuples(_counts, _counts, _counts, _counts, _counts),
    st.tuples(*[st.integers(0, 2 * 10**9)] * 6),
    st.sampled_from([0, 0, 0, 7]),
    st.tuples(*[st.integers(0, 50)] * len(PARTS)),
)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.lists(_usage, max_size=4), max_size=2),
    st.lists(st.lists(_cost, max_size=4), max_size=2),
    st.lists(_rows, max_size=8),
    st.booleans(),
)
def test_posting_always_closes_the_gap(
    usage: list[list[dict[str, Any]]], costs: list[list[dict[str, Any]]], rows: list[OurRow], mapped: bool
) -> None:
    """Whatever either side says: afterwards every line agrees to the token and the nano-dollar."""
    keyed = mapped and any(each["api_key_id"] for day in (*usage, *costs) for each in day)
    pages = [page(*(openai_bucket(*each, day=day) for day, each in enumerate(side))) for side in (usage, costs)]
    statement = read_openai([file_of(pages[0], "u"), file_of(pages[1], "c")])
    if not statement.usage_days and not statement.cost_days:
        return
    entries, again = posted(statement, rows, MATCHING if keyed else UNMAPPED)
    assert [line for line in again.lines if line.differs] == []
    for entry in entries:
        assert entry.cost_nanousd == sum(getattr(entry, name) for name in METER_COLUMNS)
        assert entry.at_us // DAY_LENGTH_US in {line.day_us // DAY_LENGTH_US for line in again.lines}
    assert len({entry.request_id for entry in entries}) == len(entries)


@given(st.lists(_rows, min_size=1, max_size=6), st.integers(0, 100), st.integers(0, 100))
def test_nobody_is_left_with_less_than_nothing(rows: list[OurRow], input_tokens: int, output_tokens: int) -> None:
    """What is too much is taken where it is; reasoning, sound and pictures stay parts of what they are within."""
    today = [msgspec.structs.replace(each, day_us=DAY_US, target_id="gpt-4o") for each in rows]
    statement = read_openai([file_of(page(openai_bucket(openai_usage("gpt-4o", input_tokens, output_tokens))))])
    entries, _ = posted(statement, today, UNMAPPED)
    left: dict[tuple[str, str], list[int]] = {}
    for each in after(today, entries):
        held = left.setdefault((each.team_id, each.key_id), [0] * (len(TOKEN_METERS) + len(PARTS)))
        for place, amount in enumerate((*each.tokens, *each.parts)):
            held[place] += amount
    for held in left.values():
        assert min(held) >= 0
        parts = list(zip(PARTS.values(), held[len(TOKEN_METERS) :], strict=True))
        for place, whole in enumerate(held[: len(TOKEN_METERS)]):
            assert sum(part for within, part in parts if within == place) <= whole


def test_what_is_missing_goes_by_cost() -> None:
    """A team that cost three times as much gets three times as much of what was missed."""
    rows = [row(team_id="a", meters=(75, 0, 0, 0, 0, 0)), row(team_id="b", meters=(25, 0, 0, 0, 0, 0))]
    pages = (
        page(openai_bucket(openai_usage("gpt-4o", 8, 4))),
        page(openai_bucket(openai_cost("gpt-4o, input", "0.000001"))),
    )
    entries, _ = posted(read_openai([file_of(list(pages))]), rows, UNMAPPED)
    assert [(each.team_id, each.input_tokens, each.output_tokens, each.cost_nanousd) for each in entries] == [
        ("a", 6, 3, 675),
        ("b", 2, 1, 225),
    ]
    assert {(each.entry, each.origin, each.boot_id, each.attempt, each.alias) for each in entries} == {
        ("adjust", "reconciliation", "books", 1, "")
    }


def test_what_nothing_of_ours_explains_is_the_organisations() -> None:
    """An unknown model and another charge are booked to no team, the charge to the meter of no token."""
    pages = page(openai_bucket(openai_usage("o9", 3, 4))), page(openai_bucket(openai_cost("web search", 2)))
    matching = msgspec.structs.replace(UNMAPPED, organisation_id="acme")
    entries, _ = posted(read_openai([file_of(list(pages))]), [], matching)
    model, charge = entries
    assert (model.organisation_id, model.team_id, model.target_id, model.input_tokens) == ("acme", "", "o9", 3)
    assert (charge.target_id, charge.request_nanousd, charge.cost_nanousd) == (
        "charge/web search",
        2 * 10**9,
        2 * 10**9,
    )


def test_anthropic_buckets_become_inclusive() -> None:
    """The input of an entry has its cache reads and writes in it, and an hour's writes are a part of all writes."""
    creation = {"ephemeral_1h_input_tokens": 3, "ephemeral_5m_input_tokens": 20}
    usage = anthropic_usage("claude", 100, 7, cache_creation=creation, cache_read_input_tokens=900)
    cost = anthropic_cost("claude", "cache_creation.ephemeral_1h_input_tokens", "12.3456789012")
    statement = read_anthropic([file_of([page(anthropic_bucket(usage)), page(anthropic_bucket(cost))])])
    ((entry,), again) = posted(statement, [], Matching(upstream_models={"c": ("claude",)}))
    assert (entry.target_id, entry.provider, entry.input_tokens, entry.cached_input_tokens) == (
        "c",
        "anthropic",
        1023,
        900,
    )
    assert (entry.cache_write_tokens, entry.cache_write_1h_tokens, entry.output_tokens) == (23, 3, 7)
    assert entry.cache_write_1h_nanousd == entry.cost_nanousd == 123_456_789
    assert not any(line.differs for line in again.lines)


def test_a_day_that_is_not_over_or_not_whole_is_not_posted() -> None:
    """Its bill does not exist yet, or the file does not have all of it."""
    statement = read_openai([file_of(page(openai_bucket(openai_usage("gpt-4o", 3, 4))))])
    found = compare(statement, [], UNMAPPED)
    assert entries_of(found, "p", DAY_US + DAY_LENGTH_US - 1) == []
    assert len(entries_of(found, "p", DAY_US + DAY_LENGTH_US)) == 1
    hour = {**openai_bucket(openai_usage("gpt-4o", 3, 4)), "end_time": DAY_US // 1_000_000 + 3600}
    partial = compare(read_openai([file_of(page(hour))]), [], UNMAPPED)
    assert entries_of(partial, "p", LATER_US) == []
    assert partial.notes == ("2026-11-20: the files do not tell about all of this day",)


def test_the_posting_id_is_of_files_range_and_names() -> None:
    """The same again has the same id; anything that would post something else has another."""
    statement = read_openai([file_of(page(openai_bucket(openai_usage("gpt-4o", 3, 4))))])
    found = compare(statement, [], UNMAPPED)
    ids = {
        posting_id(statement, UNMAPPED, found),
        posting_id(msgspec.structs.replace(statement, digest="other"), UNMAPPED, found),
        posting_id(statement, MATCHING, found),
        posting_id(statement, msgspec.structs.replace(UNMAPPED, organisation_id="acme"), found),
    }
    assert len(ids) == 4
    assert posting_id(statement, UNMAPPED, found) in ids
    assert all(each.startswith("reconciliation/openai/") and len(each) < 100 for each in ids)


def test_a_posting_has_a_limit() -> None:
    """It is refused whole, with what to do."""
    statement = read_openai([file_of(page(openai_bucket(openai_usage("gpt-4o", 200, 0))))])
    found = compare(statement, [row(key_id=f"key_{each}", meters=(1, 0, 0, 0, 0, 0)) for each in range(5)], UNMAPPED)
    assert len(entries_of(found, "p", LATER_US, max_entries=5)) == 5
    with pytest.raises(TooManyEntries, match="--from and --to"):
        entries_of(found, "p", LATER_US, max_entries=4)


def test_nobody_is_charged_more_than_the_columns_hold() -> None:
    """A file with absurd amounts is refused with the day and the model, not by the database."""
    dear = [openai_cost(f"gpt-4o, {meter}", 10**9) for meter in ("input", "input", "output")]
    found = compare(read_openai([file_of(page(openai_bucket(*dear)))]), [], UNMAPPED)
    with pytest.raises(BadExport, match="2026-11-20 gpt-4o: no difference of over a billion"):
        entries_of(found, "p", LATER_US)


async def test_the_books_agree_after_posting(engine: AsyncEngine) -> None:
    """On a real database: entries by several teams, a posting, then no difference; and idle GPUs stay out of it."""
    store = LedgerStore(engine)
    usual = {"provider": "OpenAI", "target_id": "gpt-4o", "at_us": DAY_US + 5}
    await store.insert(
        [
            settle("r1", **usual, team_id="team_a", input_nanousd=1_000_000, cached_input_tokens=100, input_tokens=300),
            settle("r2", **usual, team_id="team_b", input_nanousd=600_000, output_nanousd=400_000, tag="x"),
            settle("r3", **usual, cost_nanousd=None, baseline_nanousd=None),
            settle("r4", **{**usual, "provider": "self-hosted"}),
            settle("true-up/h100/2026-11-20/1/1", **usual, entry="adjust", origin="true-up", cost_nanousd=9),
            settle("idle/1", **usual, organisation_id="other", origin="idle", tier="idle", cost_nanousd=9),
        ]
    )
    usage = openai_usage("gpt-4o-2024-08-06", 2500, 500, input_cached_tokens=50)
    costs = openai_cost("gpt-4o-2024-08-06, input", 0.1 + 0.2), openai_cost("web search", 0.01)
    statement = read_openai([file_of([page(openai_bucket(usage)), page(openai_bucket(*costs))])])

    async def posting() -> tuple[Reconciliation, int]:
        """What the command does: read, compare and post in one transaction."""
        async with posting_alone(engine) as connection:
            rows = await booked(
                connection, first_day_us=DAY_US, last_day_us=DAY_US, providers=["openai"], organisation_id=None
            )
            found = compare(statement, rows, UNMAPPED)
            entries = entries_of(found, posting_id(statement, UNMAPPED, found), LATER_US)
            return found, await store.insert_within(connection, entries)

    # Two at once: the second reads what the first has posted.
    (found, new), (again, none) = sorted(await asyncio.gather(posting(), posting()), key=lambda each: -each[1])
    assert [(line.ours_nanousd, line.ours_tokens[:2]) for line in found.lines] == [
        (2_000_000, (1800, 100)),
        (0, (0, 0)),
    ]
    assert found.lines[0].theirs_nanousd == 300_000_000
    assert (new > 2, none) == (True, 0)
    assert not any(line.differs for line in again.lines)
    async with engine.connect() as connection:
        assert await is_posted(connection, posting_id(statement, UNMAPPED, found))
        assert not await is_posted(connection, "reconciliation/openai/other")
        # What was posted goes to everybody's budgets too.
        spent = await connection.scalar(text("SELECT sum(spent_nanousd) FROM spend_day WHERE scope = 'organisation'"))
    assert int(spent or 0) >= 310_000_000


async def test_who_is_compared_with_itself_saves_nothing_by_its_bill(engine: AsyncEngine) -> None:
    """Whatever the provider's books say, a target's cost and its baseline at its own price stay equal."""
    store = LedgerStore(engine)
    own = {"provider": "OpenAI", "target_id": "gpt-4o", "at_us": DAY_US + 5, "baseline_price": "gpt-4o@v1"}
    await store.insert(
        [
            settle("r1", **own, cost_nanousd=3_000_000, baseline_nanousd=3_000_000, input_nanousd=3_000_000),
            settle("r2", **own, cost_nanousd=1_000_000, baseline_nanousd=1_000_000, input_nanousd=1_000_000, tag="x"),
            # Compared with another one: its baseline is not its cost.
            settle(
                "r3",
                **(own | {"baseline_price": "gpt-5@v1", "target_id": "gpt-4o-mini"}),
                baseline_nanousd=7_000_000,
            ),
        ]
    )
    costs = openai_cost("gpt-4o-2024-08-06, input", 0.0036)
    statement = read_openai(
        [
            file_of([page(openai_bucket(openai_usage("gpt-4o-2024-08-06", 200, 20)))]),
            file_of([page(openai_bucket(costs))]),
        ]
    )
    async with posting_alone(engine) as connection:
        rows = await booked(
            connection, first_day_us=DAY_US, last_day_us=DAY_US, providers=["openai"], organisation_id=None
        )
        found = compare(statement, rows, UNMAPPED)
        entries = entries_of(found, posting_id(statement, UNMAPPED, found), LATER_US)
        await store.insert_within(connection, entries)
    query = (
        "SELECT SUM(cost_nanousd), SUM(baseline_nanousd), SUM(baseline_rows) FROM rollup_day WHERE target_id = 'gpt-4o'"
    )
    async with engine.connect() as connection:
        cost, baseline, compared = (await connection.execute(text(query))).one()
        other = await connection.scalar(
            text("SELECT SUM(baseline_nanousd) FROM rollup_day WHERE target_id = 'gpt-4o-mini'")
        )
    assert (int(cost), int(baseline), int(compared)) == (3_600_000, 3_600_000, 2)
    assert int(other) == 7_000_000


async def test_only_one_organisation_can_be_read(engine: AsyncEngine) -> None:
    """The scope is in the question to the database."""
    usual = {"provider": "openai", "target_id": "gpt-4o", "at_us": DAY_US}
    await LedgerStore(engine).insert([settle("r1", **usual), settle("r2", **usual, organisation_id="other")])
    async with engine.connect() as connection:
        ours = await booked(
            connection, first_day_us=DAY_US, last_day_us=DAY_US, providers=["openai"], organisation_id="other"
        )
        nothing = await booked(connection, first_day_us=0, last_day_us=0, providers=["openai"], organisation_id=None)
    assert [(each.organisation_id, each.attempts) for each in ours] == [("other", 1)]
    assert nothing == []
