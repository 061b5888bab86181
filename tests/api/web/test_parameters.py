"""Parameters of finance's questions: what is understood, and that anything else is one clear refusal."""

import contextlib
import datetime as dt
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from api.web.parameters import Parameters
from cost.times import iso, start_of
from proxy.errors import BadRequest

NOON_US = 1_775_390_400_000_000
KNOWN = ("a", "b")


def given_(query: str) -> Parameters:
    return Parameters(QueryParams(query), KNOWN)


def test_both_spellings_of_a_list_are_one() -> None:
    """`a[]` and `a`, given several times or with commas, without what was said twice."""
    assert given_("a[]=x&a[]=y").listed("a", ("x", "y")) == ("x", "y")
    assert given_("a=x,y&a[]=x").listed("a", ("x", "y")) == ("x", "y")
    assert given_("a=x, y&a=z&a=z").texts("a") == ("x", "y", "z")
    assert given_("").listed("a", ("x",)) == ()


def test_single_values() -> None:
    """A text, a number, a flag, a word, each with its default."""
    found = given_("a=7&b=TRUE")
    assert (found.text("a"), found.whole("a", 1, least=1, most=9), found.flag("b")) == ("7", 7, True)
    assert found.one_of("a", "7", ("7", "8")) == "7"
    empty = given_("")
    assert (empty.text("a"), empty.whole("a", 3, least=1, most=9), empty.flag("a")) == (None, 3, None)
    assert empty.one_of("a", "8", ("7", "8")) == "8"
    assert (empty.day("a"), empty.moment_us("a")) == (None, None)


@pytest.mark.parametrize(
    "text", ["2026-04-05T12:00:00Z", "2026-04-05t12:00:00z", "2026-04-05T14:00:00+02:00", "2026-04-05 12:00Z"]
)
def test_a_moment_in_any_zone(text: str) -> None:
    """RFC 3339, with its zone."""
    assert given_(urlencode({"a": text})).moment_us("a") == NOON_US
    assert iso(NOON_US) == "2026-04-05T12:00:00Z"


def test_a_day() -> None:
    """A moment that is only a day is the day's beginning."""
    assert given_("a=2026-04-05").day("a") == dt.date(2026, 4, 5)
    assert given_("a=2026-04-05").moment_us("a") == start_of(dt.date(2026, 4, 5)) == NOON_US - 43_200_000_000


@pytest.mark.parametrize(
    ("query", "ask"),
    [
        ("c=1", lambda found: found),
        ("group-by=x", lambda found: found),
        ("&".join(["a=1"] * 201), lambda found: found),
        ("a=1&a=2", lambda found: found.text("a")),
        ("a=1&a[]=2", lambda found: found.text("a")),
        ("a=%00", lambda found: found.text("a")),
        ("a=x", lambda found: found.listed("a", ("y",))),
        ("a=", lambda found: found.listed("a", ("y",))),
        ("a=x", lambda found: found.one_of("a", "y", ("y",))),
        ("a=0", lambda found: found.whole("a", 1, least=1, most=9)),
        ("a=10", lambda found: found.whole("a", 1, least=1, most=9)),
        ("a=" + "9" * 400, lambda found: found.whole("a", 1, least=1, most=9)),
        ("a=1.0", lambda found: found.whole("a", 1, least=1, most=9)),
        ("a=%D9%A3", lambda found: found.whole("a", 1, least=1, most=9)),
        ("a=1e3", lambda found: found.whole("a", 1, least=1, most=9_999)),
        ("a=yes", lambda found: found.flag("a")),
        ("a=yesterday", lambda found: found.day("a")),
        ("a=2026-02-30", lambda found: found.day("a")),
        ("a=2026-W14-7", lambda found: found.day("a")),
        ("a=1969-12-31", lambda found: found.day("a")),
        ("a=9999-12-31", lambda found: found.day("a")),
        ("a=2026-04-05T12:00:00", lambda found: found.moment_us("a")),
        ("a=2026-04-05T12:30:00Z", lambda found: found.moment_us("a")),
        ("a=2026-04-05T12:00:00%2B05:30", lambda found: found.moment_us("a")),
        ("a=2026-04-05T25:00:00Z", lambda found: found.moment_us("a")),
        ("a=0001-01-01T00:00:00%2B23:00", lambda found: found.moment_us("a")),
        ("a=1775390400", lambda found: found.moment_us("a")),
    ],
)
def test_what_is_not_sound_is_refused(query: str, ask: Callable[[Parameters], Any]) -> None:
    """Unknown names, repeated single values, words, numbers and times out of bounds."""
    with pytest.raises(BadRequest):
        ask(given_(query))


@given(st.text(max_size=40))
def test_any_text_is_understood_or_refused(text: str) -> None:
    """Never another error than BadRequest, whatever a parameter says."""
    found = Parameters(QueryParams([("a", text)]), KNOWN)
    asks: list[Callable[[], Any]] = [
        lambda: found.text("a"),
        lambda: found.listed("a", ("x",)),
        lambda: found.whole("a", 1, least=-5, most=10**9),
        lambda: found.flag("a"),
        lambda: found.day("a"),
        lambda: found.moment_us("a"),
    ]
    for ask in asks:
        with contextlib.suppress(BadRequest):
            ask()
