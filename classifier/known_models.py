"""Stand-in: the models that are known by name."""

import difflib
from collections.abc import Iterable
from typing import Final, Literal

import msgspec


class KnownModel(msgspec.Struct, frozen=True):
    """A model that the classifier has a row of."""

    name: str
    row: str
    effort: str
    basis: Literal["outcomes", "published"] = "outcomes"
    extrapolated: bool = False


_ROWS: Final = {
    "gpt-4o": "gpt-4o-2024-05-13",
    "gpt-4o-mini": "gpt-4o-mini-2024-07-18",
    "llama-3-70b-instruct": "llama-3-70b-instruct",
    "llama-3.1-70b-instruct": "llama-3.1-70b-instruct",
    "claude-3-haiku": "claude-3-haiku-20240307",
    "claude-3-5-sonnet": "claude-3-5-sonnet-20240620",
}


def known_model(names: Iterable[str], effort: str = "") -> KnownModel | None:
    """The first of the names that is known."""
    for name in names:
        bare = name.rpartition("/")[2].lower().removesuffix(":free")
        bare = {"meta-llama-3-70b-instruct": "llama-3-70b-instruct", "llama-3-70b": "llama-3-70b-instruct"}.get(
            bare, bare
        )
        if bare in _ROWS:
            return KnownModel(bare, _ROWS[bare], "")
    return None


def efforts_of(name: str) -> tuple[str, ...]:
    """The efforts of a known model, rising."""
    return ()


def nearest_names(name: str) -> tuple[str, ...]:
    """The known names that are most like it."""
    return tuple(difflib.get_close_matches(name.lower(), _ROWS, 3, 0.3))
