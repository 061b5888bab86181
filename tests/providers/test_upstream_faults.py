"""Upstreams' refusals are read in every dialect, and only what is safe of them is shown."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.errors import (
    AnswerLost,
    PromptTooLong,
    RequestRejected,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamUnavailable,
)
from providers.upstream_faults import clean, error_in_reply, error_of_status, retry_after_s


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"too long","type":"t"}}', "too long"),
        (b'{"error":"too long","error_type":"validation"}', "too long"),
        (b'{"object":"error","message":"too long","code":400}', "too long"),
        (b'{"detail":"too long"}', "too long"),
        (b"<html>internal.host</html>", "The upstream rejected the request."),
        (b"[]", "The upstream rejected the request."),
        (b'{"error":{"message":7}}', "The upstream rejected the request."),
        (b"", "The upstream rejected the request."),
    ],
)
def test_dialects(body: bytes, message: str) -> None:
    """OpenAI's, TGI's, vLLM's and FastAPI's error bodies are understood; others tell nothing."""
    error = error_of_status(400, body, {}, deployment_id="t/a")
    assert isinstance(error, RequestRejected)
    assert error.public == message
    assert not error.fall_back


@pytest.mark.parametrize(
    "key",
    [
        "sk-proj-abcdefghijklmnop",
        "sk-ant-api03-abcdefgh_ijk",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA1234567890abcdef",
        "gsk_abcdefgh12345678",
        "Bearer abc.def",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
        "0123456789abcdef0123456789abcdef",
        "sk-****************abcd",
    ],
)
def test_whatever_looks_like_a_key_is_masked(key: str) -> None:
    """Providers repeat the key they refuse; callers must not see ours."""
    shown = clean(f"Incorrect API key provided: {key} and more")
    assert "***" in shown
    assert key.removeprefix("Bearer ") not in shown
    assert shown.endswith("and more")


def test_our_own_key_is_masked_whatever_it_looks_like() -> None:
    """A key without any known shape is masked because it is ours."""
    assert clean("the key hunter2 is wrong", secret="hunter2") == "the key *** is wrong"


def test_ordinary_words_stay() -> None:
    """A helpful message stays helpful."""
    text = "This model's maximum context length is 128000 tokens; see `messages[3].content` (max_completion_tokens)."
    assert clean(text) == text


@given(st.text(max_size=3_000))
def test_shown_text_is_bounded_and_printable(text: str) -> None:
    """One bounded line without control characters, whatever came."""
    shown = clean(text)
    assert len(shown) <= 500
    assert shown == "" or shown.isprintable()


NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


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
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "99999999"}, None),
        ({"retry-after": "tomorrow"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], expected_s: float | None) -> None:
    """Milliseconds first, then seconds, then a date; senseless values count as absent."""
    assert retry_after_s(headers, NOW) == expected_s


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "m", "code": 503}, UpstreamUnavailable),
        ({"message": "m", "code": "429"}, UpstreamRateLimited),
        ({"message": "m", "code": 504}, AnswerLost),
        ({"message": "m", "type": "invalid_request_error"}, RequestRejected),
        ({"message": "m", "code": "context_length_exceeded"}, PromptTooLong),
        ({"message": "m", "code": "invalid_api_key"}, UpstreamRefusedUs),
        ({"message": "m", "code": 1}, UpstreamUnavailable),
        ("text", UpstreamUnavailable),
        (7, UpstreamUnavailable),
        ([], UpstreamUnavailable),
    ],
)
def test_error_objects_inside_a_reply(error: object, kind: type[Exception]) -> None:
    """A status, or else a kind's name, says what it means; anything else is the upstream's fault."""
    assert type(error_in_reply(error, "t/a")) is kind


def test_a_prompt_too_long_here_may_fit_elsewhere() -> None:
    """OpenAI's code for it lets the next candidate try; the caller still gets the upstream's 400 otherwise."""
    body = b'{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}'
    error = error_of_status(400, body, {}, deployment_id="t/a")
    assert isinstance(error, RequestRejected)
    assert error.fall_back
    assert (error.status, error.code, error.gateway_failure) == (400, "context_length_exceeded", False)
