"""What the audit log's page, route and command share: filters, and how an entry is told."""

import msgspec
import pytest

from accounts.audit.entry import Entry
from accounts.audit.log import Filters
from api.audit.listing import BadFilter, csv_lines, entry_as_json, filters_from, name_of
from cost.times import DAY_US

ENTRY = Entry(
    number=7,
    at_us=1_775_390_400_123_456,
    organisation_id="acme",
    team_id="",
    actor_kind="key",
    actor_id="key_1",
    actor_name="ci",
    address="",
    action="key.created",
    object_kind="key",
    object_id="@key",
    reason="",
    before="",
    after='{"name":"x"}',
    previous_hash="0" * 64,
    hash="1" * 64,
)


def test_filters_are_read_from_an_address() -> None:
    """Days are whole UTC days, the last one included; what is no filter is left alone."""
    given = {"actor": " ann ", "object": "key", "from": "1970-01-01", "to": "1970-01-02", "sort": "-at"}
    assert filters_from(given) == Filters(actor="ann", object="key", first_us=0, until_us=2 * DAY_US)
    assert filters_from({}) == Filters()
    assert filters_from({"to": "9999-12-31"}).until_us is not None


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"from": "2026-02-30"}, "from"),
        ({"to": "today"}, "to"),
        ({"from": "2026-01-02", "to": "2026-01-01"}, "to"),
        ({"actor": "x" * 201}, "actor"),
        ({"team": "a\x00b"}, "team"),
    ],
)
def test_what_cannot_be_meant_is_named(given: dict[str, str], param: str) -> None:
    """The filter that is wrong, so that a form can say it beside the field."""
    with pytest.raises(BadFilter) as found:
        filters_from(given)
    assert found.value.param == param


def test_an_entry_is_told_without_what_it_has_not() -> None:
    """Empty texts are null, and a state that somebody damaged is shown as it is."""
    said = entry_as_json(ENTRY)
    assert (said["team_id"], said["reason"], said["before"], said["actor"]["address"]) == (None, None, None, None)
    assert said["after"] == {"name": "x"}
    damaged = Entry(**{**{name: getattr(ENTRY, name) for name in Entry.__struct_fields__}, "after": "{nonsense"})
    assert entry_as_json(damaged)["after"] == "{nonsense"


def test_a_csv_has_no_formula() -> None:
    """Also not from an id."""
    assert ",'@key," in csv_lines([ENTRY])


def test_an_entry_is_called_by_what_people_know_it_by() -> None:
    """Also where what changed was neither the address nor the name; a person's own doing by the person."""
    state = '{"disabled":true,"email":"ann@acme.example","name":"Ann"}'
    ann = msgspec.structs.replace(ENTRY, object_kind="person", object_id="person_1", before=state, after=state)
    assert name_of(ann) == "ann@acme.example"
    signed_in = msgspec.structs.replace(ann, actor_kind="person", actor_id="person_1", actor_name="Ann", after="")
    assert name_of(signed_in) == "Ann"
    assert name_of(ENTRY) == "x"
    assert name_of(msgspec.structs.replace(ENTRY, after="{nonsense")) == "@key"
