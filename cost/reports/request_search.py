"""The search of requests: one line of words, such as `user:ann status:5xx cost>0.5 at:2026-11-24T14:03`.

    field:value     id, user, key, model, tag, tier, provider, status, outcome; at, from, to
    field>value     cost, latency (seconds, or 300ms); from; and with <
    "two words"     a value with blanks; any other word is looked for in ids, end users, keys and models

Times are UTC, to the second; a shorter one is a whole day, hour or minute; one without a day is the last such time. Nothing is passed over in silence: what is not understood is
told, and looked for as a plain word.
"""

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from cost.end_users import booked
from cost.reports.recent import OUTCOMES
from cost.times import DAY_US, HOUR_US, MINUTE_US, in_us, iso

MOST_CHARS: Final = 500
MOST_WORDS: Final = 12
_MOST_NAME: Final = 200
FIELDS: Final = (
    "id", "user", "key", "model", "tag", "tier", "provider", "status", "outcome", "cost", "latency", "at", "from", "to"
)  # fmt: skip
_ALIASES: Final[Mapping[str, str]] = {
    "request": "id",
    "end_user": "user",
    "enduser": "user",
    "since": "from",
    "until": "to",
    "time": "at",
    "took": "latency",
    "duration": "latency",
    "target": "model",
}
_TERM: Final = re.compile(r'([A-Za-z_]+)(:|>=|<=|>|<|=)("[^"]*"?|\S*)|("[^"]*"?|\S+)')
_STATUS: Final = re.compile(r"[1-5](xx|[0-9]{2})", re.ASCII)
_MONEY: Final = re.compile(r"\$?([0-9]{1,9}(\.[0-9]{1,9})?)", re.ASCII)
_SECONDS: Final = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,6})?)(ms|s|min)?", re.ASCII)
_UNIT_US: Final = {"": 10**6, "s": 10**6, "ms": 1_000, "min": 60 * 10**6}
_MOMENT: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[Tt ](\d{2})(?::(\d{2})(?::(\d{2})(?:[.,]\d+)?)?)?(?:[Zz]| ?UTC)?)?", re.ASCII
)
_CLOCK: Final = re.compile(r"([01]?\d|2[0-3])(:[0-5]\d(?::[0-5]\d)?)(?:[Zz]| ?UTC)?", re.ASCII)
_FIRST_YEAR: Final = 1971
_LAST_YEAR: Final = 9989


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What a line asks for: fields of `RecentQuery`, names that are still to be looked up, and what was not understood."""

    fields: Mapping[str, Any]
    request_id: str = ""
    key: str = ""
    model: str = ""
    words: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    refusal: str = ""
    """Why nothing is searched at all; empty where something is."""


class _Line:
    """The state of one line while it is read."""

    def __init__(self, outcomes: Sequence[str], now_us: int | None) -> None:
        self.outcomes = outcomes
        self.now_us = now_us
        self.found: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        self.words: list[str] = []
        self.problems: list[str] = []
        self.refusal = ""

    def take(self, field: str, sign: str, value: str, whole: str) -> None:
        name = _ALIASES.get(field.lower(), field.lower())
        if not field or name not in FIELDS:
            self._word(field, value, whole)
        elif not value:
            self.problems.append(f"`{whole}` has no value.")
        elif name in {"cost", "latency"}:
            self._bound(name, sign, value, whole)
        elif name in {"at", "from", "to"}:
            self._time(name, sign, value, whole)
        elif sign not in {":", "="}:
            self.problems.append(f"`{whole}`: only cost, latency and times are compared; write {name}:{value}.")
        else:
            self._text(name, value, whole)

    def _word(self, field: str, value: str, whole: str) -> None:
        if not field and (_MOMENT.fullmatch(value) or _CLOCK.fullmatch(value)):
            self._time("at", ":", value, whole)
            return
        if field:
            self.problems.append(
                f"`{field}` is no field, so `{whole}` is looked for as it is; fields are {', '.join(FIELDS)}."
            )
        word = whole if field else value
        if len(word) > _MOST_NAME:
            # Nothing but an end user is called so, who is booked as a digest.
            self.found["end_user"] = booked(word)
        else:
            self.words.append(word)

    def _text(self, name: str, value: str, whole: str) -> None:
        match name:
            case _ if len(value) > _MOST_NAME and name != "user":
                self.problems.append(f"`{whole[:40]}…` is left out: no {name} has more than {_MOST_NAME} characters.")
            case "id" | "key" | "model":
                self.names["request_id" if name == "id" else name] = value
            case "user":
                # A person's mail address is booked as its digest.
                self.found["end_user"] = booked(value)
            case "status" if _STATUS.fullmatch(value.lower()) is None:
                self.problems.append(f"`{whole}` is left out: a status is one such as 429, or a class such as 5xx.")
            case "outcome" if value not in self.outcomes:
                self.refusal = unknown_outcome(value, self.outcomes)
            case _:
                self.found[name] = value.lower() if name == "status" else value

    def _bound(self, name: str, sign: str, value: str, whole: str) -> None:
        amount = _nanousd(value) if name == "cost" else _duration_us(value)
        if amount is None:
            told = "an amount such as 0.5 or $0.5" if name == "cost" else "a time such as 2, 1.5s or 300ms"
            self.problems.append(f"`{whole}` is left out: {name} is compared with {told}.")
            return
        fields = ("dearer_nanousd", "cheaper_nanousd") if name == "cost" else ("slower_us", "faster_us")
        if sign != "<" and sign != "<=":  # noqa: PLR1714 - what has no sign is at least so much
            self.found[fields[0]] = amount + (1 if sign == ">" else 0)
        else:
            self.found[fields[1]] = max(0, amount - (1 if sign == "<" else 0))

    def _time(self, name: str, sign: str, value: str, whole: str) -> None:
        span = span_of(value) or self._last(value, whole)
        if span is None:
            self.problems.append(
                f"`{whole}` is left out: a time is written like 2026-11-24T14:03:07 (UTC), or shorter."
            )
            return
        start_us, end_us = span
        is_first = name == "from" or (name == "at" and sign in {":", "=", ">", ">="})
        if is_first:
            self.found["since_us"] = end_us if sign == ">" else start_us
        if name == "to" or (name == "at" and sign in {":", "=", "<", "<="}):
            self.found["until_us"] = start_us if sign == "<" else end_us

    def _last(self, value: str, whole: str) -> tuple[int, int] | None:
        """Return the last time that a clock in UTC showed this, and tell its day; None for anything else."""
        found = _CLOCK.fullmatch(value)
        if found is None or self.now_us is None:
            return None
        clock = f"{found[1]:0>2}{found[2]}"
        spans = (span_of(f"{iso(self.now_us - days * DAY_US)[:10]}T{clock}") for days in (0, 1))
        last = next((span for span in spans if span is not None and span[0] <= self.now_us), None)
        if last is not None:
            self.problems.append(
                f"`{whole}` names no day, so the last such time is meant: {iso(last[0])[:10]}T{clock} (UTC)."
            )
        return last


def parse(text: str, outcomes: Sequence[str] = OUTCOMES, now_us: int | None = None) -> Search:
    """Return what a line asks for. `outcomes` are those that there are; a time without a day is the last one before `now_us`."""
    line = _Line([each for each in outcomes if each], now_us)
    if not text.isprintable():
        text = "".join(each for each in text if each.isprintable())
    terms = list(_TERM.finditer(text[:MOST_CHARS]))
    if len(text) > MOST_CHARS or len(terms) > MOST_WORDS:
        line.problems.append(
            f"A search has at most {MOST_WORDS} words and {MOST_CHARS} characters; the rest is left out."
        )
    for term in terms[:MOST_WORDS]:
        value = (term[3] or term[4] or "").strip('"').strip()
        if value or term[1]:
            line.take(term[1] or "", term[2] or "", value, term[0])
    return Search(
        fields=line.found,
        request_id=line.names.get("request_id", ""),
        key=line.names.get("key", ""),
        model=line.names.get("model", ""),
        words=tuple(line.words),
        problems=tuple(line.problems),
        refusal=line.refusal,
    )


def unknown_outcome(given: str, outcomes: Sequence[str]) -> str:
    """Return why an outcome that there is not finds nothing."""
    return f"There is no outcome `{given[:40]}`; there are {', '.join(each for each in outcomes if each)}."


def span_of(text: str) -> tuple[int, int] | None:
    """Return the beginning and the end, itself excluded, of a second, minute, hour or day in UTC; None for anything else."""
    found = _MOMENT.fullmatch(text.strip())
    if found is None:
        return None
    day, hour, minute, second = found.groups()
    try:
        at = dt.datetime.fromisoformat(f"{day}T{hour or '00'}:{minute or '00'}:{second or '00'}+00:00")
    except ValueError:
        return None
    if not _FIRST_YEAR <= at.year <= _LAST_YEAR:
        return None
    length_us = 10**6 if second else MINUTE_US if minute else HOUR_US if hour else DAY_US
    return in_us(at), in_us(at) + length_us


def _nanousd(text: str) -> int | None:
    found = _MONEY.fullmatch(text.replace(",", ""))
    return None if found is None else int(Decimal(found[1]).scaleb(9))


def _duration_us(text: str) -> int | None:
    found = _SECONDS.fullmatch(text)
    return None if found is None else int(Decimal(found[1]) * _UNIT_US[found[2] or ""])


def called(text: str, names: Mapping[str, str], *, least: int = 1) -> tuple[str, ...]:
    """Return the ids of what is called so: an id itself, or whose id begins so or whose name has it, in any case."""
    wanted = text.casefold()
    if len(wanted) < least:
        return ()
    if text in names:
        return (text,)
    exact = tuple(each for each, name in names.items() if name.casefold() == wanted)
    return exact or tuple(
        each for each, name in names.items() if each.casefold().startswith(wanted) or wanted in name.casefold()
    )
