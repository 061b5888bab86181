"""Numbers as people read them."""

from decimal import Decimal

import pytest

from dashboards.ui import formats

_DOLLAR = 1_000_000_000


@pytest.mark.parametrize(
    ("nanousd", "expected"),
    [
        (None, "—"),
        (0, "$0.00"),
        (1, "$0.000000001"),
        (-12, "-$0.000000012"),
        (42_345, "$0.000042"),
        (99_999, "$0.000100"),
        (123_456, "$0.0001"),
        (12_345_678, "$0.0123"),
        (_DOLLAR // 2, "$0.50"),
        (-3 * _DOLLAR, "-$3.00"),
        (1_234 * _DOLLAR + 567_000_000, "$1,234.57"),
        (98_765 * _DOLLAR, "$98,765"),
        (12_345_678 * _DOLLAR, "$12,345,678"),
    ],
)
def test_money(nanousd: int | None, expected: str) -> None:
    """Small amounts are told from nothing, large ones have no cents, and what is unknown is no zero."""
    assert formats.money(nanousd) == expected


def test_exact_money() -> None:
    """All nine digits."""
    assert formats.exact_money(1_234_000_000_001) == "$1,234.000000001"
    assert formats.exact_money(-5_326_744_277) == "-$5.326744277"
    assert formats.exact_money(None) == "unknown"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "—"),
        (0, "0"),
        (9_999, "9,999"),
        (12_345, "12.3k"),
        (999_999, "1,000k"),
        (1_240_000, "1.24M"),
        (-20_000, "-20k"),
    ],
)
def test_short(value: int | None, expected: str) -> None:
    """At most four digits and a letter."""
    assert formats.short(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "—"), (0.0, "0.0 %"), (0.0001, "<0.1 %"), (0.4567, "45.7 %"), (1, "100.0 %"), (-0.25, "-25.0 %")],
)
def test_share(value: float | None, expected: str) -> None:
    """A part of one."""
    assert formats.share(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "—"), (0.0, "0 ms"), (0.0042, "4.2 ms"), (0.25, "250 ms"), (1.234, "1.23 s"), (45, "45.0 s"), (61, "1 min 1 s"), (120, "2 min"), (7_380, "2 h 3 min"), (28_800, "8 h"), (259_200, "3.0 days"), (-0.05, "-50 ms"), (-1.5, "-1.50 s")],
)  # fmt: skip
def test_seconds(value: float | None, expected: str) -> None:
    """A duration in the unit that reads best."""
    assert formats.seconds(value) == expected


def test_times() -> None:
    """UTC, to the second, to the day, and for machines."""
    at_us = 1_790_000_000_123_456
    assert formats.moment(at_us) == "2026-09-21 14:13:20 UTC"
    assert formats.day(at_us) == "2026-09-21"
    assert formats.iso(at_us) == "2026-09-21T14:13:20.123Z"


def test_size_number_and_plural() -> None:
    """The rest."""
    assert [formats.size(each) for each in (None, 10, 2048, 5 * 2**30)] == ["—", "10 B", "2 KiB", "5 GiB"]
    assert [formats.number(each) for each in (None, 1_234_567, 0.123456, 1234.5)] == [
        "—",
        "1,234,567",
        "0.123",
        "1,234",
    ]
    assert [formats.plural(each, "request") for each in (1, 2_000)] == ["1 request", "2,000 requests"]


def test_what_is_not_all_does_not_read_as_all() -> None:
    """Nor is what the books say more exactly rounded up to a promise."""
    assert [formats.share(each) for each in (0.9999, Decimal("0.99901"), 0.999, 1, 1.0004)] == [
        ">99.9 %",
        ">99.9 %",
        "99.9 %",
        "100.0 %",
        "100.0 %",
    ]
    assert formats.share(Decimal(5_800)) == "580,000.0 %"
    assert formats.exact_share(Decimal("0.3999")) == "39.99 %"
    assert formats.exact_share(Decimal("-0.05")) == "-5.00 %"
    assert formats.exact_share(None) == "—"


def test_backticks_are_code_and_days_stay_whole() -> None:
    """Whatever else a text has is text."""
    assert formats.coded("`a<b>` and <i>") == "<code>a&lt;b&gt;</code> and &lt;i&gt;"
    assert formats.unbroken("not: 2026-10-30 <i>, 2026-10-31.") == (
        'not: <span class="figure-text">2026-10-30</span> &lt;i&gt;, <span class="figure-text">2026-10-31</span>.'
    )
