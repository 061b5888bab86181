"""Money is exact."""

from collections import Counter
from decimal import ROUND_FLOOR, Decimal
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cost.meters import FALLBACKS, METER_NAMES, METERS, NO_MEDIA, SETS_OF_MEDIA, Media
from cost.prices import (
    NANO_PER_USD,
    SERVICE_TIERS,
    LongPrompt,
    Price,
    UnitPrice,
    from_json,
    meters,
    nanousd,
    price_from_usd,
    to_json,
    unit_price,
    usd,
    usd_per_million,
)
from cost.usage import Usage
from tests.cost.by_meter import by_meter


def inclusive(split: dict[str, int]) -> dict[str, Any]:
    """The buckets of counts that do not overlap."""
    found = {each.name: split.get(each.name, 0) for each in METERS if each.in_tokens}
    for part, whole in reversed(FALLBACKS):
        found[METER_NAMES[whole]] += found[METER_NAMES[part]]
    return {f"{name}_tokens": count for name, count in found.items()}


amounts = st.integers(0, 10**14)
tokens = st.integers(0, 10**7)


def flat_prices(version: str = "v1") -> st.SearchStrategy[Price]:
    """Prices that are the same for every length and way."""
    return st.builds(
        Price,
        version=st.just(version),
        input_nanousd=amounts,
        output_nanousd=amounts,
        cached_input_nanousd=amounts,
        cache_write_nanousd=amounts,
        cache_write_1h_nanousd=st.none() | amounts,
        reasoning_nanousd=st.none() | amounts,
        request_nanousd=amounts,
        **{f"{each.name}_nanousd": st.none() | amounts for each in METERS if each.medium},
    )


@st.composite
def tiered_prices(draw: st.DrawFn) -> Price:
    """Prices that may be others for long prompts."""
    bounds = draw(st.lists(st.integers(1, 2 * 10**7), max_size=3, unique=True))
    tiers = tuple(LongPrompt(above_tokens=bound, price=draw(flat_prices())) for bound in sorted(bounds))
    return msgspec.structs.replace(draw(flat_prices()), long_prompts=tiers)


@st.composite
def any_prices(draw: st.DrawFn) -> Price:
    """Prices with everything that a price may have."""
    return msgspec.structs.replace(draw(tiered_prices()), batch=draw(st.none() | tiered_prices()))


prices = any_prices()
usages = st.builds(
    lambda split: Usage(**inclusive(split), source="upstream"),
    st.fixed_dictionaries({each.name: tokens for each in METERS if each.in_tokens and not each.medium})
    | st.fixed_dictionaries({each.name: tokens for each in METERS if each.in_tokens}),
)
batches = st.booleans()
PLAIN = price_from_usd(version="v1", input_usd=2, output_usd=8)


@given(prices, usages, batches)
def test_cost_is_the_exact_amount_rounded_once(price: Price, usage: Usage, batch: bool) -> None:
    """The cost is a whole number, never negative, and half a nano-dollar from the exact amount at most."""
    cost = price.cost_nanousd(usage, batch=batch)
    figures = price.applying(usage.input_tokens, batch=batch).figures()
    exact = sum(
        (Decimal(count) * each / 1_000_000 for count, each in zip(meters(usage), figures, strict=True)), Decimal(0)
    )
    assert type(cost) is int
    assert cost >= 0
    assert cost == int((exact + Decimal("0.5")).to_integral_value(ROUND_FLOOR))


@given(prices, usages, batches)
def test_the_meters_add_up_to_the_cost(price: Price, usage: Usage, batch: bool) -> None:
    """Not one nano-dollar is lost between the parts and the whole, and no part is a nano-dollar off."""
    parts = price.costs_nanousd(usage, batch=batch)
    assert len(parts) == len(METER_NAMES)
    assert sum(parts) == price.cost_nanousd(usage, batch=batch)
    figures = price.applying(usage.input_tokens, batch=batch).figures()
    for part, count, figure in zip(parts, meters(usage), figures, strict=True):
        assert abs(Decimal(part) - Decimal(count) * figure / 1_000_000) <= 1


@given(prices, tokens, tokens, st.data())
def test_the_cost_of_plain_figures_is_that_of_their_usage(
    price: Price, input_tokens: int, output_tokens: int, data: st.DataObject
) -> None:
    """What planning computes many times a request, without a usage, is the same to the nano-dollar."""
    cached = data.draw(st.integers(0, input_tokens))
    written = data.draw(st.integers(0, input_tokens - cached))
    usage = Usage(
        input_tokens=input_tokens, cached_input_tokens=cached, cache_write_tokens=written, output_tokens=output_tokens
    )
    told = price.tokens_nanousd(input_tokens, output_tokens, cached=cached, written=written)
    assert told == price.cost_nanousd(usage)


@given(usages)
def test_every_token_is_in_one_meter(usage: Usage) -> None:
    """The parts do not overlap, none is left out, and one request is one."""
    wholes: dict[str, str] = {}
    sums: Counter[str] = Counter()
    found = dict(zip(METER_NAMES, meters(usage), strict=True))
    for each in METERS:
        wholes[each.name] = wholes.get(each.within, each.name)
        sums[wholes[each.name]] += found[each.name]
    assert dict(sums) == {"input": usage.input_tokens, "output": usage.output_tokens, "request": 1}
    assert (found["reasoning"], found["cache_write_1h"]) == (usage.reasoning_tokens, usage.cache_write_1h_tokens)


@given(flat_prices(), usages, usages)
def test_cost_is_additive_to_the_rounding(price: Price, first: Usage, second: Usage) -> None:
    """Two attempts cost what one with the tokens of both would, to a nano-dollar and a request."""
    both = Usage(
        **{
            name: getattr(first, name) + getattr(second, name)
            for name in Usage.__struct_fields__
            if name.endswith("_tokens")
        }
    )
    once = price.cost_nanousd(both) + price.request_nanousd
    assert abs(once - price.cost_nanousd(first) - price.cost_nanousd(second)) <= 1


@given(prices, usages)
def test_nothing_costs_more_than_the_most(price: Price, usage: Usage) -> None:
    """What is held before a call covers it, whatever its tokens turn out to be."""
    assert price.cost_nanousd(usage) <= price.most_nanousd(usage.input_tokens, usage.output_tokens)


@given(prices, usages, st.sampled_from(SETS_OF_MEDIA))
def test_nothing_costs_more_than_the_most_of_its_media(price: Price, usage: Usage, media: Media) -> None:
    """A prompt without sound or pictures is held at what text costs, and that covers it, too."""
    absent = {
        f"{each.name}_tokens": 0
        for each in METERS
        if each.medium and each.within != "output" and each.medium not in media
    }
    kept = msgspec.structs.replace(usage, **absent)
    most = price.most_nanousd(kept.input_tokens, kept.output_tokens, media)
    assert price.cost_nanousd(kept) <= most <= price.most_nanousd(kept.input_tokens, kept.output_tokens)


def test_sound_costs_what_sound_costs() -> None:
    """A thousand tokens in and 500 out of gpt-audio, all sound: $0.064, not the $0.0075 of text."""
    price = price_from_usd(version="v1", input_usd="2.5", output_usd=10, audio_input_usd=32, audio_output_usd=64)
    spoken = Usage(input_tokens=1_000, audio_input_tokens=1_000, output_tokens=500, audio_output_tokens=500)
    assert price.cost_nanousd(spoken) == 64_000_000
    assert price.costs_nanousd(spoken) == by_meter(audio_input=32_000_000, audio_output=32_000_000)
    assert price.cost_nanousd(Usage(input_tokens=1_000, output_tokens=500)) == 7_500_000
    assert price.most_nanousd(1_000, 500) == 64_000_000
    assert price.most_nanousd(1_000, 500, NO_MEDIA) == 34_500_000


def test_nothing_is_cached_unless_it_is_told() -> None:
    """Plain figures are of fresh tokens alone."""
    price = price_from_usd(version="v1", input_usd=2, output_usd=8, cached_input_usd=1, cache_write_usd=3)
    assert price.tokens_nanousd(10, 5) == price.cost_nanousd(Usage(input_tokens=10, output_tokens=5)) == 60_000


def test_a_medium_without_a_price_costs_what_text_costs() -> None:
    """Without a cache's price, what is cached of it costs what it does; with one, what cached text does."""
    sound = Usage(input_tokens=1_000, cached_input_tokens=1_000, cached_audio_input_tokens=1_000)
    spent = [
        price_from_usd(version="v1", input_usd=2, output_usd=8, **figures).cost_nanousd(sound)
        for figures in ({}, {"audio_input_usd": 32}, {"audio_input_usd": 32, "cached_input_usd": 1})
    ]
    assert spent == [2_000_000, 32_000_000, 1_000_000]


@given(prices)
def test_a_price_survives_its_text(price: Price) -> None:
    """What was written is what is read, and the same price is the same text."""
    assert from_json(to_json(price)) == price
    assert to_json(from_json(to_json(price))) == to_json(price)


@given(prices, prices)
def test_the_digest_is_of_the_figures(first: Price, second: Price) -> None:
    """Another name changes nothing, other figures do."""
    assert first.digest() == first.named("another").digest()
    assert first.same_figures(first.named("another"))
    assert len(first.digest()) == 6
    if first.digest() != second.digest():
        assert not first.same_figures(second)


def test_a_long_prompt_begins_above_its_bound() -> None:
    """At the bound the usual price holds, one token above the whole request costs the other."""
    long = price_from_usd(version="v1", input_usd=4, output_usd=10)
    price = msgspec.structs.replace(PLAIN, long_prompts=(LongPrompt(above_tokens=1_000, price=long),))
    at, above = (Usage(input_tokens=count, output_tokens=10) for count in (1_000, 1_001))
    assert price.cost_nanousd(at) == 1_000 * 2_000 + 10 * 8_000
    assert price.cost_nanousd(above) == 1_001 * 4_000 + 10 * 10_000
    assert [price.most_nanousd(count, 10) for count in (1_000, 1_001)] == [
        price.cost_nanousd(usage) for usage in (at, above)
    ]
    # The cached ones count for the length too.
    cached = Usage(input_tokens=1_001, cached_input_tokens=900)
    assert price.cost_nanousd(cached) == 1_001 * 4_000


def test_a_batch_has_its_own_price_or_the_usual_one() -> None:
    """Batch prices hold for batches only, with their own prices for long prompts."""
    usage, long = Usage(input_tokens=100, output_tokens=10), Usage(input_tokens=2_000)
    assert PLAIN.cost_nanousd(usage, batch=True) == PLAIN.cost_nanousd(usage) == 280_000
    half = price_from_usd(version="v1", input_usd=1, output_usd=4)
    tier = LongPrompt(above_tokens=1_000, price=price_from_usd(version="v1", input_usd=3, output_usd=3))
    price = msgspec.structs.replace(PLAIN, batch=msgspec.structs.replace(half, long_prompts=(tier,)))
    assert (price.cost_nanousd(usage, batch=True), price.cost_nanousd(usage)) == (140_000, 280_000)
    assert (price.cost_nanousd(long, batch=True), price.cost_nanousd(long)) == (6_000_000, 4_000_000)


def test_an_hours_cache_reasoning_and_requests_have_their_own_prices() -> None:
    """Each meter is charged at its own figure; without one it is the more general meter's."""
    usage = Usage(
        input_tokens=100, cache_write_tokens=60, cache_write_1h_tokens=20, output_tokens=30, reasoning_tokens=10
    )
    price = price_from_usd(
        version="v1",
        input_usd=1,
        output_usd=10,
        cache_write_usd="1.25",
        cache_write_1h_usd=2,
        reasoning_usd=20,
        request_usd="0.005",
    )
    assert price.costs_nanousd(usage) == by_meter(
        input=40_000, cache_write=50_000, cache_write_1h=40_000, output=200_000, reasoning=200_000, request=5_000_000
    )
    general = price_from_usd(version="v1", input_usd=1, output_usd=10, cache_write_usd="1.25")
    assert general.costs_nanousd(usage) == by_meter(
        input=40_000, cache_write=50_000, cache_write_1h=25_000, output=200_000, reasoning=100_000
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"input_nanousd": -1}, "whole and from 0"),
        ({"output_nanousd": 10**15 + 1}, "whole and from 0"),
        ({"request_nanousd": 1.5}, "whole and from 0"),
        ({"cache_write_1h_nanousd": True}, "whole and from 0"),
        ({"reasoning_nanousd": -1}, "whole and from 0"),
        ({"version": "x" * 201}, "at most 200 characters"),
        ({"long_prompts": (LongPrompt(above_tokens=0, price=PLAIN),)}, "ordered"),
        ({"long_prompts": (LongPrompt(above_tokens=5, price=PLAIN),) * 2}, "ordered"),
        ({"long_prompts": tuple(LongPrompt(above_tokens=n, price=PLAIN) for n in range(1, 18))}, "at most 16"),
        (
            {"long_prompts": (LongPrompt(above_tokens=5, price=msgspec.structs.replace(PLAIN, batch=PLAIN)),)},
            "no further prices",
        ),
        ({"batch": msgspec.structs.replace(PLAIN, batch=PLAIN)}, "no other price for batches"),
    ],
)
def test_a_price_that_makes_no_sense_cannot_be_made(changes: dict[str, Any], says: str) -> None:
    """Whoever makes one: negative, fractional, endless or nested prices are refused."""
    with pytest.raises(ValueError, match=says):
        msgspec.structs.replace(PLAIN, **changes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        to_json(PLAIN).replace("v1", 'v1","free":"yes'),
        to_json(PLAIN).replace("2000000000", "-5"),
        "x" * 70_000,
    ],
)
def test_what_is_no_price_is_not_read(text: str) -> None:
    """A figure that is not known, missing or wrong is never passed over."""
    with pytest.raises(ValueError, match="price"):
        from_json(text)


def test_a_price_is_told_by_the_figures_that_it_has() -> None:
    """Its text, and so its digest, are those of every version before; what is in neither has the usual figure."""
    figures = '"input_nanousd":2000000000,"output_nanousd":8000000000'
    same = '"cached_input_nanousd":2000000000,"cache_write_nanousd":2000000000'
    assert to_json(PLAIN) == f'{{"version":"v1",{figures},{same}}}'
    assert PLAIN.digest() == "806298"


@pytest.mark.parametrize("name", ["units", "long_prompts"])
def test_what_is_not_known_of_a_part_is_not_read(name: str) -> None:
    """No more than of the price itself."""
    tier = LongPrompt(above_tokens=5, price=PLAIN)
    part = {"units": (UnitPrice(unit="image", nanousd=1),), "long_prompts": (tier,)}[name]
    text = to_json(msgspec.structs.replace(PLAIN, **{name: part}))
    assert from_json(text).named("v1") == from_json(text)
    with pytest.raises(ValueError, match="this is no price"):
        from_json(text.replace(f'"{name}":[{{', f'"{name}":[{{"free":1,'))


def test_a_price_has_so_much_text_at_most() -> None:
    """64 KiB, and not a character more."""
    text = to_json(PLAIN).ljust(65_536)
    assert from_json(text) == PLAIN
    with pytest.raises(ValueError, match="at most 65536 characters"):
        from_json(f"{text} ")


@given(st.integers(0, 10**15))
def test_dollars_and_nano_dollars_are_the_same_amount(amount: int) -> None:
    """There and back again changes nothing."""
    assert nanousd(usd(amount)) == amount


@given(st.integers(0, 10**15))
def test_a_price_from_yaml_is_the_text_that_stood_there(amount: int) -> None:
    """A price written in a configuration is read exactly, with or without quotes."""
    written = f"{Decimal(amount) / NANO_PER_USD:f}"
    assert usd_per_million(yaml.safe_load(f"'{written}'")) == amount
    if len(written.replace(".", "").lstrip("0")) <= 15:
        assert usd_per_million(yaml.safe_load(written)) == amount


@pytest.mark.parametrize(
    ("listed", "amount"),
    [
        (0.15, 150_000_000),
        ("2.50", 2_500_000_000),
        (15, 15_000_000_000),
        (Decimal("0.075"), 75_000_000),
        (10**6, 10**15),
    ],
)
def test_listed_prices(listed: float | str | Decimal, amount: int) -> None:
    """The usual ways to write a price."""
    assert usd_per_million(listed) == amount


@pytest.mark.parametrize("bad", [-1, "-0.1", "NaN", float("inf"), "cheap", True, "0.0000000001", 10**6 + 1])
def test_what_is_no_price_is_refused(bad: float | str) -> None:
    """Nothing becomes a price by accident, least of all zero."""
    with pytest.raises(ValueError, match=r"price|nano-dollars"):
        usd_per_million(bad)


def test_a_cache_without_a_price_costs_what_input_costs() -> None:
    """No discount is assumed that nobody gave."""
    price = price_from_usd(version="v1", input_usd="2.5", output_usd=10, cache_write_usd="3.125")
    assert (price.cached_input_nanousd, price.cache_write_nanousd) == (2_500_000_000, 3_125_000_000)


def by_unit(*units: UnitPrice, tokens: int = 0, **more: Any) -> Price:
    return msgspec.structs.replace(
        price_from_usd(version="v1", input_usd=tokens, output_usd=tokens), units=units, **more
    )


def test_what_is_billed_by_a_unit_is_rounded_once() -> None:
    """Minutes of sound, with tokens and the request beside them: half a nano-dollar is one, less is none."""
    spoken = by_unit(unit_price("second", Decimal("0.0001")))
    assert spoken.units[0].usd == Decimal("0.0001")
    assert spoken.cost_nanousd(Usage(unit="second", quantity_milli=1_500)) == 150_000
    assert spoken.units_nanousd("second", 1_500) == 150_000
    assert (spoken.cost_nanousd(Usage(unit="image", quantity_milli=1_000)), spoken.units_nanousd("image", 1_000)) == (
        0,
        None,
    )
    half, less = (by_unit(UnitPrice(unit="second", nanousd=amount)) for amount in (999_999, 999_998))
    usage = Usage(unit="second", quantity_milli=500)
    assert [price.cost_nanousd(usage) for price in (half, less)] == [1, 0]
    # What is held before a call is never less than what it costs.
    assert [price.units_nanousd("second", 500) for price in (half, less)] == [1, 1]
    with pytest.raises(ValueError, match="whole number"):
        unit_price("second", Decimal("1e-16"))


def test_units_and_tokens_add_up() -> None:
    """What a unit costs is with the request; the parts are the running total's."""
    price = msgspec.structs.replace(
        by_unit(UnitPrice(unit="second", nanousd=1_000_000), request_nanousd=7),
        input_nanousd=300_000,
        output_nanousd=100_000,
    )
    usage = Usage(input_tokens=15, output_tokens=12, unit="second", quantity_milli=100)
    assert price.costs_nanousd(usage) == by_meter(input=5, output=1, request=7)
    assert price.cost_nanousd(usage) == 13
    longer = msgspec.structs.replace(usage, quantity_milli=800)
    assert price.costs_nanousd(longer) == by_meter(input=5, output=1, request=8)
    assert price.cost_nanousd(longer) == 14
    # A unit without a price adds nothing, not a millionth of a nano-dollar.
    other = msgspec.structs.replace(price, input_nanousd=499_999, request_nanousd=0)
    assert other.cost_nanousd(Usage(input_tokens=1, unit="image", quantity_milli=1_000)) == 0


@pytest.mark.parametrize(
    ("unit", "amount"),
    [("image/hd/1024x1792", 3), ("image/hd/512x512", 2), ("image/low", 1), ("image", 1), ("second", None)],
)
def test_a_unit_has_the_price_of_the_more_general_one(unit: str, amount: int | None) -> None:
    """Of its quality and size, of its quality, of itself; or none."""
    names = ("image", "image/hd", "image/hd/1024x1792")
    price = by_unit(*(UnitPrice(unit=name, nanousd=place) for place, name in enumerate(names, 1)))
    found = price.priced_unit(unit)
    assert (found and found.nanousd) == amount
    assert price.covers(Usage(unit=unit, quantity_milli=1_000)) == (amount is not None)


def test_what_has_no_known_price_is_not_covered() -> None:
    """Where units have a price and no token has, tokens are unknown, not free; without units they are as the figures say."""
    image = UnitPrice(unit="image", nanousd=1)
    alone, free = by_unit(image), by_unit()
    assert (alone.has_tokens, free.has_tokens) == (False, True)
    for name in ("input_nanousd", "output_nanousd"):
        assert msgspec.structs.replace(alone, **{name: 1}).has_tokens
        assert msgspec.structs.replace(alone, **{name: 1}).covers(Usage(input_tokens=1))
    for usage in (Usage(input_tokens=1), Usage(output_tokens=1), Usage(input_tokens=1, output_tokens=1)):
        assert (alone.covers(usage), free.covers(usage)) == (False, True)
    assert alone.covers(Usage())
    assert not free.covers(Usage(unit="image", quantity_milli=1_000))


def test_a_service_tier_has_its_price_or_the_usual_one() -> None:
    """Each its own."""
    tiers = {"flex": PLAIN.named("cheap"), "priority": PLAIN.named("dear")}
    price = msgspec.structs.replace(PLAIN, **tiers)
    assert [price.of_tier(tier) for tier in (None, "flex", "priority")] == [price, tiers["flex"], tiers["priority"]]
    assert [PLAIN.of_tier(tier) for tier in SERVICE_TIERS] == [PLAIN, PLAIN]
    assert price.named("") == msgspec.structs.replace(PLAIN.named(""), flex=PLAIN.named(""), priority=PLAIN.named(""))


def test_calls_of_tools_cost_what_each_costs() -> None:
    """Those without a price are named, and a search of a size has that of a search."""
    price = msgspec.structs.replace(PLAIN, tool_calls=(("web_search", 10), ("web_search_low", 4), ("code", 0)))
    assert price.calls_nanousd([("web_search", 3), ("web_search_low", 2), ("code", 5), ("other", 1)]) == (
        38,
        ("other",),
    )
    assert [price.call_nanousd(name) for name in ("web_search_high", "web_search_low", "other")] == [10, 4, None]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"units": (UnitPrice(unit="x" * 70, nanousd=1),)}, f"'{'x' * 64}' is no unit"),
        ({"units": (UnitPrice(unit="image", nanousd=1),) * 2}, "each once"),
        ({"units": tuple(UnitPrice(unit=f"image/{place}", nanousd=1) for place in range(65))}, "at most 64 units"),
        *(
            ({"units": (UnitPrice(unit="image", nanousd=figure),)}, "no price for a million")  # type: ignore[arg-type]
            for figure in (-1, 10**18 + 1, True, 1.5)
        ),
        *(({"tool_calls": (("code", figure),)}, "a call of a tool") for figure in (-1, 10**15 + 1, True, 1.5)),
        *(({"batch": msgspec.structs.replace(PLAIN, **{name: PLAIN})}, "no other price") for name in SERVICE_TIERS),
        *(
            (
                {"long_prompts": (LongPrompt(above_tokens=1, price=msgspec.structs.replace(PLAIN, **{name: PLAIN})),)},
                "no further prices",
            )
            for name in SERVICE_TIERS
        ),
    ],
)
def test_no_unit_call_or_tier_that_makes_no_sense_can_be_made(changes: dict[str, Any], says: str) -> None:
    """Nor one within another."""
    with pytest.raises(ValueError, match=says):
        msgspec.structs.replace(PLAIN, **changes)


def test_the_bounds_of_figures_are_prices() -> None:
    """Nothing, and the most, of each kind."""
    units = tuple(UnitPrice(unit=f"image/{place}", nanousd=place % 2 * 10**18) for place in range(64))
    most = {"input_nanousd": 10**15, "output_nanousd": 0, "version": "x" * 200}
    tiers = tuple(LongPrompt(above_tokens=n, price=PLAIN) for n in range(1, 17))
    price = msgspec.structs.replace(
        PLAIN, **most, units=units, tool_calls=(("code", 10**15), ("other", 0)), long_prompts=tiers
    )
    assert from_json(to_json(price)) == price
