"""One table of meters: structs and columns follow it, and no other list of its names exists."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.ledger.entries import Entry
from cost.meters import (
    FALLBACKS,
    METER_COLUMNS,
    METER_NAMES,
    METERS,
    REPLAYED_COLUMNS,
    TOKEN_COLUMNS,
    TOKEN_METERS,
    MeterSums,
    TokenCounts,
    split,
    with_fallbacks,
)
from cost.price_book.price_config import MeterPrices
from cost.prices import Price
from cost.tables import ROLLUP_SUMS, LedgerEntry
from cost.usage import Usage

_ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("accounts", "cost", "dashboards", "gateway", "proxy")
_FOREIGN: Final = {
    "cost/meters.py": "The table.",
    "cost/price_book/litellm_table.py": "Names of litellm's table.",
    "cost/reconcile/anthropic.py": "Names of Anthropic's exports.",
    "cost/reconcile/openai.py": "Names of OpenAI's exports.",
    "cost/reports/daily_csv.py": "A published format, which has some of them.",
    "api/models/routes.py": "A published format, which has some of them.",
    "dashboards/prices/page.py": "Fields of a form, in its own order.",
    "gateway/commands/prices.py": "Options of commands.",
    "gateway/demo/sample_config.py": "A configuration.",
}
"""Files that may name meters in a list of their own, and why."""
_LEAST: Final = 2
"""Parts of other meters in one literal that make it a list of meters; a summary names at most one beside input and output."""
_NAMES: Final = {name: name for name in METER_NAMES} | {
    column: name
    for columns in (TOKEN_COLUMNS, METER_COLUMNS)
    for name, column in zip(METER_NAMES, columns, strict=False)
}
_PARTS: Final = {each.name for each in METERS if each.within}


def _lists(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    for node in ast.walk(tree):
        match node:
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                pass
            case ast.Dict(keys=keys):
                parts = [each for each in keys if each is not None]
            case _:
                continue
        # A row of a table begins with its name.
        firsts = [each.elts[0] if isinstance(each, ast.Tuple) and each.elts else each for each in parts]
        words = {each.value for each in firsts if isinstance(each, ast.Constant) and isinstance(each.value, str)}
        yield getattr(node, "lineno", 0), {_NAMES[word] for word in words if word in _NAMES}


def test_no_list_of_meters_stands_beside_the_table() -> None:
    """Code that needs the meters asks the table; translations and published formats alone have lists of their own."""
    found = [
        f"{path.relative_to(_ROOT)}:{line}"
        for package in _PACKAGES
        for path in sorted((_ROOT / package).rglob("*.py"))
        if "migrations" not in path.parts and str(path.relative_to(_ROOT)) not in _FOREIGN
        for line, names in _lists(ast.parse(path.read_text()))
        if len(names & _PARTS) >= _LEAST
    ]
    assert found == []


@pytest.mark.parametrize("holder", [TokenCounts, Usage, MeterSums, Entry])
def test_structs_count_every_meter(holder: type[TokenCounts] | type[Entry]) -> None:
    """A meter of the table that a struct has no field for, or one beyond the table, is told here. What was given again is no meter."""
    fields = {name for name in holder.__struct_fields__ if name.endswith("_tokens")}
    assert fields - set(REPLAYED_COLUMNS) == set(TOKEN_COLUMNS)


@pytest.mark.parametrize(
    "names", [MeterSums.__struct_fields__, Entry.__struct_fields__, Price.__struct_fields__, ROLLUP_SUMS]
)
def test_amounts_have_a_place_for_every_meter(names: tuple[str, ...]) -> None:
    """Entries, sums, prices and roll-ups have an amount of every meter."""
    assert set(METER_COLUMNS) <= set(names)


def test_the_ledger_and_the_configuration_have_every_meter() -> None:
    """Columns of the ledger and prices of the configuration follow the table too."""
    assert {*TOKEN_COLUMNS, *METER_COLUMNS} <= set(LedgerEntry.__table__.columns.keys())  # type: ignore[attr-defined]
    assert set(TOKEN_METERS) <= set(MeterPrices.model_fields)


@given(st.lists(st.integers(0, 10**9), min_size=len(TOKEN_METERS), max_size=len(TOKEN_METERS)), st.integers(0, 9))
def test_a_split_takes_each_part_out_of_its_whole_once(counts: list[int], requests: int) -> None:
    """Put back part by part, meters are the inclusive buckets again; the request is counted as it is."""
    found = list(split(counts, requests))
    for part, whole in reversed(FALLBACKS):
        found[whole] += found[part]
    assert found == [*counts, requests]


def test_a_figure_is_that_of_the_whole_where_there_is_no_own_one() -> None:
    """An hour's cache has the figure of five minutes', or through it that of input."""
    given = {"input": 1, "cached_input": 2, "output": 3, "request": 4}
    found = dict(zip(METER_NAMES, with_fallbacks(given), strict=True))
    assert found | {**given, "cache_write": 1, "cache_write_1h": 1, "reasoning": 3} == found
