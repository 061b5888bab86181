"""Prompts of a known size that share what they should and nothing else."""

from collections.abc import Iterator
from random import Random
from typing import Any, Final

Messages = list[dict[str, Any]]
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_LINES_A_TURN: Final = 3


def conversation(name: str, turn: int, *, lines: int) -> Messages:
    """The same name makes the same conversation; each turn adds to its end. A line has about 20 tokens."""
    random = Random(name)
    system = "\n".join(_lines(random, lines))
    asked = ["\n".join(_lines(random, _LINES_A_TURN)) for _ in range(turn + 1)]
    return [{"role": "system", "content": system}, *({"role": "user", "content": text} for text in asked)]


def _lines(random: Random, count: int) -> Iterator[str]:
    for _ in range(count):
        words = ["".join(random.choices(_LETTERS, k=3)) for _ in range(3)]
        yield f"def {words[0]}(self, {words[1]}): return {random.randrange(1_000)} + {words[2]}"
