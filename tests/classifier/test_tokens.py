"""The token estimate stays close to a real vocabulary and within bounds for any text."""

import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.compiled import load_pairs
from classifier.tokens import (
    CLASSES,
    EXACT_CHARS,
    PAIRS,
    class_pairs,
    estimate_by_numpy,
    estimate_tokens,
    thousandths,
)
from hatch_build import CHECKSUM, LIBRARY, SOURCE, compile_library

ANY_TEXT = st.text(alphabet=st.characters(), max_size=400)

# Counted with cl100k_base.
KNOWN = [
    ("Write a short summary of how a weighbridge works, and list three things that can go wrong.", 20),
    (
        "def total(rows):\n    amount = 0\n    for row in rows:\n        amount += row.price * row.count\n    return amount\n",
        29,
    ),
    ("Prices rose from 1,250.75 in 2019 to 13,800 in 2023; that is 1003% more, or about 11 times as much.", 39),
    ("Весы у ворот взвешивают каждый грузовик.", 21),  # noqa: RUF001 - Russian.
    ("门口的地磅在每辆卡车上路之前都要称重。", 23),
]


@pytest.mark.parametrize(("text", "tokens"), KNOWN)
def test_it_is_within_a_quarter_of_the_true_count(text: str, tokens: int) -> None:
    """Texts of several kinds are estimated to within 25 % (or 2 tokens) of what cl100k_base makes of them."""
    assert abs(estimate_tokens(text) - tokens) <= max(2, 0.25 * tokens)


def test_every_class_is_its_own() -> None:
    """There are as many classes as four bits tell apart, and no byte is in two."""
    members = b"".join(CLASSES.values())
    assert len(CLASSES) == 16
    assert len(members) == len(set(members))


@settings(deadline=None)
@given(ANY_TEXT)
def test_pairs_are_what_a_loop_finds(text: str) -> None:
    """Each byte makes one pair with the byte before it."""
    names = list(CLASSES)
    of_byte = {byte: names.index(name) for name, members in CLASSES.items() for byte in members}
    classes = [of_byte.get(byte, 0) for byte in ("\n" + text).encode("utf-8", "replace")]
    pairs = class_pairs(text).tolist()
    assert pairs == [16 * one + other for one, other in itertools.pairwise(classes)]
    assert all(0 <= pair < PAIRS for pair in pairs)


def test_nothing_is_no_tokens() -> None:
    """An empty text has no tokens."""
    assert estimate_tokens("") == 0


@settings(deadline=None)
@given(ANY_TEXT)
def test_any_text_has_a_sane_estimate(text: str) -> None:
    """Any text, lone surrogates too, is estimated without raising: at least 1, at most 4 a character."""
    tokens = estimate_tokens(text)
    assert (1 if text else 0) <= tokens <= 4 * len(text)


@settings(deadline=None)
@given(st.text(alphabet=st.characters(), min_size=1, max_size=200), st.integers(2, 20))
def test_more_of_the_same_is_more_tokens(text: str, times: int) -> None:
    """A text written several times over has about that many times its tokens, and never fewer."""
    once, often = estimate_tokens(text), estimate_tokens((text + "\n") * times)
    assert often >= once - 1
    assert often <= (once + 4) * times


@pytest.mark.parametrize("character", ["a", "word ", "漢", "🙂", "\ud800 ", "7"])
def test_a_huge_text_is_sampled_in_proportion(character: str) -> None:
    """A text far beyond the exact limit is estimated from samples and keeps its tokens a character."""
    small = character * (EXACT_CHARS // len(character))
    ratio = estimate_tokens(small * 30) / estimate_tokens(small)
    assert 29 <= ratio <= 31


@settings(deadline=None)
@given(ANY_TEXT)
def test_with_and_without_a_compiler_it_is_the_same(text: str) -> None:
    assert thousandths(text) == estimate_by_numpy(text)


def test_a_library_of_another_source_is_not_called(tmp_path: Path) -> None:
    """An earlier version's would read other tables than it is given, here as for the words."""
    root = Path(__file__).parents[2]
    (tmp_path / SOURCE).parent.mkdir()
    shutil.copy(root / SOURCE, tmp_path / SOURCE)
    if compile_library(tmp_path) is not None:
        pytest.skip("nothing can be compiled here")
    tables = bytes(256), np.zeros(PAIRS, np.int32), 0
    assert load_pairs(tmp_path / LIBRARY, *tables) is not None
    with (tmp_path / SOURCE).open("a") as source:
        source.write("/* a later version */\n")
    assert load_pairs(tmp_path / LIBRARY, *tables) is None


_LOADED: Final = """
import sys
from pathlib import Path
import numpy as np
from classifier.compiled import is_damaged, load_pairs
for library in map(Path, sys.argv[1:]):
    pairs = load_pairs(library, bytes(256), np.ones(256, np.int32), 0)
    print(is_damaged(library), None if pairs is None else pairs.sum(b"hello"))
"""


def test_a_damaged_library_is_not_called(tmp_path: Path) -> None:
    """Cut short anywhere, with a block of zeros, or without its checksum: numpy does its work, and the process lives on."""
    root = Path(__file__).parents[2]
    for name in ("whole", "bare"):
        (tmp_path / name / SOURCE).parent.mkdir(parents=True)
        shutil.copy(root / SOURCE, tmp_path / name / SOURCE)
        if compile_library(tmp_path / name) is not None:
            pytest.skip("nothing can be compiled here")
    (tmp_path / "bare" / CHECKSUM).unlink()
    content = (tmp_path / "whole" / LIBRARY).read_bytes()
    cut = {f"cut at {size}": content[:size] for size in range(0, len(content), 4_096)}
    zeros = {"zeros": content[:4_096] + bytes(4_096) + content[8_192:]}
    for name, damaged in {**cut, **zeros}.items():
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        (tmp_path / name / LIBRARY).write_bytes(damaged)
    places = [tmp_path / name / LIBRARY for name in ("whole", "bare", *cut, *zeros, "missing")]
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, *map(str, places)], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    whole, *damaged_ones, missing = done.stdout.splitlines()
    assert whole == "False 5"
    assert damaged_ones == ["True None"] * (len(places) - 2)
    assert missing == "False None"
