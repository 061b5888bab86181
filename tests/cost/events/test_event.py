"""What an event says, against its published schema and CloudEvents' own rules."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from cloudevents.core.bindings import http as http_binding
from cloudevents.core.bindings import kafka as kafka_binding
from cloudevents.core.bindings.http import HTTPMessage
from cloudevents.core.bindings.kafka import KafkaMessage
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from cost.events.event import ADJUSTED, FIELDS, FINISHED, Event, encoder, envelope, schema, schema_file
from cost.ledger.entries import Entry, adjustment, void_of
from cost.meters import METER_COLUMNS
from cost.times import moment
from tests.cost.entries import reserve, settle

_PUBLISHED = Path(__file__).parents[3] / "docs" / "events.schema.json"


def entries() -> list[Entry]:
    posting = adjustment(
        "true-up/1",
        at_us=1_775_390_400_000_000,
        origin="idle",
        meters_nanousd=[-(2**60)] + [0] * (len(METER_COLUMNS) - 1),
        organisation_id="default",
        team_id="",
        key_id="",
        tier="idle",
        target_id="llama",
        provider="vllm",
        price_version="",
    )
    odd = settle("é\n😀", cost_nanousd=None, flags=("absurd_usage",), end_user="eu_1", complexity=None, ttft_us=None)
    return [settle(), odd, void_of(reserve()), posting, settle(entry="cache", attempt=2), settle(entry="expire")]


@pytest.mark.parametrize("entry", entries(), ids=lambda each: each.entry)
def test_every_event_is_as_the_schema_says(entry: Entry) -> None:
    """Settlements, refusals, postings, answers given again; unknown, empty, large and strange values."""
    made = msgspec.json.decode(encoder("here")(Event(7, entry)))
    jsonschema.Draft202012Validator(schema()).validate(made)
    assert made["id"] == f"{entry.request_id}/{entry.attempt}/{entry.entry}"
    assert made["type"] == (ADJUSTED if entry.entry == "adjust" else FINISHED)


@pytest.mark.parametrize("entry", entries(), ids=lambda each: each.entry)
def test_the_sdk_of_cloudevents_reads_them(entry: Entry) -> None:
    """Structured, as HTTP, Kafka and NATS get them, and each of a batch; and what it makes of one in binary mode is the same event."""
    event = Event(7, entry)
    told = encoder("https://here.example")(event)
    read = [
        http_binding.from_http_event(HTTPMessage({"content-type": "application/cloudevents+json"}, told)),
        kafka_binding.from_kafka_event(KafkaMessage({"content-type": b"application/cloudevents+json"}, b"key", told)),
        JSONFormat().read(CloudEvent, msgspec.json.encode(msgspec.json.decode(b"[" + told + b"]")[0])),
    ]
    read.append(http_binding.from_http_event(http_binding.to_binary_event(read[0])))
    made = envelope(event, "https://here.example")
    for each in read:
        assert each.get_data() == msgspec.json.decode(msgspec.json.encode(made["data"]))
        assert (each.get_id(), each.get_source(), each.get_type()) == (event.id, made["source"], made["type"])
        assert each.get_subject() == made.get("subject")
        assert int(each.get_extension("sequence")) == 7
        assert each.get_time() == moment(entry.at_us)


def test_the_published_schema_is_that_of_the_code() -> None:
    """`weighbridge events schema > docs/events.schema.json` writes it."""
    assert _PUBLISHED.read_bytes() == schema_file()
    jsonschema.Draft202012Validator.check_schema(schema())


def test_the_schema_can_fail() -> None:
    """A float where money stands, a number as `sequence` and a missing member are refused."""
    validator = jsonschema.Draft202012Validator(schema())
    spoilers: list[Callable[[Any], object]] = [
        lambda made: made["data"].update(cost_nanousd=0.5),
        lambda made: made.update(sequence=7),
        lambda made: made["data"].pop("team"),
        lambda made: made.update(subject=""),
    ]
    for spoil in spoilers:
        made = envelope(Event(7, settle()), "here")
        spoil(made)
        assert not validator.is_valid(made)


def test_money_is_exact_to_the_nano_dollar() -> None:
    """An integer as it is booked, also beyond 2^53, where JavaScript's own parser would round (cloudevents/sdk-javascript 489)."""
    encoded = encoder("here")(Event(1, settle(cost_nanousd=2**53 + 1)))
    assert f'"cost_nanousd":{2**53 + 1}'.encode() in encoded
    assert all(field.kind == "integer" for field in FIELDS if field.name.endswith(("_nanousd", "_tokens", "_us")))


def test_attributes_are_those_of_cloudevents() -> None:
    """Its integers have 32 bits (spec 514), so `sequence` is a text in the order of numbers; names are of lower-case letters."""
    texts = [envelope(Event(each, settle()), "here")["sequence"] for each in (9, 10, 2**31, 2**62)]
    assert texts == sorted(texts)
    assert {len(each) for each in texts} == {20}
    assert all(name.isalnum() and name == name.lower() for name in envelope(Event(1, settle()), "here"))


def test_a_subject_is_a_text_or_not_there() -> None:
    """OpenMeter refused LiteLLM's events whose subject was null (litellm 7569, 9006)."""
    assert envelope(Event(1, settle()), "here")["subject"] == "team_payments"
    assert "subject" not in envelope(Event(1, settle(team_id="")), "here")


def test_times_are_told_in_utc() -> None:
    """With a zone, to the microsecond, whatever the machine's own zone is."""
    assert envelope(Event(1, settle(at_us=1_775_390_400_000_001)), "here")["time"] == "2026-04-05T12:00:00.000001Z"


def test_nothing_else_of_an_entry_leaves() -> None:
    """Reasons in words, comparisons and the process's own id are not told."""
    secret: dict[str, Any] = {"reason": "my own words", "considered": "my own words", "boot_id": "my own words"}
    assert b"my own words" not in encoder("here")(Event(1, settle(**secret)))


def test_the_documented_query_finds_what_is_missing() -> None:
    """Of text or numbers, of what came twice, and not what comes after the last."""
    told = (_PUBLISHED.parent / "events.md").read_text("utf-8")
    query = told[told.index("        SELECT before") :].partition("\n\n")[0]
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE events (sequence TEXT)")
        numbers = [3, 4, 4, 6, 7, 10]
        database.executemany("INSERT INTO events VALUES (?)", [(f"{each:020}",) for each in numbers])
        assert database.execute(query).fetchall() == [(5, 5), (8, 9)]
