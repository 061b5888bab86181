"""What a provider, model or engine takes otherwise than the specification says: look-ups in the table `data/quirks.toml`.

A row applies from a version on, and none says where it ends: a model that nobody has heard of yet is taken for one like the
newest of its family. What no row says is not known, and is sent as asked.
"""

import re
import tomllib
from datetime import date as Day  # noqa: N812  A field is called `as_of`.
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from providers.tool_schemas import ToolSchemas

TABLE_FILE: Final = Path(__file__).parent / "data" / "quirks.toml"

Thinking = Literal["", "none", "budget", "both", "adaptive"]
"""Anthropic's ways to ask a model to think: not at all, by a number of tokens, or as much as it finds right at an effort. The
empty one is that of other providers.
"""
LaterSystem = Literal["", "reminder", "kept"]
Prefill = Literal["", "continue", "refused"]

_VERSION: Final = (
    r"[-_]?v?(?P<major>\d{1,2})(?:[.p](?P<minor>\d{1,2})|-(?P<dashed>\d{1,2})(?![\d.]*[bxkm]\b))?(?!\d|[bx]\b)"
)
_WORD: Final = r"[a-z]+"
_BEGINS: Final = r"(?:^|(?<=[/.:@~_-]))"
_AT_THE_FRONT: Final = r"(?:^|(?<=[/:]))"
_NEWEST: Final = (99, 0)
_MOST_FOUND: Final = 4_096
"""The names of models that are kept in mind with what was found for them."""

BEGUN_ANSWER: Final = "an answer that is begun"
"""What a conversation asks for whose last message is the assistant's, among the things that a target may refuse."""


class Quirks(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one deployment, as the head of the table explains them."""

    refuses: frozenset[str] = frozenset()
    refuses_thinking: frozenset[str] = frozenset()
    takes_unthinking: frozenset[str] = frozenset()
    renames: dict[str, str] = {}
    longest: str = ""
    excludes: tuple[tuple[str, ...], ...] = ()
    leaves_out: dict[str, tuple[Any, ...]] = {}
    most_stops: int | None = None
    most_tools: int | None = None
    most_images: int | None = None
    most_output_tokens: int | None = None
    reasons: bool = False
    efforts: tuple[str, ...] = ()
    thinking: Thinking = ""
    thinks_always: bool = False
    thinking_off: dict[str, Any] = {}
    developer: str = ""
    later_system: LaterSystem = ""
    needs_user: bool = False
    alternates: bool = False
    one_call: bool = False
    prefill: Prefill = ""
    forces_tools: bool = True
    stream_usage: Literal["", "always"] = ""
    completes: frozenset[str] = frozenset()
    counts_tokens: bool = False
    fetches_links_in_text: bool = False
    takes_notes: bool = False
    any_arguments: bool = False
    searches: str = ""
    tool_schemas: str = ""
    cache_least_tokens: int | None = None
    cache_kept_s: int | None = None
    cache_marked: bool = False

    @property
    def changes_turns(self) -> bool:
        """True where a conversation may have to be told otherwise than it was written."""
        return bool(self.developer or self.later_system or self.needs_user or self.one_call or self.alternates)


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the table: whom it is about, and the facts. None is what it does not speak of."""

    families: frozenset[str] = frozenset()
    since: str = ""
    words: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    unversioned: bool = False
    kinds: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()
    not_hosts: tuple[str, ...] = ()

    refuses: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()
    refuses_thinking: frozenset[str] | None = None
    takes_unthinking: frozenset[str] | None = None
    renames: dict[str, str] | None = None
    longest: str | None = None
    excludes: tuple[tuple[str, ...], ...] | None = None
    leaves_out: dict[str, tuple[Any, ...]] | None = None
    most_stops: int | None = None
    most_tools: int | None = None
    most_images: int | None = None
    most_output_tokens: int | None = None
    reasons: bool | None = None
    efforts: tuple[str, ...] | None = None
    thinking: Thinking | None = None
    thinks_always: bool | None = None
    thinking_off: dict[str, Any] | None = None
    developer: str | None = None
    later_system: LaterSystem | None = None
    needs_user: bool | None = None
    alternates: bool | None = None
    one_call: bool | None = None
    prefill: Prefill | None = None
    forces_tools: bool | None = None
    stream_usage: Literal["", "always"] | None = None
    completes: frozenset[str] | None = None
    counts_tokens: bool | None = None
    fetches_links_in_text: bool | None = None
    takes_notes: bool | None = None
    any_arguments: bool | None = None
    searches: str | None = None
    tool_schemas: str | None = None
    cache_least_tokens: int | None = None
    cache_kept_s: int | None = None
    cache_marked: bool | None = None

    source: str
    as_of: Day


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    by_effort: frozenset[str]
    media_types: dict[str, str]
    litellm: dict[str, str]
    families: dict[str, tuple[str, ...]]
    tool_schemas: dict[str, ToolSchemas]
    quirk: tuple[Row, ...]


class Model(msgspec.Struct, frozen=True):
    """What a model's name says: its family, and its version where it names one."""

    family: str
    version: tuple[int, int] | None


NO_MODEL: Final = Model("", None)
_WHOM: Final = frozenset(
    {"families", "since", "words", "without", "unversioned", "kinds", "hosts", "not_hosts", "takes", "source", "as_of"}
)
_SAID: Final = tuple(name for name in Row.__struct_fields__ if name not in _WHOM | {"refuses"})
"""The fields of a row that stand in place of what rows before it said."""


@cache
def read_table() -> Table:
    """Return the table, read once a process."""
    return msgspec.convert(tomllib.loads(TABLE_FILE.read_text(encoding="utf-8")), Table)


@cache
def _names() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((family, _pattern(name)) for family, names in read_table().families.items() for name in names)


def _pattern(name: str) -> re.Pattern[str]:
    begins = _AT_THE_FRONT if name.startswith("^") else _BEGINS
    name = name.removeprefix("^")
    parts = re.split(r"(-?\{version\}|\{word\})", name)
    made = {"{version}": _VERSION, "-{version}": _VERSION, "{word}": _WORD}
    end = r"(?![a-z])" if parts[-1] else ""
    return re.compile(begins + "".join(made.get(part) or re.escape(part) for part in parts) + end)


def model_named(name: str) -> Model:
    """Return the family and the version of a model's name, as a host writes it."""
    name = name.lower()
    for family, pattern in _names():
        found = pattern.search(name)
        if found is not None:
            told = found.groupdict()
            major, minor = told.get("major"), told.get("minor") or told.get("dashed")
            return Model(family, None if major is None else (int(major), int(minor or 0)))
    return NO_MODEL


@cache
def _newest() -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for row in read_table().quirk:
        for family in row.families if row.since else ():
            found[family] = max(found.get(family, (0, 0)), _version(row.since))
    return found


def is_newest_of(model: Model) -> bool:
    """Return False for a version that is newer than any that a row begins with, so that it only inherits the newest row."""
    newest = _newest().get(model.family)
    return newest is None or model.version is None or model.version <= newest


@lru_cache(_MOST_FOUND)
def quirks_of(kind: str, base_url: str, name: str) -> Quirks:
    """Return what is known of a deployment by its kind, its address and the model's name there (`provider/…` with litellm)."""
    prefix, _, rest = name.partition("/")
    through_litellm = kind == "litellm" and bool(rest)
    host = prefix if through_litellm else _host(base_url)
    written = name.lower()
    model = model_named(rest if through_litellm else name)
    found: dict[str, Any] = {}
    refuses: frozenset[str] = frozenset()
    for row in read_table().quirk:
        if not _is_about(row, kind, host, model, written):
            continue
        refuses = (refuses - row.takes) | row.refuses
        for field in _SAID:
            said = getattr(row, field)
            if said is not None:
                found[field] = said
    if found.get("prefill") == "refused":
        refuses |= {BEGUN_ANSWER}
    return Quirks(refuses=refuses, **found)


def _host(base_url: str) -> str:
    try:
        address = urlsplit(base_url)
        port = address.port
    except ValueError:
        return ""
    return f"{address.hostname or ''}:{port or ''}"


def _is_about(row: Row, kind: str, host: str, model: Model, written: str) -> bool:
    return (
        (not row.kinds or kind in row.kinds)
        and (not row.hosts or any(_is_at(each, host) for each in row.hosts))
        and not any(_is_at(each, host) for each in row.not_hosts)
        and (not row.families or model.family in row.families)
        and not (row.unversioned and model.version is not None)
        # A name without a version is an alias of the newest.
        and (not row.since or (model.version or _NEWEST) >= _version(row.since))
        and (not row.words or any(word in written for word in row.words))
        and not any(word in written for word in row.without)
    )


def _is_at(wanted: str, host: str) -> bool:
    if wanted.startswith(":"):
        return host.endswith(wanted)
    name = host.partition(":")[0]
    return name == wanted or name.endswith(f".{wanted}")


@cache
def _version(said: str) -> tuple[int, int]:
    major, _, minor = said.partition(".")
    return int(major), int(minor or 0)


def tool_schemas(name: str) -> ToolSchemas:
    """Return what a host takes of schemas, by the name that its row says."""
    return read_table().tool_schemas[name]


def media_type(given: str) -> str:
    """Return the name that providers know for a media type."""
    return read_table().media_types.get(given.lower(), given)
