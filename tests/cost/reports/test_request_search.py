"""The line that requests are searched by: what it means, and that nothing of it is passed over in silence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.end_users import booked
from cost.reports.request_search import FIELDS, MOST_WORDS, called, parse, span_of
from cost.times import DAY_US, MINUTE_US

AT: int = 1_795_529_000_000_000 // DAY_US * DAY_US


def test_fields_times_and_bounds() -> None:
    """All of them together, in any order and case of the field."""
    found = parse(
        'User:ann status:5XX cost>0.5 latency>=300ms latency<2 at:2026-11-24T14:03:07 key:"nightly jobs" gpt-4o'
    )
    assert found.problems == ()
    assert found.fields == {
        "end_user": "ann",
        "status": "5xx",
        "dearer_nanousd": 500_000_001,
        "slower_us": 300_000,
        "faster_us": 1_999_999,
        "since_us": span_of("2026-11-24T14:03:07")[0],  # type: ignore[index]
        "until_us": span_of("2026-11-24T14:03:07")[1],  # type: ignore[index]
    }
    assert (found.key, found.words) == ("nightly jobs", ("gpt-4o",))


@pytest.mark.parametrize(
    ("text", "length_us"),
    [
        ("2026-11-24", DAY_US),
        ("2026-11-24T14", 60 * MINUTE_US),
        ("2026-11-24 14:03", MINUTE_US),
        ("2026-11-24T14:03:07Z", 10**6),
        ("2026-11-24T14:03:07.512Z", 10**6),
        ("2026-11-24 14:03:07 UTC", 10**6),
    ],
)
def test_a_time_is_as_long_as_it_is_written(text: str, length_us: int) -> None:
    """A day, an hour, a minute or a second, as pages and logs write them."""
    span = span_of(text)
    assert span is not None
    assert span[1] - span[0] == length_us
    assert parse(text.replace(" UTC", "") if " " not in text else f'"{text}"').fields == {
        "since_us": span[0],
        "until_us": span[1],
    }


def test_from_and_to_include_what_they_name() -> None:
    """And signs say which side of it."""
    day = span_of("2026-11-24")
    assert day is not None
    assert parse("from:2026-11-24").fields == {"since_us": day[0]}
    assert parse("to:2026-11-24").fields == {"until_us": day[1]}
    assert parse("at>2026-11-24").fields == {"since_us": day[1]}
    assert parse("at<2026-11-24").fields == {"until_us": day[0]}


@pytest.mark.parametrize(
    ("line", "time"),
    [
        ("14:03:20", "2026-11-28T14:03:20"),
        ("at:09:05", "2026-11-29T09:05"),
        ("at:9:05", "2026-11-29T09:05"),
        ("12:00", "2026-11-29T12:00"),
        ("12:01", "2026-11-28T12:01"),
        ("user:u-17 14:03:20Z", "2026-11-28T14:03:20"),
    ],
)
def test_a_time_without_a_day_is_the_last_one(line: str, time: str) -> None:
    """As people tell it who complain; its day is told."""
    noon = span_of("2026-11-29T12:00:30")
    assert noon is not None
    found = parse(line, now_us=noon[0])
    span = (found.fields["since_us"], found.fields["until_us"])
    assert (span, found.words) == (span_of(time), ())
    assert f"{time} (UTC)" in found.problems[0]


def test_what_is_no_time_of_a_day_is_a_word() -> None:
    """A model's name may look like one."""
    assert parse("llama3:70", now_us=1).words == ("llama3:70",)
    assert parse("25:61", now_us=1).words == ("25:61",)
    assert "is left out" in parse("at:25:61", now_us=1).problems[0]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("colour:red", "no field"),
        ("status:9xx", "429"),
        ("cost>much", "$0.5"),
        ("latency>soon", "300ms"),
        ("at:yesterday", "2026-11-24"),
        ("tag>red", "tag:red"),
        ("user:", "no value"),
        ("a " * (MOST_WORDS + 1), "at most"),
        (" ".join(["x" * 150] * 4), "at most"),
        ("tag:" + "x" * 201, "no tag has more than 200"),
        ("id:" + "x" * 201, "no id has more than 200"),
    ],
)
def test_what_is_not_understood_is_told(line: str, told: str) -> None:
    """With what would be."""
    (problem,) = parse(line).problems
    assert told in problem


def test_an_unknown_field_is_a_word_and_an_unknown_outcome_is_refused() -> None:
    """An end user may be called so; an outcome cannot."""
    found = parse("tenant:42")
    assert found.words == ("tenant:42",)
    assert all(field in found.problems[0] for field in FIELDS)
    assert parse("outcome:lucky", ("", "answered", "refused")).refusal == (
        "There is no outcome `lucky`; there are answered, refused."
    )
    assert parse("outcome:refused", ("refused",)).fields == {"outcome": "refused"}


def test_a_mail_address_is_looked_for_as_it_is_booked() -> None:
    """The books have its digest alone."""
    assert parse("user:ann@example.com").fields["end_user"].startswith("digest-")


def test_a_word_that_only_an_end_user_has() -> None:
    """Longer than any other name; the books have its digest."""
    for line in ("x" * 300, "user:" + "x" * 300):
        found = parse(line)
        assert (found.fields, found.words, found.problems) == ({"end_user": booked("x" * 300)}, (), ())


def test_names_in_any_case_the_exact_one_first() -> None:
    """Else all whose name has it or whose id begins so."""
    names = {"key_1": "prod", "key_2": "Prod EU", "other": "test"}
    assert called("PROD", names) == ("key_1",)
    assert called("pro", names) == ("key_1", "key_2")
    assert called("key_", names) == ("key_1", "key_2")
    assert called("nobody", names) == ()


@given(st.text(max_size=700))
def test_any_line_is_read(line: str) -> None:
    """Whatever it says."""
    found = parse(line)
    assert len(found.words) <= MOST_WORDS
    assert all(word for word in found.words)
