"""The Accept header, by RFC 9110."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.web.accept import best_kind
from proxy.errors import NotAcceptable

OFFERED = ("application/json", "text/csv", "application/x-ndjson")
JSON, CSV, NDJSON = OFFERED


@pytest.mark.parametrize(
    ("accept", "best"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        ("text/csv", CSV),
        ("TEXT/CSV; charset=utf-8", CSV),
        ("text/*", CSV),
        ("application/*", JSON),
        ("application/x-ndjson", NDJSON),
        ("text/html, application/xhtml+xml, */*;q=0.8", JSON),
        ("application/json;q=0.5, text/csv;q=0.9", CSV),
        ("text/csv;q=0.5, application/json;q=0.501", JSON),
        ("*/*;q=0.1, application/json;q=0, text/csv;q=0.05", NDJSON),
        ("application/json;q=0, */*", CSV),
        ("text/csv; q=1.000", CSV),
        ("nonsense, text/csv", CSV),
    ],
)
def test_the_best_liked_kind(accept: str | None, best: str) -> None:
    """The closest range decides a kind's weight; of equals, the first that is offered."""
    assert best_kind(accept, OFFERED) == best


@pytest.mark.parametrize(
    "accept", ["text/html", "text/csv;q=0", "*/*;q=0", "image/*", "nonsense", "text/csv;q=2", ",,;;"]
)
def test_none_of_them(accept: str) -> None:
    """What takes none of the kinds, or is no Accept header at all, is told so."""
    with pytest.raises(NotAcceptable, match="application/json, text/csv"):
        best_kind(accept, OFFERED)


@given(st.text(max_size=200))
def test_any_text_is_answered(accept: str) -> None:
    """One of the kinds or NotAcceptable, never another error."""
    with contextlib.suppress(NotAcceptable):
        assert best_kind(accept, OFFERED) in OFFERED
