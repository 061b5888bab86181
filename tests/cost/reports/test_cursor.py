"""Cursors: opaque, and refused when they are not what was given out."""

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.reports.cursor import decode_cursor, encode_cursor
from cost.reports.report_errors import BadQuery

QUERY = {"of": "somebody"}


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=200), st.integers(0, 2**62))
def test_what_goes_in_comes_out(text: str, number: int) -> None:
    """Any text and number that a column holds, and the cursor needs no escaping in an address."""
    cursor = encode_cursor(QUERY, [text, number])
    assert decode_cursor(cursor, QUERY, (str, int)) == (text, number)
    assert set(cursor) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@given(st.text(max_size=300))
def test_anything_else_is_refused(text: str) -> None:
    """Never another error than BadQuery."""
    with pytest.raises(BadQuery):
        decode_cursor(text, QUERY, (str,))


@pytest.mark.parametrize(
    "values",
    [
        ["a"],
        [1, 2],
        ["a", True],
        ["a", None],
        ["a", 1.5],
        ["a\x00", 1],
        ["a", 2**63],
        ["a", 1, 1],
        ["x" * 500, 1],
        [["a"], 1],
    ],
)
def test_forged_values_are_refused(values: list[object]) -> None:
    """Right fingerprint, wrong kinds: what PostgreSQL could not even be asked never gets there."""
    fingerprint = msgspec.json.decode(base64.urlsafe_b64decode(encode_cursor(QUERY, []) + "=="))[0]
    forged = base64.urlsafe_b64encode(msgspec.json.encode([fingerprint, *values])).decode()
    with pytest.raises(BadQuery):
        decode_cursor(forged, QUERY, (str, int))


def test_a_huge_one_is_not_even_read() -> None:
    """Its length has a bound."""
    with pytest.raises(BadQuery, match="too long"):
        decode_cursor("A" * 5_000, QUERY, (str,))
