"""Shapes of beginnings: what is masked, and where two of a kind part."""

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfhosted.prefixes.shape import KINDS, Break, PrefixShape, masked_break, other_break, shape_of

KEY = b"a key of this test"
RULES = (
    "You answer questions of customers about their orders. Be kind, be brief, and never promise a refund. "
    "When an order is late, say so and offer the form. Do not speak of other customers.\n"
)
LONG = RULES * 12


def shape(text: str, key: bytes = KEY) -> PrefixShape:
    return shape_of(text.encode(), key)


def kinds(found: Break | None) -> list[str]:
    return [] if found is None else [KINDS[kind] for kind in found.kinds]


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("2026-11-22", "2026-11-23", "date"),
        ("22.11.2026", "1.12.2026", "date"),
        ("11/22/26", "11/23/26", "date"),
        ("November 22, 2026", "Dec 1st, 2026", "date"),
        ("22 November 2026", "23rd of November 2026", "date"),
        ("Sunday", "Monday", "date"),
        ("2026-11-22T10:33:12Z", "2026-11-22T10:33:13.250Z", "time"),
        ("2026-11-22 10:33:12 UTC", "2026-11-22 10:33:12 +01:00", "time"),
        ("10:33", "9:05 pm", "clock"),
        ("550e8400-e29b-41d4-a716-446655440000", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "uuid"),
        ("deadbeef00112233", "0badcafe99887766", "hex"),
        ("8fJk29dkL2mQ", "Zz81kslwp0aa", "id"),
        ("9", "10", "number"),
        ("1,234.56", "7", "number"),
    ],
)
def test_what_varies_is_masked(one: str, other: str, kind: str) -> None:
    """Two beginnings that differ in a date, an id or a number have one skeleton, and it is told where and what."""
    first, second = shape(f"Now: {one}. {LONG}"), shape(f"Now: {other}. {LONG}")
    assert first.skeleton == second.skeleton
    found = masked_break(first, second)
    assert found is not None
    assert (found.at, kinds(found)) == (len("Now: "), [kind])
    assert found.same_after == len(f". {LONG}")


def test_the_same_is_not_broken() -> None:
    """Equal beginnings, and those that differ only behind what is looked at, do not part."""
    assert masked_break(shape(f"Since 2026. {LONG}"), shape(f"Since 2026. {LONG}")) is None
    assert masked_break(shape(LONG * 20 + "2026-11-22"), shape(LONG * 20 + "2026-11-23")) is None


def test_a_longer_number_moves_nothing() -> None:
    """A counter that grows by digits keeps the skeleton also of a text that is longer than what is looked at."""
    first, second = shape(f"Request 9 of 3. {LONG * 8}"), shape(f"Request 1000 of 3. {LONG * 8}")
    found = masked_break(first, second)
    assert first.skeleton == second.skeleton
    assert found is not None
    assert found.same_after == len(f" of 3. {LONG * 8}")


def test_of_an_end_that_differs_too_only_the_rest_counts() -> None:
    """Behind the part that is looked at, what is not the same as a whole is not said to be lost."""
    found = masked_break(shape(f"At 9. {LONG * 8} one end"), shape(f"At 8. {LONG * 8} another end"))
    assert found is not None
    assert 6_000 < found.same_after < 6_200


def test_a_name_between_parts_that_stay() -> None:
    """What no mask knows is found by what comes again after it."""
    first, second = shape(f"You help Alice Moore.\n{LONG}"), shape(f"You help Bob.\n{LONG}")
    assert first.skeleton != second.skeleton
    found = other_break(first, second)
    assert found is not None
    assert (found.at, kinds(found)) == (0, ["other"])
    # One line comes twelve times; each of them is counted.
    assert found.same_after == pytest.approx(len(LONG), abs=200)


def test_prompts_that_only_begin_or_end_alike_are_no_kind() -> None:
    """Documents after a common beginning break nothing, and a common closing line makes no family."""
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefgh", k=7)) for _ in range(800)]
    one, other = " ".join(words[:400]), " ".join(words[400:])
    assert other_break(shape(f"{RULES}{one}"), shape(f"{RULES}{other}")) is None
    assert other_break(shape(f"{one}.\nBe kind."), shape(f"{other}.\nBe kind.")) is None


def test_without_the_key_a_skeleton_cannot_be_guessed() -> None:
    """Another key gives other names, and no part of the text is in the shape."""
    assert shape(LONG).skeleton != shape(LONG, b"another").skeleton
    assert b"customers" not in repr(shape(LONG)).encode()


@given(st.binary(max_size=3_000), st.binary(max_size=3_000))
def test_any_bytes(one: bytes, other: bytes) -> None:
    """Whatever the bytes, NUL and broken UTF-8 too, a shape is made, and no break is longer than the text."""
    first, second = shape_of(one, KEY), shape_of(other, KEY)
    assert first == shape_of(one, KEY)
    assert sum(second.chunk_lengths) <= second.length + 1
    for found in (masked_break(first, second), other_break(first, second)):
        if found is not None:
            assert 0 <= found.at <= len(other)
            assert 0 <= found.same_after <= len(other)


@pytest.mark.parametrize("text", [b"1 " * 40_000, b"a1" * 40_000, b"1:" * 40_000, b"Mon" * 30_000, b"." * 80_000])
def test_no_text_takes_long(text: bytes) -> None:
    """No text makes the patterns go back and forth for ever: each of these ends, and soon enough to be called a hundred
    times here.
    """
    assert len({shape_of(text, KEY).skeleton for _ in range(100)}) == 1


def test_shapes_are_small() -> None:
    """A shape keeps a few kilobytes, whatever it is made of."""
    for text in (b"1 " * 40_000, b"a. " * 30_000, hashlib.sha512(b"x").hexdigest().encode() * 700):
        made = shape_of(text, KEY)
        arrays = (made.starts, made.lengths, made.hashes, made.chunks, made.chunk_lengths)
        assert sum(len(each) * each.itemsize for each in arrays) + len(made.kinds) < 4_096
