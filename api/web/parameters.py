"""Parameters of addresses: each of a query is declared, parsed and validated.

Unknown parameters are refused too: a misspelt filter would otherwise return the figures of something else. A route
declares its parameters in one table, which the OpenAPI document also shows.
"""

import datetime as dt
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request

from cost.calendar import UTC_CALENDAR, Calendar
from cost.times import HOUR_US, start_of
from proxy.errors import BadRequest

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)
_WHOLE: Final = re.compile(r"-?\d{1,15}", re.ASCII)
_MAX_VALUES: Final = 200
_EPOCH: Final = dt.date(1970, 1, 1)
_OTHERS_TAGS: Final = frozenset({"batch", "models", "responses"})
"""Tags of routes in OpenAI's, Anthropic's and Mistral's shapes, whose clients add parameters of their own."""

Word = TypeVar("Word", bound=str)


class Parameter(msgspec.Struct, frozen=True):
    """A parameter's declaration: description, JSON schema, and whether it is required."""

    about: str
    schema: dict[str, Any]
    is_needed: bool = False


def text(about: str) -> Parameter:
    """Declare a text; read it by `Parameters.text`, or in the route."""
    return Parameter(about, {"type": "string"})


def texts(about: str) -> Parameter:
    """Declare a list of texts; read it by `Parameters.texts`."""
    return Parameter(about, {"type": "array", "items": {"type": "string"}, "maxItems": _MAX_VALUES})


def listed(about: str, allowed: Iterable[str]) -> Parameter:
    """Declare a list of permitted words; read it by `Parameters.listed`."""
    return Parameter(about, {"type": "array", "items": {"type": "string", "enum": [*allowed]}})


def one_of(about: str, allowed: Iterable[str], otherwise: str | None = None) -> Parameter:
    """Declare one of the permitted words; read it by `Parameters.one_of`."""
    return Parameter(
        about, {"type": "string", "enum": [*allowed], **({} if otherwise is None else {"default": otherwise})}
    )


def whole(
    about: str, *, least: int, most: int | None = None, otherwise: int | None = None, is_needed: bool = False
) -> Parameter:
    """Declare a whole number; read it by `Parameters.whole`."""
    bounds = {"minimum": least, "maximum": most, "default": otherwise}
    known = {name: bound for name, bound in bounds.items() if bound is not None}
    return Parameter(about, {"type": "integer", **known}, is_needed)


def flag(about: str) -> Parameter:
    """Declare a boolean; read it by `Parameters.flag`."""
    return Parameter(about, {"type": "boolean"})


def day(about: str, *, is_needed: bool = False) -> Parameter:
    """Declare a day; read it by `Parameters.day`."""
    return Parameter(about, {"type": "string", "format": "date"}, is_needed)


def moment(about: str) -> Parameter:
    """Declare a day or moment; read it by `Parameters.moment_us`."""
    return Parameter(
        about, {"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]}
    )


class Parameters:
    """A request's query, by name. `name[]` is the same as `name`. All readers raise BadRequest."""

    def __init__(self, query: QueryParams, known: Iterable[str]) -> None:
        self._given: dict[str, list[str]] = {}
        known = frozenset(known)
        for raw, value in query.multi_items():
            name = raw.removesuffix("[]")
            if name not in known:
                there = f"there are {_listed(known)}" if known else "there are none here"
                raise BadRequest(f"There is no parameter `{raw[:40]}`; {there}.", param=raw[:40])
            values = self._given.setdefault(name, [])
            values.append(value)
            if len(values) > _MAX_VALUES:
                raise BadRequest(f"`{name}` is given more than {_MAX_VALUES} times.", param=name)

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def text(self, name: str) -> str | None:
        """Return the value of a parameter that may be given once, or None."""
        values = self._given.get(name, [])
        if len(values) > 1:
            raise BadRequest(f"`{name}` is given more than once.", param=name)
        if values and "\x00" in values[0]:
            raise BadRequest(f"`{name}` must not have a NUL in it.", param=name)
        return values[0] if values else None

    def texts(self, name: str) -> tuple[str, ...]:
        """Return distinct values of a list, given repeatedly or with commas."""
        return tuple(dict.fromkeys(self._parts(name)))

    def listed(self, name: str, allowed: Iterable[Word]) -> tuple[Word, ...]:
        """Return distinct permitted words of a list, given repeatedly or with commas."""
        known = {str(word): word for word in allowed}
        words = self._parts(name)
        for word in words:
            if word not in known:
                raise BadRequest(f"`{name}` is any of {_listed(known)}, not {word[:40]!r}.", param=name)
        return tuple(dict.fromkeys(known[word] for word in words))

    def _parts(self, name: str) -> list[str]:
        return [part.strip() for value in self._given.get(name, []) for part in value.split(",")]

    def one_of(self, name: str, otherwise: Word, allowed: Iterable[Word]) -> Word:
        """Return one of the permitted words."""
        given = self.text(name)
        if given is None:
            return otherwise
        known = {str(word): word for word in allowed}
        if given not in known:
            raise BadRequest(f"`{name}` is one of {_listed(known)}, not {given[:40]!r}.", param=name)
        return known[given]

    def whole(self, name: str, otherwise: int, *, least: int, most: int) -> int:
        """Return a whole number from `least` to `most`."""
        given = self.text(name)
        if given is None:
            return otherwise
        if _WHOLE.fullmatch(given) is None or not least <= int(given) <= most:
            raise BadRequest(f"`{name}` must be a whole number from {least} to {most}.", param=name)
        return int(given)

    def flag(self, name: str) -> bool | None:
        """Return a flag; None when it was not given."""
        given = self.text(name)
        if given is None:
            return None
        if given.lower() not in {"true", "false"}:
            raise BadRequest(f"`{name}` must be true or false.", param=name)
        return given.lower() == "true"

    def day(self, name: str) -> dt.date | None:
        """Return a day such as 2026-04-05; None when it was not given."""
        given = self.text(name)
        if given is None:
            return None
        try:
            return _parsed_day(given)
        except ValueError as error:
            raise BadRequest(f"`{name}` must be a day like 2026-04-05.", param=name) from error

    def moment_us(self, name: str, calendar: Calendar = UTC_CALENDAR) -> int | None:
        """Return the beginning of a day in the calendar, or an RFC 3339 moment on a full hour, in microseconds; None when it was not
        given.
        """
        given = self.text(name)
        if given is None:
            return None
        try:
            if _MOMENT.fullmatch(given) is None:
                return calendar.start(_parsed_day(given))
            found = _parsed_us(given)
        except (ValueError, OverflowError) as error:
            told = "a day like 2026-04-05 or a moment like 2026-04-05T14:00:00Z"
            raise BadRequest(f"`{name}` must be {told}.", param=name) from error
        if found % HOUR_US:
            raise BadRequest(f"`{name}` must be on a full hour (UTC).", param=name)
        return found


def _parsed_us(text: str) -> int:
    if _MOMENT.fullmatch(text) is None:
        return start_of(_parsed_day(text))
    moment = dt.datetime.fromisoformat(text.upper()).astimezone(dt.UTC)
    _supported_day(moment.date())
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def _parsed_day(text: str) -> dt.date:
    if _DAY.fullmatch(text) is None:
        raise ValueError(text[:40])
    return _supported_day(dt.date.fromisoformat(text))


def _supported_day(day: dt.date) -> dt.date:
    """Return the day, if supported. The last year of `date` is excluded, so that the end of a range is a date too."""
    if not _EPOCH <= day < dt.date(9998, 1, 1):
        raise ValueError("no time of ours")
    return day


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))


def check_query(request: Request) -> None:
    """Raise BadRequest for a parameter that the request's route does not declare, unless its shape is another's."""
    if request.scope["query_string"]:
        route: APIRoute = request.scope["route"]
        if _OTHERS_TAGS.isdisjoint(route.tags):
            told = (route.openapi_extra or {}).get("parameters", ())
            Parameters(request.query_params, (each["name"] for each in told))


def check_path(request: Request) -> None:
    """Raise HTTPException (404) for a NUL in the path: no name has one, and PostgreSQL would fail on it."""
    if "\x00" in request.scope["path"]:
        raise HTTPException(HTTPStatus.NOT_FOUND)
