"""The choices of a select. More than can be read through are searched: the page sends none of them, and its script asks for
those that match what is typed.
"""

import itertools
from collections.abc import Iterable
from typing import Final

import msgspec

MOST_LISTED: Final = 100
"""With more, a select becomes a field that searches."""
MOST_FOUND: Final = 50


class Search(msgspec.Struct, frozen=True):
    """A select with too many choices to list."""

    value: str
    """The chosen one's value; '' where the first of all is chosen, which is named `otherwise`."""
    text: str
    """The chosen one's text."""
    otherwise: str


class Offers:
    """The choices that a page offers, by the name of their field."""

    def __init__(self) -> None:
        self._many: dict[str, list[tuple[str, str]]] = {}

    def search(self, name: str, options: Iterable[tuple[str, str]], value: str) -> Search | None:
        """Return how to show a field whose choices are too many to list; None if they are few. The first choice is what
        an empty field means, as it is what a select begins with.
        """
        offered = [(str(each[0]), str(each[1])) for each in options]
        if len(offered) <= MOST_LISTED:
            return None
        self._many[name] = offered
        first = offered[0]
        chosen = next((each for each in offered if each[0] == value), first)
        return Search(
            value="" if chosen == first else chosen[0], text="" if chosen == first else chosen[1], otherwise=first[1]
        )

    def matching(self, name: str, typed: str) -> list[tuple[str, str]] | None:
        """Return the choices whose text or value contains what was typed; None for a field that does not search."""
        return matching(self._many[name], typed) if name in self._many else None


def matching(options: Iterable[tuple[str, str]], typed: str) -> list[tuple[str, str]]:
    """Return the choices whose text or value contains what was typed; never the first of all, which an empty field means."""
    wanted = typed.strip().casefold()
    found = (each for each in options if each[0] and (wanted in each[1].casefold() or wanted in each[0].casefold()))
    return list(itertools.islice(found, MOST_FOUND))
