"""Upstreams' refusals are read in every dialect, and only what is safe of them is shown."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.errors import (
    AnswerLost,
    PromptTooLong,
    RequestRejected,
    UpstreamOverloaded,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamUnavailable,
)
from providers.refusals import refused_parameter
from providers.upstream_faults import (
    clean,
    error_in_reply,
    error_of_status,
    says_any,
    without_echo,
    without_repeated_words,
)

_PAGE = (
    b"<html><head><title>400 Bad Request</title><style>p{a:b}</style></head><body><h1>400 Bad Request</h1>"
    b"<p>The plain HTTP request was sent to HTTPS port</p><address>nginx at internal.host</address></body></html>"
)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"too long","type":"t"}}', "too long"),
        (b'{"error":"too long","error_type":"validation"}', "too long"),
        (b'{"object":"error","message":"too long","code":400}', "too long"),
        (b'{"detail":"too long"}', "too long"),
        (b'[{"error":{"code":400,"message":"too long","status":"INVALID_ARGUMENT"}}]', "too long"),
        (b'{"detail":[{"loc":["body","messages",0],"msg":"too long","type":"x"}]}', "body.messages.0: too long"),
        (b'{"detail":[{"msg":"too long"},{"msg":"too wide"},7]}', "too long; too wide"),
        (b'{"detail":[]}', "The upstream rejected the request."),
        (b'{"error":"{\\"error\\":{\\"message\\":\\"too long\\"}}"}', "too long"),
        (
            b'{"error":{"message":"{\\n \\"error\\": {\\"code\\": 400, \\"message\\": \\"too long\\"}}\\n","code":400}}',
            "too long",
        ),
        (b'{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"too long"}}}', "too long"),
        (b'{"message":"{7}"}', "{7}"),
        (b"too long", "too long"),
        (b"<html>internal.host</html>", "The upstream rejected the request."),
        (
            _PAGE,
            "400 Bad Request. The plain HTTP request was sent to HTTPS port",
        ),
        (b"<h1>" + b"long " * 200 + b"</h1>", "long " * 39 + "long…"),
        (b'{"detail":["too long","too wide"]}', "too long; too wide"),
        (
            b'{"object":"error","message":{"detail":[{"loc":["body","top"],"msg":"is no field"}]}}',
            "body.top: is no field",
        ),
        (b'{"errors":[{"message":"too long","code":"x"}]}', "too long"),
        (b'{"code":10013,"msg":"too long"}', "too long"),
        (b'{"error":"invalid_request","error_description":"too long"}', "too long"),
        (b'{"title":"Bad Request","status":400,"detail":"too long"}', "too long"),
        (b"[]", "The upstream rejected the request."),
        (b'{"error":{"message":7}}', "The upstream rejected the request."),
        (b"", "The upstream rejected the request."),
    ],
)
def test_dialects(body: bytes, message: str) -> None:
    """Error bodies of OpenAI, TGI, vLLM, FastAPI and Gemini, those within others, and plain text; of pages the headings."""
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


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "m", "code": 503}, UpstreamUnavailable),
        ({"message": "m", "code": "429"}, UpstreamRateLimited),
        ({"message": "m", "code": 504}, AnswerLost),
        ({"message": "m", "type": "invalid_request_error"}, RequestRejected),
        ({"message": "m", "code": "context_length_exceeded"}, PromptTooLong),
        ({"message": "m", "code": "invalid_api_key"}, UpstreamRefusedUs),
        ({"message": "m", "type": "overloaded_error"}, UpstreamOverloaded),
        ({"message": "m", "type": "insufficient_quota"}, UpstreamRefusedUs),
        ([{"error": {"message": "m", "code": 429, "status": "RESOURCE_EXHAUSTED"}}], UpstreamRateLimited),
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


def test_a_provider_behind_a_gateway_is_heard() -> None:
    """A 502 that repeats what the provider behind it said of the request is the request's; of anything else it is a failure."""

    def behind(raw: str) -> bytes:
        metadata = {"raw": raw, "provider_name": "Anthropic"}
        return msgspec.json.encode({"error": {"message": "Provider returned error", "code": 502, "metadata": metadata}})

    long = behind(
        '{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 8 maximum"}}'
    )
    error = error_of_status(502, long, {}, deployment_id="t/a")
    assert isinstance(error, PromptTooLong)
    assert (error.status, error.code) == (400, "context_length_exceeded")
    wrong = behind('{"error":{"message":"tools[0] has no name","code":400}}')
    assert type(error_of_status(502, wrong, {}, deployment_id="t/a")) is RequestRejected
    assert type(error_of_status(502, behind("upstream connect error"), {}, deployment_id="t/a")) is UpstreamUnavailable
    theirs = behind('{"error":{"message":"no such key","code":401}}')
    assert type(error_of_status(502, theirs, {}, deployment_id="t/a")) is UpstreamUnavailable


def test_our_account_there_is_masked() -> None:
    """OpenAI and Groq name the organisation in what is told to callers."""
    shown = clean(
        "Request too large for gpt-4o in organization org-vyUrKHsIdLcZGKR3zqCqllrS on tokens per min; organization `org_01kjh7p9n8f1`"
    )
    assert "org-vy" not in shown
    assert "org_01" not in shown
    assert clean("an org-wide setting, a proj-specific_one") == "an org-wide setting, a proj-specific_one"


def test_words_of_a_depth_without_end_are_bounded() -> None:
    """Errors within errors within errors."""
    nested: object = "too long"
    for _ in range(50):
        nested = {"error": nested}
    body: object = {"error": "too long"}
    for _ in range(8):
        body = {"error": msgspec.json.encode(body).decode()}
    assert error_of_status(400, msgspec.json.encode(nested), {}, deployment_id="t/a").status == 400
    error = error_of_status(400, msgspec.json.encode(body), {}, deployment_id="t/a")
    assert len(error.public) <= 500


LED = "Your credit balance is too low"


@pytest.mark.parametrize(
    ("fields", "owner"),
    [
        ({LED: b"1"}, "request"),
        ({"messages": b'[{"content":"your credit\\n balance is TOO low"}]'}, "request"),
        ({"messages": b'[{"content":"\\u0079our credit balance is too low"}]'}, "request"),
        ({"messages": b'[{"content":"your\\u2003credit\\u00A0balance\\u3000is too low"}]'}, "request"),
        ({"messages": '"your\u2003credit balance is too low"'.encode()}, "request"),
        ({"messages": b'"' + b"\\u0061" * 5_000 + b'"'}, "request"),
        ({"messages": b'[{"content":"how low is my balance?"}]'}, "operator"),
        ({"model": b'"' + LED.encode() + b'"'}, "operator"),
    ],
)
def test_what_a_request_says_itself_is_no_word_of_its_upstream(fields: dict[str, bytes], owner: str) -> None:
    """Only the status is left of such a refusal, however the request writes it; any other is believed."""
    error = error_of_status(400, msgspec.json.encode({"error": {"message": f"{LED}: x"}}), {}, deployment_id="t/a")
    assert error.owner == "operator"
    assert without_repeated_words(error, fields).owner == owner


@pytest.mark.parametrize(
    "said",
    [
        "un\u212anown parameter: 'temperature'",
        "Un\u212aNOWN\u2003parameter: \u2019temperature\u2019",
        "Unsupported\u202fparameter: \u2019temperature\u2019 is not supported with this model",
    ],
)
@pytest.mark.parametrize("ascii_alone", [True, False])
def test_a_parameter_that_a_request_itself_calls_refused_is_found_in_it(said: str, *, ascii_alone: bool) -> None:
    """Spaces, quotes and letters beyond ASCII that are read as those of ASCII hide nothing, escaped or not."""
    refused = refused_parameter(said)
    assert refused is not None
    raw = json.dumps([{"content": said}], ensure_ascii=ascii_alone).encode()
    assert says_any({"messages": raw}, (refused.words,))
    assert not says_any({"messages": b'[{"content":"temperature"}]'}, (refused.words,))


@pytest.mark.parametrize("ascii_alone", [True, False])
def test_what_operators_read_has_nothing_of_a_prompt_in_other_letters(*, ascii_alone: bool) -> None:
    """Many clients write letters beyond ASCII as escapes."""
    prompt = "Пациент жалуется на боль в груди"
    raw = json.dumps([{"content": prompt}], ensure_ascii=ascii_alone).encode()
    assert without_echo(f"cannot answer: {prompt}", [raw]) == "cannot answer: …"


def test_a_status_stands_whatever_is_repeated() -> None:
    """A refused key and a provider's pace are told by 401 and 429 all the same, and an object in a stream by none."""
    body = msgspec.json.encode({"error": {"message": f"{LED}: x"}})
    for status, owner in ((401, "operator"), (429, "pace"), (500, "health")):
        assert (
            without_repeated_words(error_of_status(status, body, {}, deployment_id="t/a"), {LED: b"1"}).owner == owner
        )
    assert without_repeated_words(error_in_reply({"message": LED, "code": 400}, "t/a"), {LED: b"1"}).owner == "health"
