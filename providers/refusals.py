"""The owner of an upstream's refusal, and the pause that it asks for: pure functions over the table in `data/refusals.toml`."""

import re
import tomllib
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from datetime import date as Day  # noqa: N812  A field is called `date`.
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from providers.errors import Owner, RefusedParameter

TABLE_FILE: Final = Path(__file__).parent / "data" / "refusals.toml"
_EVIDENCE: Final = re.compile(r"^(?:seen|source|date|example\w*) = .*\n", re.MULTILINE)
"""The evidence of rows. The page and the tests read it; leaving it out halves the time that the others take to read the rest."""

Seen = Literal["document", "source", "report", "described", "recalled"]

_MOST_READ: Final = 2_048
_PREFIX: Final = re.compile(
    r"(?:litellm\.)?\w{0,60}(?:error|exception|timeout)\s*[:-]\s*"
    r"|an error occurred \(\w{1,80}\) when calling the \w{1,80} operation(?: \([^)]{0,80}\))?: "
    r"|error code: \d{3} - |error from provider \([^)]{0,80}\): |bad request: |<lm studio error> |\[address=[^\]]{0,80}\] "
    r"|\{'error': \{'message': ['\"]"
)
"""Words that gateways and clients put before those of others."""
_MOST_PREFIXES: Final = 6

SERVER_FAULT: Final = 500

_MOST_PACE_S: Final = 3_600.0
_ABSURD_S: Final = 31 * 86_400.0
_MOST_VALUE_CHARS: Final = 64
_SECONDS: Final[Mapping[str, float]] = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_PART: Final = (
    r"(\d{1,15}(?:\.\d{0,15})?)\s?"
    r"(milliseconds?|ms|hours?|hrs?|minutes?|mins?|days?|seconds?|secs?|h|m|d|s)(?![a-z]),?\s?"
)
_DURATION_PART: Final = re.compile(_PART)
_EPOCH_S: Final = 1e8
"""A larger number is no wait in seconds, which would be three years, but a moment since 1970."""
_EPOCH_MS: Final = 1e11


class Refusal(msgspec.Struct, frozen=True):
    """The meaning of a refusal. `elsewhere`: another target may take the request. `told_code`: the code that clients act on.
    `certain`: False where the operator's fault is only probable.
    """

    owner: Owner
    reason: str = ""
    elsewhere: bool = False
    told_code: str | None = None
    certain: bool = True
    words: str = ""
    """The words of the message by which it was found; empty where a code or the status says it."""


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the table, as its head explains it."""

    provider: str
    status: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    begins: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    owner: Owner
    reason: str = ""
    elsewhere: bool = False
    told_code: str | None = None
    certain: bool = True
    seen: Seen = "recalled"
    source: str = ""
    date: Day | None = None
    example_status: int | None = None
    example: str = ""


class Reset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pair of headers: what is left of a limit, and when it is whole again."""

    provider: str
    remaining: str
    reset: str
    seen: Seen = "recalled"
    source: str = ""
    date: Day | None = None
    example: str = ""
    example_s: float = 0.0


class Wait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The words of a message after which a time to wait stands."""

    after: str
    seen: Seen = "recalled"
    source: str = ""
    date: Day | None = None
    example: str = ""
    example_s: float = 0.0


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The words by which a parameter is refused; `{name}` stands for it."""

    provider: str
    says: str
    seen: Seen = "recalled"
    source: str = ""
    date: Day | None = None
    example_status: int | None = None
    example_name: str = ""
    example: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. `kinds`: the status that a code or type stands for, where an error has none."""

    kinds: dict[str, int]
    refusal: tuple[Row, ...]
    reset: tuple[Reset, ...]
    wait: tuple[Wait, ...]
    parameter: tuple[Parameter, ...]


class _Words(msgspec.Struct, frozen=True):
    """The ways to find a row's message: by its beginning, as texts and as a pattern, and by words in it."""

    row: Row
    begins: tuple[str, ...]
    pattern: re.Pattern[str] | None
    words: tuple[str, ...]


def _words(row: Row) -> _Words:
    any_word = [re.escape(each).replace(r"\*", r"\S{1,256}") for each in row.begins if "*" in each]
    pattern = re.compile("|".join(any_word)) if any_word else None
    return _Words(row, tuple(each for each in row.begins if "*" not in each), pattern, row.words)


class _Loaded(msgspec.Struct, frozen=True):
    kinds: Mapping[str, int]
    by_words: tuple[_Words, ...]
    by_code: tuple[Row, ...]
    by_status: Mapping[int, Row]
    resets: tuple[Reset, ...]
    waits: re.Pattern[str]
    parameters: re.Pattern[str]


def read_table() -> Table:
    """Return the whole table with the evidence of its rows."""
    return msgspec.convert(tomllib.loads(TABLE_FILE.read_text(encoding="utf-8")), Table)


@cache
def _loaded() -> _Loaded:
    text = _EVIDENCE.sub("", TABLE_FILE.read_text(encoding="utf-8"))
    table = msgspec.convert(tomllib.loads(text), Table)
    after = "|".join(re.escape(each.after) for each in table.wait)
    worded = [row for row in table.refusal if row.begins or row.words]
    others = [row for row in table.refusal if not row.begins and not row.words]
    return _Loaded(
        kinds=table.kinds,
        # Of two rows the one that asks for a code, too, says more.
        by_words=tuple(map(_words, sorted(worded, key=lambda row: not row.codes))),
        by_code=tuple(row for row in others if row.codes),
        by_status={status: row for row in reversed(others) if not row.codes for status in row.status},
        resets=table.reset,
        waits=re.compile(rf"(?:{after})\s((?:{_PART})+)"),
        parameters=re.compile("|".join(map(_naming, table.parameter))),
    )


def _naming(row: Parameter) -> str:
    """Return the pattern of a row, in which the name is a group of its own."""
    return re.escape(row.says).replace(r"\{name\}", r"([a-z_]{1,40})\b").replace(r"\*", r".{1,80}?")


def refused_parameter(message: str) -> RefusedParameter | None:
    """Return the parameter that a message is about as a whole; None for any other message."""
    found = _loaded().parameters.match(_plain(message))
    return None if found is None else RefusedParameter(next(filter(None, found.groups())), found[0])


def load() -> None:
    """Read the table, which takes some 10 ms, so that no request has to wait for it."""
    _loaded()


def refusal_of(status: int | None, *, code: str | None, kind: str | None, message: str) -> Refusal:
    """Return the meaning of a refusal. `status` is None where only an object within a stream tells of it; `code` and `kind` are the
    error's code and type.
    """
    if status is None:
        status = status_of(code, kind) or SERVER_FAULT
    row = row_of(status, code=code, kind=kind, message=message)
    if row is not None:
        words = _words_met(row, message) if row.begins or row.words else ""
        return Refusal(row.owner, row.reason, row.elsewhere, row.told_code, row.certain, words)
    if status >= SERVER_FAULT:
        return Refusal("health", "unavailable")
    return Refusal("operator", "permission", certain=False)


def status_of(code: str | None, kind: str | None) -> int | None:
    """Return the HTTP status that an error's code or type stands for."""
    kinds = _loaded().kinds
    return next((kinds[each.lower()] for each in (code, kind) if each and each.lower() in kinds), None)


def row_of(status: int, *, code: str | None, kind: str | None, message: str) -> Row | None:
    """Return the row that fits best; None where none does."""
    table = _loaded()
    kinds = [each.lower() for each in (code, kind) if each]
    said = _plain(message)
    if said:
        for each in table.by_words:
            if _is_said(each, said) and _fits(each.row, status, kinds):
                return each.row
    if kinds:
        for row in table.by_code:
            if _fits(row, status, kinds):
                return row
    return table.by_status.get(status)


def _is_said(wanted: _Words, said: str) -> bool:
    # An outage asks this of every row thousands of times a second.
    for words in wanted.words:
        if words in said:
            break
    else:
        if wanted.words:
            return False
    if not wanted.begins and wanted.pattern is None:
        return True
    return said.startswith(wanted.begins) or (wanted.pattern is not None and wanted.pattern.match(said) is not None)


def _words_met(row: Row, message: str) -> str:
    """Return the words of a message that meet a row: what it begins with, or else those in it."""
    said = _plain(message)
    wanted = next(each for each in _loaded().by_words if each.row is row)
    found = next((each for each in wanted.begins if said.startswith(each)), "")
    if not found and wanted.pattern is not None and (matched := wanted.pattern.match(said)):
        found = matched[0]
    return found or next((each for each in wanted.words if each in said), "")


def _fits(row: Row, status: int, kinds: Collection[str]) -> bool:
    return (not row.status or status in row.status) and (not row.codes or not row.codes.isdisjoint(kinds))


def _plain(message: str) -> str:
    """Return a message as rows write theirs: its beginning in lower case, on one line, without what gateways put before it."""
    said = " ".join(message[:_MOST_READ].lower().replace("\u2019", "'").split())
    for _ in range(_MOST_PREFIXES):
        found = _PREFIX.match(said)
        if found is None:
            break
        said = said[found.end() :]
    return said


def pace_s(headers: Mapping[str, str], message: str, body_details: Any, now: datetime) -> float | None:
    """Return seconds that the provider asks to be left alone, at most an hour; None where it does not say, or nothing that can be
    meant.

    `headers` have lower-case names. `body_details` is the error's `details` (Google's) or `metadata` (OpenRouter's, which
    hold headers).
    """
    told = _asked(headers, now)
    if told is None:
        told = _reset(headers, now)
    if told is None:
        told = _in_details(body_details, now)
    if told is None:
        found = _loaded().waits.search(" ".join(message[:_MOST_READ].lower().split()))
        told = None if found is None else _bounded(_duration(found[1]))
    return told


def _asked(headers: Mapping[str, str], now: datetime) -> float | None:
    for name, unit in (("retry-after-ms", 1_000.0), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if not value or len(value) > _MOST_VALUE_CHARS:
            continue
        try:
            seconds = float(value) / unit
        except ValueError:
            until = _moment(value)
            # What is over by now may be asked again at once.
            seconds = -1.0 if until is None else max(0.0, (until - now).total_seconds())
        told = _bounded(seconds)
        if told is not None:
            return told
    return None


def _reset(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the longest wait of the limits of which nothing is left."""
    waits = [
        wait_s
        for each in _loaded().resets
        if headers.get(each.remaining, "").strip() in _NOTHING
        and (wait_s := _until(headers.get(each.reset, ""), now)) is not None
    ]
    return max(waits, default=None)


_NOTHING: Final = frozenset({"0", "0.0"})


def _until(value: str, now: datetime) -> float | None:
    """Return seconds until a reset, which is told as seconds, as a duration, as a moment since 1970, or as a date."""
    value = value.strip()
    if not value or len(value) > _MOST_VALUE_CHARS:
        return None
    try:
        number = float(value)
    except ValueError:
        moment = _moment(value)
        return _bounded(_duration(value) if moment is None else (moment - now).total_seconds())
    if number >= _EPOCH_S:
        number = (number / 1_000.0 if number >= _EPOCH_MS else number) - now.timestamp()
    return _bounded(number)


def _moment(value: str) -> datetime | None:
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(value)
        except (ValueError, TypeError):
            continue
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


def _duration(text: str) -> float:
    """Return seconds of `6m0s`, `12ms` or `20 seconds`; -1 for anything else."""
    total, at = 0.0, 0
    while at < len(text):
        part = _DURATION_PART.match(text, at)
        if part is None:
            return -1.0
        unit = part[2]
        total += float(part[1]) * (0.001 if unit.startswith(("ms", "mil")) else _SECONDS[unit[0]])
        at = part.end()
    return total if at else -1.0


def _in_details(details: Any, now: datetime) -> float | None:
    if isinstance(details, dict):
        headers = details.get("headers")
        if not isinstance(headers, dict):
            return None
        told = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
        return _asked(told, now) if "retry-after" in told else _reset(told, now)
    for each in details if isinstance(details, list) else ():
        delay = each.get("retryDelay") if isinstance(each, dict) else None
        if isinstance(delay, str) and len(delay) <= _MOST_VALUE_CHARS:
            return _bounded(_duration(delay))
    return None


def _bounded(seconds: float) -> float | None:
    # Not a number compares as False, too.
    return min(seconds, _MOST_PACE_S) if 0 <= seconds <= _ABSURD_S else None
