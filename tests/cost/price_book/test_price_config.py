"""Prices as they are written: every shape, exactly, and what is refused."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from cost.meters import METER_NAMES, TOKEN_METERS
from cost.price_book.litellm_table import LitellmTable
from cost.price_book.price_config import (
    EnteredPrices,
    LitellmPrices,
    ModelPrices,
    PricesConfig,
    dated_price,
    price_items,
)
from cost.prices import nanousd
from cost.times import start_of


class _Model(BaseModel):
    prices: ModelPrices | None = None


def prices(**given_prices: Any) -> PricesConfig:
    return PricesConfig.model_validate({"input": 1, "output": 10, **given_prices})


def items(written: Any) -> tuple[PricesConfig | LitellmPrices, ...]:
    return price_items(_Model.model_validate({"prices": written}).prices)


def test_a_models_prices_have_three_shapes() -> None:
    """One price, a list with dates, a name in litellm's table; or none."""
    (one,) = items({"input": 1, "output": 2})
    assert isinstance(one, PricesConfig)
    first, second, third = items(
        [
            {"input": 1, "output": 2},
            {"input": 2, "output": 2, "effective_from": "2026-01-01"},
            {"source": "litellm", "name": "m"},
        ]
    )
    assert isinstance(second, PricesConfig)
    assert (second.effective_from, second.effective_us()) == (date(2026, 1, 1), 1_767_225_600_000_000)
    assert items({"source": "litellm", "name": "m"}) == (third,) != (first,)
    assert items(None) == ()


def test_every_meter_reaches_the_price() -> None:
    """Written out, each figure is its own, in long prompts and batches too."""
    cached = {name: f"{place}.1" for place, name in enumerate(TOKEN_METERS, 1) if name not in {"input", "output"}}
    long = {name: f"{place}.2" for place, name in enumerate(TOKEN_METERS, 1)}
    price = prices(
        **cached,
        request="0.01",
        long_prompts=[{"above_tokens": 200_000, **long}],
        batch={"input": "0.5", "output": 5, **cached, "long_prompts": [{"above_tokens": 100_000, **long}]},
        version="v1",
    ).price()
    found = dict(zip(METER_NAMES, price.figures(), strict=True))
    given = {"input": 1, "output": 10, **cached}
    assert found | {name: nanousd(str(each)) for name, each in given.items()} == found
    assert found["request"] == 10_000_000 * 1_000_000
    assert price.batch is not None
    assert (price.batch.input_nanousd, price.batch.output_nanousd) == (nanousd("0.5"), nanousd(5))
    for tier, bound in ((price.long_prompts[0], 200_000), (price.batch.long_prompts[0], 100_000)):
        assert tier.above_tokens == bound
        assert tier.price.figures()[:-1] == tuple(nanousd(each) for each in long.values())
        assert (tier.price.request_nanousd, tier.price.version) == (10_000_000, "v1")


def test_a_batch_discount_is_taken_off_every_figure() -> None:
    """Half of everything, and rounded half up where a nano-dollar would be split."""
    price = prices(
        input="0.000000003",
        request="0.01",
        batch_discount="0.5",
        long_prompts=[{"above_tokens": 9, "input": 4, "output": 6}],
    ).price()
    assert price.batch is not None
    assert (price.batch.input_nanousd, price.batch.output_nanousd, price.batch.request_nanousd) == (
        2,
        nanousd(5),
        5_000_000,
    )
    long = price.batch.long_prompts[0].price
    assert (long.input_nanousd, long.output_nanousd) == (nanousd(2), nanousd(3))
    assert price.batch.cache_write_1h_nanousd is None


def test_versions_tell_prices_apart() -> None:
    """The version, else the date, else the figures; what the short name leaves out adds its digest."""
    assert prices(version="v7", effective_from="2026-01-01").named_version() == "v7"
    assert prices(effective_from="2026-01-01").named_version() == "2026-01-01"
    assert [prices(input=each).named_version() for each in (1, "1.50")] == ["1/10/-/-", "1.5/10/-/-"]
    further = [prices(request=1), prices(reasoning=20), prices(batch_discount="0.5"), prices()]
    names = [each.named_version() for each in further]
    assert len(set(names)) == 4
    assert all(name.startswith("1/10/-/-") for name in names)


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_a_configured_price_is_exact(first: int, second: int) -> None:
    """To the nano-dollar, whatever was written."""
    price = prices(input=str(Decimal(first) / 10**9), cached_input=str(Decimal(second) / 10**9)).price()
    assert (price.input_nanousd, price.cached_input_nanousd) == (first, second)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ([{"input": 1, "output": 1}] * 2, "the dates overlap: two prices have no effective_from"),
        (
            [{"input": 1, "output": 1, "effective_from": "2026-01-01"}] * 2,
            "the dates overlap: two prices begin on 2026-01-01",
        ),
        (
            [
                {"input": 1, "output": 1, "version": "v"},
                {"input": 2, "output": 1, "version": "v", "effective_from": "2026-01-01"},
            ],
            "two prices have the version v",
        ),
        (
            [{"source": "litellm", "name": "a"}, {"source": "litellm", "name": "b"}],
            "two prices come from litellm's table",
        ),
        ([], "at least 1"),
        ([{"input": 1, "output": 1, "effective_from": f"{1970 + year}-01-01"} for year in range(65)], "at most 64"),
        ({"source": "litellm", "name": ""}, "at least 1"),
        ({"source": "litellm", "name": "a", "input": 1}, "Extra inputs"),
        ({"source": "openrouter", "name": "a"}, "'litellm'"),
        ({"input": 1, "output": 1, "batch_discount": 1}, "less than 1"),
        ({"input": 1, "output": 1, "batch_discount": "0.5", "batch": {"input": 1, "output": 1}}, "not both"),
        (
            {"input": 1, "output": 1, "cached_input": 0, "batch": {"input": 1, "output": 1}},
            "batch needs `cached_input` too",
        ),
        (
            {"input": 1, "output": 1, "reasoning": 2, "long_prompts": [{"above_tokens": 1, "input": 1, "output": 1}]},
            r"long_prompts\[0\] needs `reasoning` too",
        ),
        (
            {
                "input": 1,
                "output": 1,
                "long_prompts": [{"above_tokens": 1, "input": 1, "output": 1}],
                "batch": {"input": 1, "output": 1},
            },
            "batch needs `long_prompts` too",
        ),
        (
            {"input": 1, "output": 1, "long_prompts": [{"above_tokens": n, "input": 1, "output": 1} for n in (2, 1)]},
            "long_prompts must be ordered",
        ),
        (
            {"input": 1, "output": 1, "long_prompts": [{"above_tokens": 0, "input": 1, "output": 1}]},
            "greater than or equal to 1",
        ),
        ({"input": 1, "output": 1, "request": -1}, "greater than or equal to 0"),
        ({"input": 1, "output": 1, "request": "0.0000000001"}, "nano"),
    ],
)
def test_what_is_refused(written: Any, says: str) -> None:
    """Each mistake is refused with words that help; nothing is guessed beside what was given."""
    with pytest.raises(ValidationError, match=says):
        _Model.model_validate({"prices": written})


def test_dated_prices_say_where_they_come_from() -> None:
    """The table of litellm is only asked for a name in it."""
    rows = {"m": {"input_cost_per_token": Decimal("1e-6"), "output_cost_per_token": Decimal("2e-6")}}
    table = LitellmTable("9.9", rows)

    def never() -> LitellmTable:
        raise AssertionError

    (named,) = items({"source": "litellm", "name": "m"})
    (written,) = items({"input": 1, "output": 2, "effective_from": "2026-01-01"})
    assert dated_price("t", named, lambda: table).source == "litellm"
    found = dated_price("t", written, never)
    assert (found.source, found.effective_us, found.target_id) == ("config", start_of(date(2026, 1, 1)), "t")


def test_an_entered_price_holds_from_its_day_or_from_today() -> None:
    """Its name is made of that day, and goes into an address, so it has no slash."""
    today = date(2026, 3, 1)
    price, effective_us = EnteredPrices.model_validate({"input": 1, "output": 2}).entered(today)
    assert (price.version, effective_us) == ("override-2026-03-01", start_of(today))
    later = EnteredPrices.model_validate({"input": 1, "output": 2, "effective_from": "2026-04-01", "version": "q2"})
    assert later.entered(today)[0].version == "q2"
    assert later.entered(today)[1] == start_of(date(2026, 4, 1))
    with pytest.raises(ValidationError, match="pattern"):
        EnteredPrices.model_validate({"input": 1, "output": 2, "version": "a/b"})
