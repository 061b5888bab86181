"""Names of prompts' beginnings."""

import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from selfhosted.balance.blocks import prompt_blocks


@given(st.binary(max_size=400), st.binary(max_size=400), st.integers(1, 64))
def test_equal_blocks_are_equal_beginnings(one: bytes, other: bytes, size: int) -> None:
    """As many leading names are equal as whole blocks of the texts are, and after the first difference none."""
    first, second = (prompt_blocks(text, block_bytes=size, most=1_000) for text in (one, other))
    same = [mine == yours for mine, yours in zip(first, second, strict=False)]
    expected = [one[: (at + 1) * size] == other[: (at + 1) * size] for at in range(len(same))]
    assert same == expected
    assert len(first) == len(one) // size


def test_a_long_prompt_has_no_more_blocks_than_allowed() -> None:
    """The work for one prompt is bounded."""
    assert len(prompt_blocks(b"x" * 10_000, block_bytes=64, most=7)) == 7


def test_repeated_text_has_different_blocks() -> None:
    """A block's name tells all that is before it, too."""
    names = prompt_blocks(b"x" * 640, block_bytes=64, most=100)
    assert len(set(names)) == 10


def test_pythons_that_hash_alike_can_be_compared() -> None:
    """With one key this Python hashes as CPython 3.11, 3.12 and 3.13 did: hosts with any of them understand each other. Where another
    one does not, this number is its own, and docs/fleet.md has to say so.
    """
    code = "from selfhosted.balance.blocks import HASHES; print(HASHES)"
    for key, expected in (("12345", True), ("54321", False)):
        found = subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": key},
        )
        assert (int(found.stdout) == 8869203554334749218) is expected
