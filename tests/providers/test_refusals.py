"""One table says of each refusal whose it is; every row of it is tried with what the provider or engine said."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.errors import (
    AnswerLost,
    PromptTooLong,
    RequestRejected,
    UpstreamError,
    UpstreamOverloaded,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamUnavailable,
)
from providers.refusals import Parameter, Row, pace_s, read_table, refusal_of, refused_parameter, row_of
from providers.refusals_page import page
from providers.upstream_faults import error_in_reply, error_of_status

TABLE: Final = read_table()
BY_WORDS: Final = [row for row in TABLE.refusal if row.example]
BY_STATUS: Final = [(status, row) for row in TABLE.refusal if not row.example for status in sorted(row.status)]
REPEATING: Final = frozenset({400, 413, 422, 424, 500})
"""Statuses whose messages may repeat what a request says."""


def name_of(row: Row) -> str:
    looked_for = "; ".join((*row.begins, *row.words, *sorted(row.codes)))
    return f"{row.provider}: {looked_for[:48]}"


def meant(error: UpstreamError) -> tuple[Any, ...]:
    return error.owner, error.reason


def expected(row: Row) -> tuple[type[UpstreamError], ...]:
    match row.owner:
        case "request":
            return (PromptTooLong if row.told_code == "context_length_exceeded" else RequestRejected,)
        case "operator":
            return (UpstreamRefusedUs,)
        case "pace":
            return (UpstreamOverloaded if row.reason == "overloaded" else UpstreamRateLimited,)
        case "health":
            return (AnswerLost if row.reason == "lost" else UpstreamUnavailable,)


@pytest.mark.parametrize("row", BY_WORDS, ids=name_of)
def test_an_example_is_what_its_row_says(row: Row) -> None:
    """Class, owner, reason, whether another target is asked, and the code that clients act on."""
    error = error_of_status(row.example_status or 0, row.example.encode(), {}, deployment_id="t/a")
    assert type(error) in expected(row)
    assert meant(error) == (row.owner, row.reason)
    assert error.fall_back is (row.elsewhere if row.owner == "request" else True)
    assert error.key_refused is (row.owner == "operator" and row.certain)
    assert error.gateway_failure is (row.owner == "health" or not row.certain)
    if isinstance(error, RequestRejected):
        assert error.status in {400, 413, 422}
        assert row.told_code in {None, error.code}


@pytest.mark.parametrize("row", [row for row in BY_WORDS if not row.status], ids=name_of)
def test_an_example_within_a_stream_means_the_same(row: Row) -> None:
    """What needs no status is known without one."""
    try:
        told = msgspec.json.decode(row.example)
    except msgspec.DecodeError:
        told = row.example
    assert meant(error_in_reply(told, "t/a")) == (row.owner, row.reason)


@pytest.mark.parametrize(("status", "row"), BY_STATUS)
def test_a_status_alone(status: int, row: Row) -> None:
    """Of a body that says nothing the status decides; a bare 403 or 404 is no certain fault of the operator's."""
    error = error_of_status(status, b"<html>no</html>", {}, deployment_id="t/a")
    assert type(error) in expected(row)
    assert meant(error) == (row.owner, row.reason)
    assert error.key_refused is (row.owner == "operator" and row.certain)
    assert error.gateway_failure is (row.owner == "health" or not row.certain)


@pytest.mark.parametrize(("status", "owner"), [(418, "operator"), (511, "health"), (599, "health")])
def test_a_status_that_is_in_no_row(status: int, owner: str) -> None:
    """A server's fault counts as its health; anything else may be ours, and takes nothing down at once."""
    error = error_of_status(status, b"", {}, deployment_id="t/a")
    assert (error.owner, error.key_refused, error.gateway_failure) == (owner, False, True)


@pytest.mark.parametrize("row", [row for row in TABLE.refusal if row.owner != "request"], ids=name_of)
def test_no_caller_can_write_what_takes_a_deployment_from_others(row: Row) -> None:
    """Words that a message repeats from a request make it neither the operator's fault nor the provider's pace."""
    if row.words and not row.begins:
        assert row.status, "words anywhere in a message need statuses"
        assert row.status.isdisjoint(REPEATING)
    for words in (*row.begins, *row.words):
        said = words.replace("*", "x")
        for body in (
            {"detail": [{"type": "float_type", "loc": ["body", said], "msg": f"wrong: {said}", "input": said}]},
            {"error": {"message": f"1 validation error: 'input': '{said}'", "type": "BadRequestError", "code": 400}},
            {"error": f"Input validation error: unknown variant `{said}`", "error_type": "validation"},
            {"error": {"message": f'{{"no json": {said}', "type": "invalid_request_error"}},
            {"error": {"message": f'wrong: {{"error": {{"message": "{said}"}}}}', "type": "invalid_request_error"}},
        ):
            for status in (400, 422, 500):
                error = error_of_status(status, msgspec.json.encode(body), {}, deployment_id="t/a")
                assert error.owner in {"request", "health"}, body


@pytest.mark.parametrize("row", TABLE.refusal, ids=name_of)
def test_a_row_says_what_it_rests_on(row: Row) -> None:
    """Each has a source and a date, and is written as messages are compared: in lower case, on one line."""
    assert row.source.startswith("https://")
    assert row.date is not None
    for words in (*row.begins, *row.words, *row.codes):
        assert words == words.lower()
        assert "\n" not in words
    assert row.owner == "request" or not row.elsewhere
    assert row.example or (row.status and not row.codes and not row.begins and not row.words)


@pytest.mark.parametrize("row", BY_WORDS, ids=name_of)
def test_serving_reads_no_evidence_and_the_same_rows(row: Row) -> None:
    """What rows rest on is left out for speed alone."""
    said = [*row.begins, ""][0].replace("*", "x") + [*row.words, ""][0]
    found = row_of(row.example_status or 0, code=next(iter(row.codes), None), kind=None, message=said)
    assert found is not None
    assert (found.owner, found.reason, found.elsewhere) == (row.owner, row.reason, row.elsewhere)
    assert (found.source, found.example) == ("", "")


NOW: Final = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
        ({"retry-after": "Mon, 01 Jun 2026 12:00:30 GMT"}, 30),
        ({"retry-after": "Mon, 01 Jun 2026 11:00:00 GMT"}, 0),
        ({"retry-after": "86400"}, 3_600),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "99999999"}, None),
        ({"retry-after": "tomorrow"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], expected_s: float | None) -> None:
    """Milliseconds first, then seconds, then a date; at most an hour, and senseless values count as absent."""
    assert pace_s(headers, "", None, NOW) == expected_s


@pytest.mark.parametrize("each", TABLE.reset, ids=lambda each: str(each.reset))
def test_a_limit_that_is_used_up_says_when_it_is_fresh(each: Any) -> None:
    """In every provider's own form; what is left of a limit makes its reset meaningless, and `retry-after` goes first."""
    used_up = {each.remaining: "0", each.reset: each.example}
    assert pace_s(used_up, "", None, NOW) == pytest.approx(each.example_s)
    assert pace_s({each.remaining: "3", each.reset: each.example}, "", None, NOW) is None
    assert pace_s({each.reset: each.example}, "", None, NOW) is None
    assert pace_s({**used_up, "retry-after": "5"}, "", None, NOW) == 5


@pytest.mark.parametrize("each", TABLE.wait, ids=lambda each: str(each.after))
def test_words_that_tell_a_wait(each: Any) -> None:
    """Where no header does."""
    assert pace_s({}, each.example, None, NOW) == pytest.approx(each.example_s)
    assert pace_s({"retry-after": "1"}, each.example, None, NOW) == 1


@pytest.mark.parametrize(
    ("value", "expected_s"),
    [
        ("30", 30),
        ("6m0s", 360),
        ("2h3m", 3_600),
        ("1780315230", 30),
        ("1780315230000", 30),
        ("2026-06-01T12:00:30Z", 30),
        ("2026-06-01T14:00:30+02:00", 30),
        ("1780315200000", 0),
        ("2026-06-01T11:00:00Z", None),
        ("nan", None),
        ("-5", None),
        ("1e300", None),
        ("soon", None),
        ("6m0", None),
        ("9" * 80, None),
    ],
)
def test_forms_of_a_reset(value: str, expected_s: float | None) -> None:
    """Seconds, a duration, a moment since 1970 in either unit, or a date; what is over or absurd counts as absent."""
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": value}
    assert pace_s(headers, "", None, NOW) == expected_s


def test_the_limit_that_lasts_longest_counts() -> None:
    """Tokens are fresh in a blink, requests in a minute."""
    headers = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "12ms",
    }
    assert pace_s(headers, "", None, NOW) == 60


def test_waits_that_stand_in_the_body() -> None:
    """Google's delay, and the headers that OpenRouter puts there."""
    gemini = {
        "error": {
            "code": 429,
            "message": "Quota exceeded.",
            "status": "RESOURCE_EXHAUSTED",
            "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}],
        }
    }
    error = error_of_status(429, msgspec.json.encode([gemini]), {}, deployment_id="t/a", now=NOW)
    assert (type(error), error.retry_after_s) == (UpstreamRateLimited, 34)
    headers = {"X-RateLimit-Limit": "50", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1780315230000"}
    router = {"error": {"message": "Rate limit exceeded", "code": 429, "metadata": {"headers": headers}}}
    error = error_of_status(429, msgspec.json.encode(router), {}, deployment_id="t/a", now=NOW)
    assert (type(error), error.retry_after_s) == (UpstreamRateLimited, 30)


@pytest.mark.parametrize(
    "before",
    [
        "litellm.BadRequestError: AnthropicException - ",
        "litellm.BadRequestError: litellm.APIError: OpenrouterException - Error code: 400 - {'error': {'message': '",
        "An error occurred (ValidationException) when calling the Converse operation (reached max retries: 4): ",
        "Error from provider (Console): ",
        "[address=0.0.0.0:43769, pid=1065] ",
        "",
    ],
)
def test_what_gateways_put_before_words_is_passed_over(before: str) -> None:
    """They repeat what they were told after names of their own."""
    said = f"{before}Your  credit balance is too LOW to access the Anthropic API."
    assert refusal_of(400, code=None, kind=None, message=said).reason == "credit"
    assert refusal_of(400, code=None, kind=None, message=f"{before}name: {said[len(before) :]}").owner == "request"


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "detail", "message", "code", "type", "status", "details", "metadata", "raw", "loc", "msg"]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.integers(300, 599), JSON)
def test_any_body_is_an_error_of_ours(status: int, body: Any) -> None:
    """Nobody vouches for the shape of what an upstream says, nor for that of what it says within that."""
    for told in (body, {"error": msgspec.json.encode(body).decode()}):
        error = error_of_status(status, msgspec.json.encode(told), {}, deployment_id="t/a", now=NOW)
        assert len(error.public) <= 500
        assert error.owner in {"request", "operator", "pace", "health"}
    assert error_in_reply(body, "t/a").owner


@given(st.text(max_size=300), st.text(max_size=80), st.sampled_from(["retry-after", "x-ratelimit-reset"]))
def test_a_wait_is_bounded_whatever_is_said(message: str, value: str, name: str) -> None:
    """None, or between nothing and an hour."""
    told = pace_s({name: value, "x-ratelimit-remaining": "0"}, f"try again in {message}", [{"retryDelay": value}], NOW)
    assert told is None or 0 <= told <= 3_600


@given(st.integers(300, 599), st.text(max_size=20), st.text(max_size=300))
def test_every_refusal_is_somebodys(status: int, code: str, message: str) -> None:
    """Whatever is said."""
    assert refusal_of(status, code=code, kind=code, message=message).owner
    assert refusal_of(None, code=code, kind=None, message=message).owner


def test_the_page_has_every_row() -> None:
    """`python -m providers.refusals_page > docs/refusals.md` writes it."""
    written = Path(__file__).parents[2] / "docs" / "refusals.md"
    assert written.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("row", TABLE.parameter, ids=lambda row: f"{row.provider}: {row.says[:40]}")
def test_a_parameter_that_is_refused_by_its_name_is_found(row: Parameter) -> None:
    """In what each provider says, whose fault it is notwithstanding; another target may take it."""
    assert row.example_status is not None
    error = error_of_status(row.example_status, row.example.encode(), {}, deployment_id="t/main")
    assert isinstance(error, RequestRejected)
    assert error.parameter is not None
    assert error.parameter.name == row.example_name
    assert error.fall_back
    assert row.source.startswith("https://")
    assert row.date is not None


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Unsupported value: 'reasoning_effort' does not support 'minimal' with this model. Supported values are: 'low'.",
        "Unsupported parameter: 'messages[0].name' is not supported with this model.",
        "Invalid JSON payload received. Unknown name \"const\" at 'tools[0]': Cannot find field.",
        "messages.0.content: Extra inputs are not permitted",
        "The parameter seed is not supported with this model",
        "'seed' is not supported",
    ],
)
def test_no_other_message_names_a_refused_parameter(message: str) -> None:
    """A part of a message, a value, or a name within another one is none."""
    assert refused_parameter(message) is None
