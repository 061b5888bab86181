"""The page reader: what it finds, and what it refuses to believe."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfhosted.engines.prometheus_text import (
    MAX_LINE_BYTES,
    MAX_LINES,
    MAX_SAMPLES,
    PageReader,
    PageUnreadable,
    Sample,
    sound,
)

READER = PageReader(("a:x", "a:x_total", "b"))


def values(page: str) -> dict[str, list[float] | None]:
    read = READER.read(page.encode())
    return {name: None if samples is None else [sample.value for sample in samples] for name, samples in read.items()}


def test_wanted_lines_are_found_and_others_are_not() -> None:
    """Names are matched whole: a longer or a commented one is another."""
    page = '# HELP a:x of b\n# TYPE b gauge\na:x{l="1"} 1\na:x_created{l="1"} 9\na:xy 3\na:x_total 2 1700000000000\nb\t4\r\nbb 5\n'
    assert values(page) == {"a:x": [1.0], "a:x_total": [2.0], "b": [4.0]}


def test_the_first_line_counts() -> None:
    """A page may begin with a wanted metric."""
    assert values("b 1\n") == {"b": [1.0]}


def test_labels_are_unescaped() -> None:
    """Quotes, backslashes, line feeds and braces within a value are the value's own."""
    (sample,) = READER.read(rb'b{one="a\"b\\n\n}",two=",",} 1' + b"\n")["b"] or ()
    assert sample.labels() == {"one": 'a"b\\n\n}', "two": ","}


@pytest.mark.parametrize(
    "line",
    [
        "b NaN", "b -1", "b +Inf", "b 1e16", "b 1_000", "b", "b{", 'b{l="1} 1', "b one", "b 1 2 3", 'b{l="1"}',
        'b{l="' + "x" * MAX_LINE_BYTES + '"} 1',
    ],
)  # fmt: skip
def test_nonsense_makes_its_metric_unknown_and_no_other(line: str) -> None:
    """One bad series spoils the sum of its metric; what stands beside it is still read."""
    read = values(f'b{{l="fine"}} 1\n{line}\nb{{l="later"}} 1\na:x 2\n')
    assert read["a:x"] == [2.0]
    assert read["b"] is None or line == "b"


def test_the_same_series_twice_is_unknown() -> None:
    """It cannot be both."""
    assert values('b{l="1"} 1\nb{l="2"} 1\nb{l="1"} 1\n') == {"b": None}


@pytest.mark.parametrize("page", ["", "b 1", "b 1\na:x 2", "\n" * (MAX_LINES + 1)])
def test_a_page_that_was_cut_or_has_no_end_is_not_read(page: str) -> None:
    """What is missing would count as nothing."""
    with pytest.raises(PageUnreadable):
        READER.read(page.encode())


def test_too_many_series_are_not_read() -> None:
    """Nor kept in memory."""
    with pytest.raises(PageUnreadable):
        READER.read(b"".join(b'b{l="%d"} 1\n' % number for number in range(MAX_SAMPLES + 1)))


@given(st.binary(max_size=300))
def test_no_bytes_break_it(noise: bytes) -> None:
    """Whatever comes, a page is read or refused, and every figure is sound."""
    for page in (noise, noise + b"\n", b"b" + noise + b"\n", b'b{l="' + noise + b'"} 1\n'):
        try:
            read = READER.read(page)
        except PageUnreadable:
            continue
        for samples in read.values():
            for sample in samples or ():
                assert 0 <= sample.value < math.inf
                sample.labels()


@given(st.text(alphabet="0123456789.eE+-_naifNIF ", max_size=12))
def test_a_sound_number_is_finite_and_not_negative(text: str) -> None:
    """Whatever stands there."""
    value = sound(text.encode())
    assert value is None or 0 <= value < math.inf


def test_a_line_made_to_be_slow_is_gone_over_once() -> None:
    """Thousands of almost-labels do not make the reader go back and forth."""
    line = b"b{" + b'a="\\\\' * 2_000 + b"\n"
    assert READER.read(line * 100) == {"b": None}


def test_a_sample_without_labels_has_none() -> None:
    """An empty pair of braces is the same as none."""
    assert Sample(b"", 1.0).labels() == {}
    assert values("b{} 1\n") == {"b": [1.0]}
