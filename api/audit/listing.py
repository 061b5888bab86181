"""The audit log's filters, JSON and exports, shared by its page, its API route and its command."""

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import date, timedelta
from typing import Any, Final

import msgspec

from accounts.audit.entry import Entry
from accounts.audit.log import AuditLog, Filters, Scope
from cost.reports.cells import csv_line
from cost.times import iso, start_of

MAX_FILTER_CHARS: Final = 200
MAX_EXPORT: Final = 1_000_000
"""Most entries of one export."""
FILTERS: Final = ("actor", "action", "object", "team", "from", "to")
_COLUMNS: Final = (
    "number",
    "at",
    "organisation_id",
    "team_id",
    "actor_kind",
    "actor_id",
    "actor_name",
    "address",
    "action",
    "object_kind",
    "object_id",
    "reason",
    "before",
    "after",
    "hash",
)


class BadFilter(ValueError):
    """A filter is not valid; `param` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def filters_from(given: Mapping[str, str]) -> Filters:
    """Read filters from an address's parameters, ignoring those not in FILTERS. Raises BadFilter."""
    asked = {name: given.get(name, "").strip() for name in FILTERS}
    for name, text in asked.items():
        if len(text) > MAX_FILTER_CHARS or not text.isprintable():
            raise BadFilter(name, f"it has at most {MAX_FILTER_CHARS} printable characters")
    first, last = _day(asked, "from"), _day(asked, "to")
    if first is not None and last is not None and last < first:
        raise BadFilter("to", "it is before `from`")
    return Filters(
        actor=asked["actor"],
        action=asked["action"],
        object=asked["object"],
        team_id=asked["team"],
        first_us=None if first is None else start_of(first),
        until_us=None if last is None else start_of(last + timedelta(days=1)),
    )


def _day(asked: Mapping[str, str], name: str) -> date | None:
    if not asked[name]:
        return None
    try:
        # The last day of the calendar has no day after it.
        return min(date.fromisoformat(asked[name]), date.max - timedelta(days=1))
    except ValueError:
        raise BadFilter(name, "it is a UTC day such as 2026-04-30") from None


def entry_as_json(entry: Entry) -> dict[str, Any]:
    """Return an entry as the API returns it."""
    return {
        "object": "audit.entry",
        "number": entry.number,
        "at": iso(entry.at_us),
        "organisation_id": entry.organisation_id,
        "team_id": entry.team_id or None,
        "actor": {
            "kind": entry.actor_kind,
            "id": entry.actor_id,
            "name": entry.actor_name,
            "address": entry.address or None,
        },
        "action": entry.action,
        "object_kind": entry.object_kind,
        "object_id": entry.object_id,
        "reason": entry.reason or None,
        "before": _state(entry.before),
        "after": _state(entry.after),
        "previous_hash": entry.previous_hash,
        "hash": entry.hash,
    }


def _state(text: str) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        # Not as it was written: shown all the same, and found by `weighbridge audit verify`.
        return text


def name_of(entry: Entry) -> str:
    """Return the object's e-mail address or name where the entry records one, otherwise its id."""
    if entry.object_kind == "person" and entry.object_id == entry.actor_id:
        return entry.actor_name
    state = _state(entry.after or entry.before)
    known = state if isinstance(state, dict) else {}
    return str(known.get("email") or known.get("name") or entry.object_id)


def ndjson(entries: Iterable[Entry]) -> bytes:
    """Return one JSON object a line, with every field that the verification of the hash chain needs."""
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def csv_head() -> str:
    """Return the heading line."""
    return csv_line(_COLUMNS)


def csv_lines(entries: Iterable[Entry]) -> str:
    """Return one line for each entry, with cells escaped against formula injection."""
    return "".join(csv_line([_cell(entry, name) for name in _COLUMNS]) for entry in entries)


def _cell(entry: Entry, name: str) -> str | int:
    found: str | int = iso(entry.at_us) if name == "at" else getattr(entry, name)
    return found


async def pieces(
    log: AuditLog, scope: Scope, filters: Filters, kind: str, most: int = MAX_EXPORT
) -> AsyncIterator[bytes]:
    """Yield an export in chunks of the oldest `most` entries, encoded. `kind` is csv or ndjson."""
    if kind == "csv":
        yield csv_head().encode()
    batch: list[Entry] = []
    async for entry in log.export(scope, filters, limit=most):
        batch.append(entry)
        if len(batch) == _AT_ONCE:
            yield _encode(batch, kind)
            batch = []
    if batch:
        yield _encode(batch, kind)


_AT_ONCE: Final = 200


def _encode(batch: list[Entry], kind: str) -> bytes:
    return csv_lines(batch).encode() if kind == "csv" else ndjson(batch)
