"""What an event says: one table of fields, the CloudEvent made of an entry, and the JSON schema of both."""

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import msgspec

from cost.ledger.entries import Entry
from cost.meters import METER_COLUMNS, REPLAYED_COLUMNS, TOKEN_COLUMNS
from cost.times import moment

FINISHED: Final = "com.weighbridge.request.finished.v1"
ADJUSTED: Final = "com.weighbridge.books.adjusted.v1"
_DIGITS: Final = 20
"""Digits of a sequence number. CloudEvents compares it as text, and its own integers have but 32 bits."""

Kind = Literal["string", "integer", "number", "boolean", "array"]


class Field(NamedTuple):
    """One member of an event's `data`."""

    name: str
    kind: Kind
    told: str
    """Its description in the schema."""
    source: str = ""
    """Field of `Entry`; the same name where it is empty."""
    nullable: bool = False
    """Null where the entry has None or an empty text."""

    def of(self, entry: Entry) -> Any:
        """Return its value."""
        value = getattr(entry, self.source or self.name)
        return None if self.nullable and value == "" else value


def _text(name: str, told: str, source: str = "") -> Field:
    return Field(name, "string", told, source, nullable=True)


def _count(name: str, told: str) -> Field:
    return Field(name, "integer", told)


FIELDS: Final = (
    Field("request_id", "string", "The request, as in the header x-request-id; of an adjustment the posting."),
    _count("attempt", "Which of the request's attempts, from 1; count requests by attempt 1."),
    Field(
        "entry", "string", "settle, void (nothing is owed), expire (its machine was lost), cache (given again), adjust."
    ),
    _text("organisation", "The organisation's id.", "organisation_id"),
    _text("team", "The team's id; null for what belongs to none.", "team_id"),
    _text("key", "The key's id, never the key.", "key_id"),
    _text("end_user", "The caller's own user, or a digest of a personal name."),
    _text("tag", "The caller's tag."),
    _text("tier", "interactive, batch, flex, priority, idle."),
    _text("asked_model", "The name that the caller asked for.", "alias"),
    _text("model", "The target that was called.", "target_id"),
    _text("deployment", "The deployment of it.", "deployment_id"),
    _text("provider", "The provider."),
    _text("pool", "The pool of own GPUs."),
    _text("origin", "caller, shadow, true-up, idle, correction, reconciliation."),
    Field("status", "integer", "The upstream's status; 0 where nobody knows it."),
    Field("stream", "boolean", "Whether it was streamed."),
    Field("served", "boolean", "Whether the caller got this attempt's answer, whole."),
    _text("usage_source", "Who counted the tokens: upstream, estimated, none …"),
    Field("flags", "array", "What was unusual, such as orphaned."),
    *(_count(name, "Tokens.") for name in TOKEN_COLUMNS),
    _text("unit", "Unit of what was used beside tokens."),
    _count("quantity_milli", "Quantity of it, in thousandths."),
    Field(
        "cost_nanousd",
        "integer",
        "Cost in nano-dollars (10^-9 USD), signed; null where the price is unknown.",
        "",
        nullable=True,
    ),
    *(_count(name, "Its part of the cost, in nano-dollars.") for name in METER_COLUMNS),
    Field(
        "baseline_nanousd", "integer", "Cost of the same at the baseline model; null without one.", "", nullable=True
    ),
    _count("batch_saved_nanousd", "Saved by the tier batch."),
    *(_count(name, "Of `cache`: what the answer had when a model gave it.") for name in REPLAYED_COLUMNS),
    _text("price_version", "Version of the price."),
    Field("ttft_us", "integer", "Time to the attempt's first token, in microseconds.", "", nullable=True),
    Field("duration_us", "integer", "Time of the attempt, in microseconds.", "", nullable=True),
    Field("complexity", "number", "How hard the prompt was judged to be, 0 to 1.", "", nullable=True),
)
"""Everything that leaves: no prompt, no answer, no key, no reason in words."""


class Event(NamedTuple):
    """An entry with its number in the stream."""

    sequence: int
    entry: Entry

    @property
    def id(self) -> str:
        """Return the entry's key, by which a receiver knows what it has already."""
        return f"{self.entry.request_id}/{self.entry.attempt}/{self.entry.entry}"

    def data(self) -> dict[str, Any]:
        """Return what is told of the entry."""
        return {field.name: field.of(self.entry) for field in FIELDS}


def sequence_text(sequence: int) -> str:
    """Return a number whose texts are in its own order."""
    return f"{sequence:0{_DIGITS}}"


def time_text(at_us: int) -> str:
    """Return a moment as RFC 3339 in UTC."""
    return moment(at_us).isoformat(timespec="microseconds").replace("+00:00", "Z")


def envelope(event: Event, source: str) -> dict[str, Any]:
    """Return the CloudEvent of structured mode."""
    entry = event.entry
    made: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": source,
        "type": ADJUSTED if entry.entry == "adjust" else FINISHED,
        "time": time_text(entry.at_us),
        "sequence": sequence_text(event.sequence),
        "datacontenttype": "application/json",
        "data": event.data(),
    }
    if entry.team_id:
        # An attribute that is there may not be empty.
        made["subject"] = entry.team_id
    return made


def encoder(source: str) -> Callable[[Event], bytes]:
    """Return what writes an event as JSON."""
    encode = msgspec.json.Encoder().encode
    return lambda event: encode(envelope(event, source))


def schema() -> dict[str, Any]:
    """Return the JSON schema of an event."""
    required = ["specversion", "id", "source", "type", "time", "sequence", "datacontenttype", "data"]
    told = {"type": "string", "minLength": 1}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Event of Weighbridge's ledger",
        "description": "A CloudEvent 1.0. `id` names the entry: the same id is the same entry, however often it comes. Members may be "
        "added; none changes its meaning within v1.",
        "type": "object",
        "required": required,
        "properties": {
            "specversion": {"const": "1.0"},
            "id": {**told, "description": "REQUEST/ATTEMPT/ENTRY."},
            "source": {**told, "description": "`events.source` of the configuration."},
            "type": {"enum": [FINISHED, ADJUSTED]},
            "subject": {**told, "description": "The team's id."},
            "time": {**told, "format": "date-time", "description": "Of the entry, UTC."},
            "sequence": {
                "type": "string",
                "pattern": f"^[0-9]{{{_DIGITS}}}$",
                "description": "Counts events without a gap: a number that never comes was dropped.",
            },
            "datacontenttype": {"const": "application/json"},
            "data": {
                "type": "object",
                "required": [field.name for field in FIELDS],
                "properties": {field.name: _schema_of(field) for field in FIELDS},
            },
        },
    }


def _schema_of(field: Field) -> dict[str, Any]:
    made: dict[str, Any] = {"type": [field.kind, "null"] if field.nullable else field.kind, "description": field.told}
    return made | {"items": {"type": "string"}} if field.kind == "array" else made


def schema_file() -> bytes:
    """Return the schema as it is published."""
    return msgspec.json.format(msgspec.json.encode(schema()), indent=2) + b"\n"
