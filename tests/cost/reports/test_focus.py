"""The FOCUS export: nothing lost, nothing twice, exact, and nobody else's."""

import csv
import datetime as dt
import io
import json
from collections import Counter
from decimal import Decimal, localcontext
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.store import LedgerStore
from cost.meters import METER_COLUMNS, METER_NAMES
from cost.prices import NANO_PER_USD, Price, UnitPrice
from cost.reports.focus import COLUMNS, CUSTOM_COLUMNS, FOCUS_COLUMNS, FocusExport, FocusNames, FocusQuery, charges
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.tables import ROLLUP_SUMS
from tests.cost.entries import settle
from tests.cost.reports import sample_ledger as books
from tests.cost.reports.sample_ledger import APRIL_US, DAY_US, LONG, NAMES, SMALL

ALL = ReadScope(organisation_id="default", team_id=None)
FROM, TO = dt.date(2026, 4, 1), dt.date(2026, 6, 1)
NOW_US = APRIL_US + 33 * DAY_US


async def read(
    engine: AsyncEngine, scope: ReadScope = ALL, *, start: dt.date = FROM, end: dt.date = TO, by_hour: bool = False
) -> list[dict[str, str]]:
    """The export as somebody reads it who knows nothing but CSV."""
    export = FocusExport(engine, books.figures, NAMES, lambda: NOW_US)
    query = FocusQuery(scope=scope, start=start, end=end, by_hour=by_hour)
    text = "".join([piece async for piece in export.csv(query)])
    return list(csv.DictReader(io.StringIO(text, newline="")))


def total(rows: list[dict[str, str]], column: str) -> Decimal:
    return sum((Decimal(row[column]) for row in rows), Decimal(0))


def group(**changes: Any) -> dict[str, Any]:
    """A roll-up of one team's day at the small model, by default without anything in it."""
    return {
        "start_us": APRIL_US,
        "organisation_id": "default",
        "team_id": "a",
        "key_id": "key_1",
        "target_id": "gpt-5-mini",
        "provider": "openai",
        "tier": "interactive",
        "tag": "",
        "price_version": "2026-01-01",
        "pool": "",
        "origin": "caller",
        "unit": "",
        **dict.fromkeys(ROLLUP_SUMS, 0),
        **changes,
    }


def rows_of(found: dict[str, Any], price: Any = None, now_us: int = NOW_US) -> list[dict[str, Any]]:
    return charges(found, price, NAMES, now_us)


@pytest.mark.parametrize("by_hour", [False, True])
async def test_the_costs_add_up_to_the_ledger(engine: AsyncEngine, by_hour: bool) -> None:
    """Billed and effective cost are the ledger's to the nano-dollar, by day or by hour, in all and for each team."""
    entries = await books.write(engine, 300)
    rows = await read(engine, by_hour=by_hour, start=dt.date(2026, 4, 20), end=dt.date(2026, 5, 10))
    for column in ("BilledCost", "EffectiveCost"):
        assert total(rows, column) * NANO_PER_USD == sum(each.cost_nanousd or 0 for each in entries)
        for team in ("a", "b", ""):
            mine = [row for row in rows if row["SubAccountId"] == team]
            booked = sum(each.cost_nanousd or 0 for each in entries if each.team_id == team)
            assert total(mine, column) * NANO_PER_USD == booked
    assert total([row for row in rows if row["x_RequestCount"]], "x_RequestCount") == sum(
        each.entry == "settle" and each.origin == "caller" for each in entries
    )
    used = Counter(row["x_TokenType"] for row in rows)
    booked_meters = {
        name
        for name, column in zip(METER_NAMES, METER_COLUMNS, strict=True)
        if any(getattr(each, column) for each in entries)
    }
    assert {*booked_meters, ""} <= set(used) <= {*METER_NAMES, ""}


async def test_lines_hold_what_the_standard_asks_of_a_row(engine: AsyncEngine) -> None:
    """Price times quantity is the list cost exactly; quantities are usage's only; ids have one parent; JSON is JSON."""
    await books.write(engine, 300)
    rows = await read(engine)
    parents: dict[str, set[str]] = {}
    for row in rows:
        if row["ListUnitPrice"]:
            assert Decimal(row["ListUnitPrice"]) * Decimal(row["PricingQuantity"]) == Decimal(row["ListCost"])
            assert row["ListCost"] == row["ContractedCost"]
            parents.setdefault(row["SkuPriceId"], set()).add(row["SkuId"])
            assert all(name.startswith("x_") for name in json.loads(row["SkuPriceDetails"]))
        else:
            assert row["ListCost"] == row["BilledCost"]
            assert row["SkuPriceId"] == ""
        assert bool(row["PricingQuantity"]) == bool(row["PricingUnit"])
        assert not row["ConsumedQuantity"] or row["ChargeCategory"] == "Usage"
        assert row["Tags"] == "" or json.loads(row["Tags"])["tag"] in {"search", '{"=1+1"}'}
        assert row["ChargeDescription"]
    assert all(len(each) == 1 for each in parents.values())


async def test_booked_and_list_cost_differ_by_rounding_alone(engine: AsyncEngine) -> None:
    """Where one listed price explains a group, each attempt differs by a nano-dollar at most."""
    await books.write(engine, 300)
    for row in await read(engine):
        if row["x_Model"] == "gpt-5-mini" and row["ListUnitPrice"]:
            assert row["SkuPriceId"].endswith("@2026-01-01")
            assert abs(Decimal(row["ListCost"]) - Decimal(row["BilledCost"])) < Decimal("0.0000003")


def test_other_units_have_their_quantity_and_price() -> None:
    """Seconds to the thousandth at the price of one; without a price they are no usage that looks free."""
    price = Price(
        version="2026-01-01",
        input_nanousd=0,
        output_nanousd=0,
        cached_input_nanousd=0,
        cache_write_nanousd=0,
        units=(UnitPrice(unit="second", nanousd=100_000_000_000),),
    )
    heard = {"unit": "second", "quantity_milli": 2_500, "attempts": 1}
    (row,) = rows_of(group(**heard, request_nanousd=250_000, cost_nanousd=250_000), price)
    assert (row["ConsumedQuantity"], row["ConsumedUnit"], row["SkuMeter"]) == (
        Decimal("2.5"),
        "Seconds",
        "Audio Seconds",
    )
    assert (row["ListUnitPrice"], row["ListCost"], row["BilledCost"]) == (
        Decimal("0.0001"),
        Decimal("0.00025"),
        Decimal("0.00025"),
    )
    (unknown,) = rows_of(group(**heard, unpriced_attempts=1, price_version=""))
    assert (unknown["ChargeCategory"], unknown["ConsumedQuantity"]) == ("Adjustment", None)


async def test_a_spreadsheet_runs_nothing_of_it(engine: AsyncEngine) -> None:
    """What somebody called a team is text, also when it looks like a formula."""
    await books.write(engine, 50)
    rows = await read(engine)
    assert {row["SubAccountName"] for row in rows} == {"'=cmd|' /C calc'!A0", 'Quote "B"', ""}
    texts = {row[name] for row in rows for name in row if not name.endswith(("Cost", "Quantity", "Price"))}
    assert not any(text.startswith(("=", "+", "-", "@")) for text in texts)


async def test_a_team_sees_its_own(engine: AsyncEngine) -> None:
    """A member's scope has no other team, no idle GPUs, and another organisation has nothing."""
    await books.write(engine, 100)
    mine = await read(engine, ReadScope(organisation_id="default", team_id="a"))
    everybody = await read(engine)
    assert mine == [row for row in everybody if row["SubAccountId"] == "a"]
    assert await read(engine, ReadScope(organisation_id="other", team_id=None)) == []
    assert await read(engine, ReadScope(organisation_id="other", team_id="a")) == []


async def test_pages_lose_nothing(engine: AsyncEngine) -> None:
    """A day with more groups than a page comes whole, each group once, in one order."""
    (usual,) = books.requests(1)
    many = [
        msgspec.structs.replace(usual, request_id=f"r{n}", key_id=f"key_{n:04}", at_us=APRIL_US) for n in range(2_100)
    ]
    await LedgerStore(engine).insert(many)
    rows = await read(engine)
    keys = [row["x_KeyId"] for row in rows if row["x_RequestCount"]]
    assert keys == [f"key_{n:04}" for n in range(2_100)]


def test_idle_gpus_are_a_row_of_a_day_without_a_team() -> None:
    """They are usage, for they are paid for by the day; what takes some of it back is an adjustment."""
    idle = {"origin": "idle", "team_id": "", "key_id": "", "tier": "idle", "pool": "h100", "target_id": "h100"}
    (row,) = rows_of(group(**idle, cost_nanousd=141_600_000_001, provider="self-hosted"))
    assert (row["BilledCost"], row["PricingQuantity"], row["PricingUnit"]) == (Decimal("141.600000001"), 1, "Days")
    assert (row["SubAccountId"], row["SubAccountName"], row["x_Tier"]) == (None, None, "idle")
    assert (row["ResourceId"], row["ResourceType"], row["ChargeCategory"]) == ("pool/h100", "GPU Pool", "Usage")
    (row,) = rows_of(group(**idle, cost_nanousd=-1))
    assert (row["BilledCost"], row["ChargeCategory"]) == (Decimal("-0.000000001"), "Adjustment")


@pytest.mark.parametrize(
    ("origin", "now_us", "category", "charge_class"),
    [
        ("correction", APRIL_US + 5 * DAY_US, "Adjustment", None),
        ("correction", APRIL_US + 30 * DAY_US, "Usage", "Correction"),
        ("reconciliation", APRIL_US + 40 * DAY_US, "Usage", "Correction"),
        ("true-up", APRIL_US + 40 * DAY_US, "Adjustment", None),
    ],
)
def test_what_is_posted_after_the_fact(origin: str, now_us: int, category: str, charge_class: str | None) -> None:
    """`Correction` is for a billing period that is over; until then, and for true-ups, it is an adjustment."""
    posted = group(origin=origin, cost_nanousd=-16, input_nanousd=-16, input_tokens=-40)
    (row,) = rows_of(posted, SMALL, now_us)
    assert (row["ChargeCategory"], row["ChargeClass"]) == (category, charge_class)
    assert row["BilledCost"] == row["ListCost"] == Decimal("-0.000000016")
    assert row["ListUnitPrice"] is None
    assert row["ConsumedQuantity"] == (-40 if charge_class else None)


def test_what_has_no_price_does_not_look_free() -> None:
    """It is no usage at 0 dollars: it says that the price is unknown, and how many attempts that concerns."""
    (row,) = rows_of(group(input_tokens=800, attempts=3, unpriced_attempts=3, price_version=""))
    assert row["ChargeCategory"] == "Adjustment"
    assert row["ListUnitPrice"] is None
    assert "price is unknown" in row["ChargeDescription"]
    assert (row["x_Quantity"], row["x_UnpricedAttemptCount"]) == (800, 3)


def test_figures_that_nobody_kept_give_the_price_that_came_out() -> None:
    """Cost by quantity, told as such, so that nobody looks it up in a list."""
    (row,) = rows_of(group(input_tokens=3, attempts=1, cost_nanousd=1_000, input_nanousd=1_000))
    assert row["ListUnitPrice"] == Decimal("0.000000333333333333")
    assert row["BilledCost"] == Decimal("0.000001")
    assert row["ListCost"] == Decimal("0.000000999999999999")
    assert row["SkuPriceId"] == "gpt-5-mini/input@2026-01-01+blended"


@pytest.mark.parametrize(
    ("tokens", "cost_nanousd", "kind", "unit"),
    [
        (1_000, 1_250_000, "", "0.00000125"),
        (250_000, 625_000_000, "+above-200000", "0.0000025"),
        (251_000, 626_250_000, "+blended", "0.000002495019920319"),
    ],
)
def test_long_prompts_have_a_price_of_their_own(tokens: int, cost_nanousd: int, kind: str, unit: str) -> None:
    """A group at one of a version's figures has that one; a group of both has the price that came out."""
    found = group(input_tokens=tokens, attempts=2, cost_nanousd=cost_nanousd, input_nanousd=cost_nanousd)
    (row,) = rows_of(found, LONG)
    assert row["SkuPriceId"] == f"gpt-5-mini/input@2026-01-01{kind}"
    assert row["ListUnitPrice"] == Decimal(unit)


def test_costs_from_before_there_were_meters_are_kept_whole() -> None:
    """They stand in a row of their own, and the quantities beside it do not look free."""
    rows = rows_of(group(input_tokens=800, output_tokens=200, attempts=1, requests=1, cost_nanousd=999))
    assert [row["ChargeCategory"] for row in rows] == ["Adjustment"] * 3
    assert sum(row["BilledCost"] for row in rows) == Decimal("0.000000999")
    assert [row["x_RequestCount"] for row in rows] == [1, None, None]


amounts = st.integers(-(10**15), 10**15)


@given(
    costs=st.tuples(*(amounts for _ in METER_NAMES)),
    rest=st.sampled_from([0, 0, 1, -7]),
    tokens=st.lists(st.integers(-(10**12), 10**12), min_size=6, max_size=6),
    attempts=st.integers(-3, 10**6),
    unpriced=st.sampled_from([0, 0, 1]),
    origin=st.sampled_from(["caller", "shadow", "true-up", "idle", "correction", "reconciliation"]),
    price=st.sampled_from([None, SMALL, LONG]),
    now_us=st.sampled_from([APRIL_US, NOW_US]),
)
def test_whatever_was_booked_comes_out_to_the_nano_dollar(
    costs: tuple[int, ...],
    rest: int,
    tokens: list[int],
    attempts: int,
    unpriced: int,
    origin: str,
    price: Any,
    now_us: int,
) -> None:
    """Also negative, huge and inconsistent roll-ups keep their sum, and each row keeps the standard's rules."""
    names = ("input", "cached_input", "cache_write", "cache_write_1h", "output", "reasoning")
    found = group(
        **dict(zip(METER_COLUMNS, costs, strict=True)),
        **{f"{name}_tokens": amount for name, amount in zip(names, tokens, strict=True)},
        cost_nanousd=sum(costs) + rest,
        attempts=attempts,
        unpriced_attempts=unpriced,
        origin=origin,
    )
    rows = rows_of(found, price, now_us)
    assert sum(int(row["BilledCost"].scaleb(9)) for row in rows) == sum(costs) + rest
    for row in rows:
        assert row["BilledCost"] == row["EffectiveCost"]
        assert row.keys() == set(COLUMNS)
        if row["ChargeCategory"] == "Usage" and row["ChargeClass"] is None:
            assert row["ListUnitPrice"] >= 0
            with localcontext(prec=100):
                assert row["ListUnitPrice"] * row["PricingQuantity"] == row["ListCost"]


def test_custom_columns_come_last() -> None:
    """First the standard's, then ours with `x_`, and none twice."""
    assert not any(name.startswith("x_") for name in FOCUS_COLUMNS)
    assert all(name.startswith("x_") for name in CUSTOM_COLUMNS)
    assert COLUMNS == FOCUS_COLUMNS + CUSTOM_COLUMNS
    assert len(set(COLUMNS)) == len(COLUMNS)


@pytest.mark.parametrize(
    ("start", "end", "by_hour"),
    [
        ("2026-04-01", "2026-04-01", False),
        ("2026-04-02", "2026-04-01", False),
        ("2026-04-01", "2027-06-01", False),
        ("2026-04-01", "2026-05-03", True),
    ],
)
def test_ranges_are_limited(start: str, end: str, by_hour: bool) -> None:
    """At least a day, at most a year and a bit; by hour a month."""
    query = FocusQuery(scope=ALL, start=dt.date.fromisoformat(start), end=dt.date.fromisoformat(end), by_hour=by_hour)
    with pytest.raises(BadQuery):
        query.checked()


@pytest.mark.parametrize(
    ("name", "told"),
    [("Müller & Søhne", "Muller & S?hne"), ("\u5317\u4eac", "default"), ("", "default"), ("Example", "Example")],
)
def test_names_are_ascii(name: str, told: str) -> None:
    """The standard has no other texts; an account is never without a name."""
    names = FocusNames(organisations={"default": name}, teams={})
    (row, *_) = charges(group(input_tokens=1, input_nanousd=1, cost_nanousd=1), SMALL, names, NOW_US)
    assert row["BillingAccountName"] == told


@pytest.mark.parametrize("by_hour", [False, True])
async def test_days_of_nothing_are_passed_over(engine: AsyncEngine, by_hour: bool) -> None:
    """A long range with little in it takes few questions, and misses nothing."""
    days = 30 if by_hour else 399
    await LedgerStore(engine).insert([settle("a", at_us=APRIL_US + 1), settle("b", at_us=APRIL_US + days * DAY_US)])
    asked: list[str] = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    export = FocusExport(engine, books.figures, NAMES, lambda: NOW_US)
    start = dt.date(2026, 4, 1)
    scope = ReadScope(organisation_id="default", team_id=None)
    query = FocusQuery(scope=scope, start=start, end=start + dt.timedelta(days=days + 1), by_hour=by_hour)
    found = {row["ChargePeriodStart"] for page in [page async for page in export.rows(query)] for row in page}
    assert len(found) == 2
    assert len(asked) < 10
