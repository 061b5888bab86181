"""What became of each line of LiteLLM's: told once, in the order of the file."""

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from accounts.secret_shapes import mask_text
from gateway.configuration.file import Document, KeyPath, Value, spell

Outcome = Literal["kept", "changed", "not needed", "not possible"]
"""`kept`: it means the same here. `changed`: it is here in another form, or with another effect, as the words say. `not needed`: the
gateway does it by itself. `not possible`: nothing here does it, or somebody has to do it by hand.
"""
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
_MOST_WORDS: Final = 400


class Item(NamedTuple):
    """A value of LiteLLM's, and where it stands."""

    document: Document
    path: KeyPath
    value: Value

    def at(self, *below: str | int, value: Value = None) -> "Item":
        """Return a value within this one."""
        return Item(self.document, (*self.path, *below), value)


class Told(msgspec.Struct, frozen=True):
    """One line, and what became of it. `line` is 0 where it has none, as in a database."""

    file: str
    line: int
    place: str
    outcome: Outcome
    words: str = ""


class Account:
    """All that was told. Words never hold a secret: what looks like one is masked, whoever wrote it."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    def tell(self, item: Item, outcome: Outcome, words: str = "") -> None:
        """Tell what became of a value; a second telling of the same place is another sentence."""
        problem = item.document.problem(item.path, "")
        self.note(item.document.file, problem.line, spell(item.path), outcome, words)

    def note(self, file: str, line: int, place: str, outcome: Outcome, words: str = "") -> None:
        """Tell what became of something that is no value of a document."""
        shown = mask_text(" ".join(words.split()))[:_MOST_WORDS]
        self.told.append(Told(file, line, mask_text(place)[:200], outcome, shown))

    def counts(self) -> dict[Outcome, int]:
        """Return how often each outcome was told."""
        found = [each.outcome for each in self.told]
        return {outcome: found.count(outcome) for outcome in OUTCOMES}

    def in_order(self) -> list[Told]:
        """Return what was told, by file and line; the file that was named first comes first."""
        files = list(dict.fromkeys(each.file for each in self.told))
        return sorted(self.told, key=lambda each: (files.index(each.file), each.line))


def rows_of(told: Iterable[Told]) -> list[list[str]]:
    """Return the rows of a table for people; the file's name stands there only where there are several."""
    found = list(told)
    several = len({each.file for each in found}) > 1
    return [[_where(each, several=several), each.place, each.outcome, each.words] for each in found]


def _where(each: Told, *, several: bool) -> str:
    line = str(each.line) if each.line else "-"
    return f"{each.file}:{line}" if several else line
