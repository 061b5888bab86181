"""The shape of keys, their checksum, and what is stored of them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.errors import MalformedKey, UnusablePepper
from accounts.keys import KEY_CHARS, MintedKey, Pepper, digest_key, mint_key, parse_key, usable_peppers

PEPPER = Pepper(id="p1", secret=b"a" * 32)
OTHER = Pepper(id="p2", secret=b"b" * 32)


def _mint(seed: int) -> MintedKey:
    return mint_key(PEPPER, random_bytes=random.Random(seed).randbytes)


@given(st.integers())
def test_a_minted_key_parses(seed: int) -> None:
    """Every key has its fixed length, and tells its public id and its last four characters."""
    minted = _mint(seed)
    assert len(minted.plaintext) == KEY_CHARS
    parsed = parse_key(minted.plaintext)
    assert (parsed.key_id, parsed.last4) == (minted.key_id, minted.last4)
    assert minted.last4 == minted.plaintext[-4:]


@given(st.integers(), st.integers(0, KEY_CHARS - 1), st.characters())
def test_one_wrong_character_is_noticed(seed: int, place: int, character: str) -> None:
    """A key with any one character replaced is refused without a lookup."""
    key = _mint(seed).plaintext
    mistyped = key[:place] + character + key[place + 1 :]
    if mistyped != key:
        with pytest.raises(MalformedKey):
            parse_key(mistyped)


@given(st.text(max_size=200))
def test_other_text_is_no_key(text: str) -> None:
    """Whatever is no key is refused as malformed, and with nothing else."""
    with pytest.raises(MalformedKey):
        parse_key(text)


def test_keys_differ() -> None:
    """Two keys from the system's randomness share neither id nor secret."""
    first, second = mint_key(PEPPER), mint_key(PEPPER)
    assert first.key_id != second.key_id
    assert first.plaintext[20:] != second.plaintext[20:]


def test_the_secret_has_all_of_its_random_bytes() -> None:
    """The greatest 32 bytes fit, so no randomness is cut off."""
    greatest = mint_key(PEPPER, random_bytes=lambda count: b"\xff" * count)
    smallest = mint_key(PEPPER, random_bytes=bytes)
    less_by_one = mint_key(PEPPER, random_bytes=lambda count: b"\xff" * (count - 1) + b"\xfe")
    assert len({greatest.plaintext, smallest.plaintext, less_by_one.plaintext}) == 3


def test_only_a_digest_of_the_whole_key_is_stored() -> None:
    """The digest depends on the pepper and on every part of the key, and the shown forms hide it."""
    minted = _mint(1)
    assert minted.digest == digest_key(minted.plaintext, PEPPER).hex()
    assert minted.digest != digest_key(minted.plaintext, OTHER).hex()
    assert digest_key(minted.plaintext, PEPPER) != digest_key(minted.plaintext[:-1], PEPPER)
    assert minted.plaintext not in repr(minted)
    assert "aaaa" not in repr(PEPPER)


def test_peppers_must_be_long_and_distinct() -> None:
    """A short pepper, two of one name, or none at all are refused."""
    with pytest.raises(UnusablePepper):
        Pepper(id="short", secret=b"x" * 31)
    with pytest.raises(UnusablePepper):
        usable_peppers((PEPPER, Pepper(id="p1", secret=b"c" * 32)))
    with pytest.raises(UnusablePepper):
        usable_peppers(())
