"""litellm's table, read as data."""

import gzip
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.errors import PriceTableMissing, UnknownPrice
from cost.meters import METER_NAMES, METERS
from cost.price_book.litellm_table import MOST_ROWS, LitellmTable, priced, read_table, table_in
from cost.price_book.shipped_table import PATH, PROVIDERS, reduced
from cost.prices import Price, usd
from providers.known_providers import known_providers


def table(tmp_path: Path, **rows: Any) -> LitellmTable:
    """A table as litellm would package it; figures are given as the text that stands in its file."""
    path = tmp_path / "table.json"
    text = json.dumps(rows)
    path.write_text(text.replace('"#', "").replace('#"', ""))
    return table_in(path, "9.9")


def amount(text: str) -> str:
    """A number that stands in the file just so."""
    return f"#{text}#"


def row(**figures: str) -> dict[str, Any]:
    return {"mode": "chat", **{name: amount(figure) for name, figure in figures.items()}}


PLAIN = row(input_cost_per_token="2.5e-06", output_cost_per_token="0.00001")


_READ = ("input", "cached_input", "cache_write", "cache_write_1h", "output", "reasoning", "request")
"""Meters that litellm's table has prices of."""


def dollars(price: Price | None) -> list[str]:
    assert price is not None
    figures = dict(zip(METER_NAMES, price.figures(), strict=True))
    return [f"{usd(figures[name]).normalize():f}" for name in _READ]


def test_figures_are_read_exactly(tmp_path: Path) -> None:
    """Dollars for a token become dollars for a million without a float in between."""
    price = table(tmp_path, m=PLAIN).price("m")
    assert dollars(price) == ["2.5", "2.5", "2.5", "2.5", "10", "10", "0"]
    assert price is not None
    assert price.version == "litellm-9.9"


@given(st.integers(1, 10**15))
def test_no_digit_is_lost(nanousd: int) -> None:
    """Any figure of whole nano-dollars a million survives."""
    text = f"{nanousd // 10**15}.{nanousd % 10**15:015}"
    found = LitellmTable("9", {"m": json.loads(f'{{"input_cost_per_token": {text}}}', parse_float=Decimal)})
    found.rows["m"]["output_cost_per_token"] = 1  # type: ignore[index]
    price = found.price("m")
    assert price is not None
    assert price.input_nanousd == nanousd


def test_the_noise_of_floats_is_rounded_away(tmp_path: Path) -> None:
    """What somebody computed with floats is what he meant, to a nano-dollar a million."""
    noisy = row(input_cost_per_token="0.000015000020000000002", output_cost_per_token="1.3200000000000002E-7")
    assert dollars(table(tmp_path, m=noisy).price("m"))[::4] == ["15.00002", "0.132"]


def test_every_meter_has_its_figure(tmp_path: Path) -> None:
    """Cache reads, writes for five minutes and an hour, reasoning, and requests."""
    full = row(
        input_cost_per_token="3e-06",
        output_cost_per_token="15e-06",
        cache_read_input_token_cost="3e-07",
        cache_creation_input_token_cost="3.75e-06",
        cache_creation_input_token_cost_above_1hr="6e-06",
        output_cost_per_reasoning_token="2e-05",
        input_cost_per_request="0.005",
    )
    price = table(tmp_path, m=full).price("m")
    assert price is not None
    assert dollars(price)[:6] == ["3", "0.3", "3.75", "6", "15", "20"]
    assert price.request_nanousd == 5_000_000


def test_long_prompts_have_their_figures(tmp_path: Path) -> None:
    """Every `above_…k_tokens` there is; what it leaves out is as usual; priority and flex are not read."""
    long = PLAIN | row(
        cache_read_input_token_cost="1e-06",
        input_cost_per_token_above_128k_tokens="5e-06",
        output_cost_per_token_above_200k_tokens="2e-05",
        input_cost_per_token_above_272k_tokens_priority="1",
        cache_creation_input_token_cost_above_1hr_above_200k_tokens="9e-06",
    )
    price = table(tmp_path, m=long).price("m")
    assert price is not None
    assert [(each.above_tokens, dollars(each.price)) for each in price.long_prompts] == [
        (128_000, ["5", "1", "5", "5", "10", "10", "0"]),
        (200_000, ["2.5", "1", "2.5", "9", "20", "20", "0"]),
    ]


def test_brackets_become_prices_for_long_prompts(tmp_path: Path) -> None:
    """Rows that have their prices by the prompt's length, from the first bracket on."""
    brackets = [
        {
            "range": [0, amount("32000.0")],
            "input_cost_per_token": amount("1e-06"),
            "output_cost_per_token": amount("2e-06"),
        },
        {
            "range": [amount("32000.0"), amount("1e6")],
            "input_cost_per_token": amount("3e-06"),
            "output_cost_per_token": amount("4e-06"),
        },
    ]
    price = table(tmp_path, m={"mode": "chat", "tiered_pricing": brackets}).price("m")
    assert dollars(price)[0] == "1"
    assert price is not None
    assert [(each.above_tokens, dollars(each.price)[0]) for each in price.long_prompts] == [(32_000, "3")]


def test_batches_have_their_figures(tmp_path: Path) -> None:
    """What is left out for batches has their discount; without figures there is no discount."""
    batch = PLAIN | row(
        cache_read_input_token_cost="1e-06",
        input_cost_per_token_batches="1.25e-06",
        output_cost_per_token_batches="4e-06",
        input_cost_per_token_above_200k_tokens="5e-06",
        output_cost_per_token_above_200k_tokens="2e-05",
    )
    price = table(tmp_path, m=batch).price("m")
    assert price is not None
    assert price.batch is not None
    assert dollars(price.batch) == ["1.25", "0.5", "1.25", "1.25", "4", "4", "0"]
    assert dollars(price.batch.long_prompts[0].price) == ["2.5", "0.5", "2.5", "2.5", "8", "8", "0"]
    plain = table(tmp_path, m=PLAIN).price("m")
    assert plain is not None
    assert plain.batch is None


@pytest.mark.parametrize(
    "unknown",
    [
        {},
        row(input_cost_per_token="1e-06"),
        row(output_cost_per_token="1e-06"),
        row(input_cost_per_token="0", output_cost_per_token="0"),
        row(input_cost_per_token="1e-06", output_cost_per_token="0.0"),
        row(input_cost_per_token="0", output_cost_per_token="1e-06"),
        row(input_cost_per_token="-1e-06", output_cost_per_token="1e-06"),
        row(input_cost_per_token="2", output_cost_per_token="1e-06"),
        row(input_cost_per_token="true", output_cost_per_token="1e-06"),
        row(output_cost_per_token="1e-06") | {"input_cost_per_token": "1e-06"},
        row(input_cost_per_token="null", output_cost_per_token="1e-06"),
        {"mode": "chat", "tiered_pricing": [7, {"range": []}, {"range": [0]}]},
    ],
)
def test_what_is_not_known_is_no_price(tmp_path: Path, unknown: dict[str, Any]) -> None:
    """Missing, zero, negative, absurd or no number: None, and never 0."""
    assert table(tmp_path, m=unknown).price("m") is None


def test_a_zero_counts_where_it_can_be_true(tmp_path: Path) -> None:
    """Embeddings generate nothing, and a request may have its price for all of its prompt."""
    made = table(
        tmp_path,
        embedding=row(input_cost_per_token="1e-07", output_cost_per_token="0.0") | {"mode": "embedding"},
        search=row(input_cost_per_token="0", output_cost_per_token="1e-06", input_cost_per_request="0.005"),
        free_cache=PLAIN | row(cache_read_input_token_cost="0", cache_creation_input_token_cost="0"),
    )
    assert dollars(made.price("embedding"))[4] == "0"
    assert dollars(made.price("search"))[0] == "0"
    # A cache that is said to cost nothing costs what input does.
    assert dollars(made.price("free_cache"))[:3] == ["2.5", "2.5", "2.5"]


def test_an_unknown_name_is_told_with_what_was_meant(tmp_path: Path) -> None:
    """A name that is not there and one without prices are told apart."""
    made = table(tmp_path, **{"gpt-4o": PLAIN, "own": {}})
    assert priced(made, "gpt-4o") == made.price("gpt-4o")
    with pytest.raises(UnknownPrice, match="has no `gtp-4o`; did you mean `gpt-4o`"):
        priced(made, "gtp-4o")
    with pytest.raises(UnknownPrice, match="has `own`, but not what a token of it costs"):
        priced(made, "own")


@pytest.mark.parametrize(
    "text", ["[]", "{", "\xff", '{"a": ' * 100_000, json.dumps(dict.fromkeys(range(MOST_ROWS + 1)))]
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """Broken, deep, of another shape, or with more rows than anybody has."""
    path = tmp_path / "table.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(PriceTableMissing, match=r"litellm 9\.9"):
        table_in(path, "9.9")
    path.unlink()
    with pytest.raises(PriceTableMissing, match="has no table"):
        table_in(path, "9.9")


def test_the_installed_table_is_read_without_importing_litellm() -> None:
    """Importing it would take seconds. Its version is the installed release's, and its well-known rows have prices."""
    code = (
        "import sys; from cost.price_book.litellm_table import read_table; found = read_table();"
        "print(found.version, found.price('gpt-4o') is not None, found.price('sample_spec'), 'litellm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    version, known, sample, imported = done.stdout.split()
    assert version.startswith("litellm-1.")
    assert (known, sample, imported) == ("True", "None", "False")


def test_without_litellm_there_is_the_part_that_comes_with_the_gateway() -> None:
    """Models that are called without litellm, at the same prices; a missing name says how to have all of them."""
    part, whole = read_table("litellm_elsewhere"), read_table()
    assert (part.whole, whole.whole, part.version) == (False, True, whole.version)
    for name in (
        "gpt-4o",
        "azure/gpt-4o",
        "mistral/mistral-large-latest",
        "claude-sonnet-4-5",
        "text-embedding-3-small",
        "whisper-1",
        "tts-1",
        "gpt-image-1",
        "omni-moderation-latest",
        "rerank-v3.5",
    ):
        assert part.price(name) == whole.price(name) is not None
    with pytest.raises(UnknownPrice, match=r"no `zzz`\. .* `pip install 'weighbridge\[litellm\]'` brings all"):
        priced(part, "zzz")


def test_the_part_that_comes_with_the_gateway_is_of_the_pinned_litellm() -> None:
    """Of the same release, with every figure that is read: `python -m cost.price_book.litellm_table` makes it anew."""
    whole, part = read_table(), read_table("litellm_elsewhere")
    assert gzip.decompress(PATH.read_bytes()) == gzip.decompress(reduced(whole.release, whole.rows))
    assert len(part.rows) > 1_000
    # Whoever is called without litellm has its models there.
    assert {each.prices for each in known_providers() if each.prices and each.litellm in {"", "anthropic"}} <= PROVIDERS
    assert all(part.price(name) == whole.price(name) for name in part.rows)


def test_a_package_that_was_never_installed_has_no_table() -> None:
    """It has no version that its prices could be told by."""
    with pytest.raises(PriceTableMissing, match="no version"):
        read_table("cost")


_TEXT_ALONE: Final[dict[str, str]] = {}


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("gpt-audio", {"audio_input": "32", "cached_audio_input": "32", "audio_output": "64"}),
        ("gpt-4o-audio-preview-2025-06-03", {"audio_input": "40", "cached_audio_input": "40", "audio_output": "80"}),
        ("gpt-audio-mini", {"audio_input": "10", "cached_audio_input": "10", "audio_output": "20"}),
        ("gemini/gemini-2.5-flash", {"audio_input": "1", "cached_audio_input": "0.1"}),
        ("gemini/gemini-3-flash-preview", {"audio_input": "1", "cached_audio_input": "0.1"}),
        ("gemini/gemini-2.5-flash-image", {"audio_input": "1", "image_output": "30"}),
        ("gpt-image-1.5", {"image_input": "8", "cached_image_input": "2", "image_output": "32"}),
        ("gemini/gemini-omni-1.1-flash", {"video_output": "17.5"}),
        # Pictures cost what text does, for long prompts too; a model of text alone has none of them.
        ("xai/grok-4.5", _TEXT_ALONE),
        ("gpt-4o", _TEXT_ALONE),
    ],
)
def test_sound_and_pictures_have_the_figures_of_the_installed_table(name: str, own: dict[str, str]) -> None:
    """Each has its price where it differs from that of text, and follows it everywhere else."""
    price = read_table().price(name)
    assert price is not None
    told = {each.name: getattr(price, f"{each.name}_nanousd") for each in METERS if each.medium}
    assert {meter: f"{usd(amount).normalize():f}" for meter, amount in told.items() if amount is not None} == own
    for tier in price.long_prompts:
        figures = dict(zip(METER_NAMES, tier.price.figures(), strict=True))
        assert all(
            figures[each.name] == figures[each.within] for each in METERS if each.medium and each.name not in own
        )


def test_a_tier_without_a_figure_for_sound_has_its_discount() -> None:
    """What the table leaves out of gemini-2.5-flash's flex is the usual figure at the discount of its input."""
    price = read_table().price("gemini/gemini-2.5-flash")
    assert price is not None
    assert price.flex is not None
    assert price.batch is not None
    assert price.priority is not None
    tiers = (price.flex, price.batch, price.priority)
    assert [each.audio_input_nanousd for each in tiers] == [500_000_000, 500_000_000, 1_800_000_000]


def test_no_row_of_the_installed_table_is_free() -> None:
    """Every row has a price above 0 or none at all, but for moderation, which is free; and reading it never fails."""
    found = read_table()
    prices = {name: price for name in found.rows if (price := found.price(name)) is not None}
    assert len(prices) > 1_000
    free = [name for name, each in prices.items() if not (each.input_nanousd or each.request_nanousd or each.units)]
    assert {found.rows[name]["mode"] for name in free} == {"moderation"}
    assert all(figure.nanousd > 0 for each in prices.values() for figure in each.units)
