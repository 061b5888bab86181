"""One table of dimensions: columns, structs and choices follow it."""

from typing import get_args

from api.usage.usage_types import UsageRowOut
from cost.dimensions import (
    COLUMNS,
    DIMENSIONS,
    GROUPINGS,
    OFFERED,
    POSTED_COLUMNS,
    REQUEST_FILTERS,
    ROLLED_UP,
    TIMES,
    Dimension,
    PostedGroup,
    UsageFilters,
)
from cost.ledger.entries import Entry
from cost.reports.recent import RecentQuery
from cost.tables import COARSER_DAYS, ROLLUP_DIMENSIONS, LedgerEntry, rollup_day, rollup_hour


def test_every_dimension_is_in_the_table_once() -> None:
    """The names of the table and of the times are those of the type, in its order."""
    assert (*(each.name for each in DIMENSIONS), *TIMES) == get_args(Dimension)
    assert len(set(COLUMNS.values())) == len(DIMENSIONS)


def test_the_ledger_has_a_column_as_wide_as_the_table_says() -> None:
    """Entries have a field and the ledger a column for each dimension."""
    for each in DIMENSIONS:
        assert each.column in Entry.__struct_fields__
        assert LedgerEntry.__table__.c[each.column].type.length == each.width  # type: ignore[attr-defined]


def test_roll_ups_have_what_is_rolled_up() -> None:
    """The finest roll-ups have the same key columns, in the table's order; the coarser ones have some of them."""
    assert ("start_us", *(each.column for each in ROLLED_UP)) == ROLLUP_DIMENSIONS
    for table in (rollup_hour, rollup_day):
        assert set(table.primary_key.columns.keys()) == set(ROLLUP_DIMENSIONS)
    for table in COARSER_DAYS:
        assert set(table.primary_key.columns.keys()) < set(ROLLUP_DIMENSIONS)


def test_structs_follow_the_table() -> None:
    """Filters, groups of postings, queries of requests and rows of the API have the table's names."""
    filters = set(UsageFilters.__struct_fields__)
    assert {name.removeprefix("not_") for name in filters} == set(GROUPINGS) - TIMES.keys()
    assert PostedGroup.__struct_fields__ == POSTED_COLUMNS
    assert set(REQUEST_FILTERS) <= set(RecentQuery.__struct_fields__)
    assert {each.field for each in OFFERED} < set(UsageRowOut.__struct_fields__)


def test_postings_are_divided_by_what_is_rolled_up() -> None:
    """Postings are summed from the roll-ups, so they have no dimension that is not there."""
    assert all(each.rolled_up for each in DIMENSIONS if each.posted or each.on_pages)
