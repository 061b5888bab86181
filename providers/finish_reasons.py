"""Why an answer of chat's dialect ended, in OpenAI's words: the table of `data/finish_reasons.toml`."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

Means = Literal["stop", "length", "content_filter", "tool_calls", "cut", "on"]
USUAL: Final = frozenset({"stop", "length", "content_filter", "tool_calls", "function_call"})
"""OpenAI's own words."""


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    means: Means
    words: list[str]
    by: str
    source: str
    read: Any


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reasons: list[_Row]


def _load() -> Mapping[str, Means]:
    text = Path(__file__).with_name("data").joinpath("finish_reasons.toml").read_text(encoding="utf-8")
    rows = msgspec.convert(tomllib.loads(text), _Table).reasons
    means: dict[str, Means] = {word: word for word in get_args(Means) if word in USUAL}
    return means | {word: row.means for row in rows for word in row.words}


_MEANS: Final = _load()


def meaning_of(reason: Any) -> Means:
    """Return what an upstream's reason means. An unknown one, of whatever type, ended the answer."""
    return _MEANS.get(reason.lower(), "stop") if isinstance(reason, str) else "stop"
