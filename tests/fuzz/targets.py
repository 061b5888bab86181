"""The readers of what strangers send, each with sound examples and the errors that it may raise. Anything else raised is a fault.

A new reader of strangers' bytes gets a row of `TARGETS`.
"""

import asyncio
import contextlib
import gzip
import json
import tempfile
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from joserfc import jwt
from joserfc.jwk import OctKey

from accounts.audit.audit_errors import AuditError
from accounts.audit.verify import parse_anchor, verify_lines
from accounts.errors import MalformedKey
from accounts.keys import parse_key
from accounts.openid.description import description_of
from accounts.openid.id_token import Expected, Header, claims_of, header_of
from accounts.openid.openid_errors import ProviderFailed, TokenUnsound
from accounts.openid.pending import PendingSignIns
from accounts.openid.signing_keys import usable
from accounts.people.oidc_config import OidcSection
from api.budgets.listing import parse_budget
from api.feedback.routes import GiveFeedback
from api.feedback.routes import _decoded as _decoded_feedback
from api.prices.listing import BadPrice, checked_prices, parse_prices
from api.web.admin_access import parsed
from cost.budgets.budget_errors import BadBudget
from cost.ledger.segments import decode_drained, decode_line, lines_of
from cost.reconcile.anthropic import read_anthropic
from cost.reconcile.openai import read_openai
from cost.reconcile.statement import BadExport
from cost.reports.cursor import decode_cursor, encode_cursor
from cost.reports.report_errors import BadQuery
from cost.reports.request_search import parse as parse_search
from gateway.configuration.environment import Environment
from gateway.configuration.file import ConfigError
from gateway.configuration.settings import load
from gateway.database_address import UnknownDatabase, read_address
from guard.guard_config import GuardSection
from guard.inspector import Guard
from guard.walker import TooMuch, Walk
from planner.simulate.simulation_errors import SimulationRefused
from planner.simulate.traces import read_trace
from providers.batch_apis import anthropic as anthropic_batches
from providers.batch_apis import openai as openai_batches
from providers.claude.reply import ClaudeReader
from providers.claude.request import claude_body
from providers.errors import UpstreamError, UpstreamOverloaded
from providers.metered_replies import decode_metered
from providers.sse import EventTooLarge, SseParser
from providers.upstream_faults import original_of
from providers.wire import decode_embeddings, decode_event, upstream_body
from proxy.batch.validation import Validated, Validation
from proxy.cache.kept_answer import read as read_kept
from proxy.errors import Refused
from proxy.http.chunks import Chunks
from proxy.http.content_coding import decompressed, is_read
from proxy.http.head import parse_head
from proxy.http.multipart import Head, Multipart
from proxy.http.preamble import parse_preamble
from proxy.parse.chat_request import input_tokens, needs, prompt_of
from proxy.parse.headers import RequestHeaders
from proxy.parse.json_bounds import check_structure
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.completions.wire import COMPLETIONS
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.continuing import names_in
from proxy.parse.wires.responses.wire import RESPONSES
from proxy.parse.wires.wire import Wire
from proxy.plan.decision_record import read as read_record
from proxy.responses_socket import _asked
from proxy.routes import WIRES
from selfhosted.engines.prometheus_text import PageReader, PageUnreadable
from selfhosted.kv_events.events import Unreadable, pieces, read_batch, read_message
from settings.decoding import DECODE_ERRORS
from tests.fuzz.mutations import Form
from tests.fuzz.mutations import pieces as in_pieces
from tests.gateway.from_litellm.test_configurations import FILES as LITELLM_FILES
from tests.gateway.from_litellm.test_configurations import imported
from tests.providers.calls import deployment, upstream_call
from tests.proxy.parse.wires.writing import served

_ROOT: Final = Path(__file__).parents[2]


class Target(msgspec.Struct, frozen=True):
    """One reader. `read` raises what is in `refuses`, or an AssertionError where a promise of the reader does not hold."""

    name: str
    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    refuses: tuple[type[Exception], ...] = ()
    form: Form = "bytes"


def _packed(*values: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


# Requests.

_TURNS: Final[list[dict[str, Any]]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "hi"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "4111 1111 1111 1111"},
]
_TOOL: Final = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
_CLAUDE_TURNS: Final[list[dict[str, Any]]] = [
    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "r"}]}],
    },
]
_ITEMS: Final[list[dict[str, Any]]] = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "hi"},
            {"type": "input_image", "image_url": "data:image/png;base64,aGk="},
        ],
    },
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "1"},
    {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
]
_BODY: Final[dict[str, Any]] = {
    "model": "auto", "max_tokens": 9, "messages": _TURNS, "tools": [_TOOL], "stream": True, "n": 1, "stop": ["a"],
    "stream_options": {"include_usage": True}, "temperature": 0.5, "user": "u", "metadata": {"user_id": "u"},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "x-tier": "batch", "x-session-id": "s", "service_tier": "flex", "reasoning_effort": "low", "tool_choice": "auto",
}  # fmt: skip
_BODIES: Final[dict[str, tuple[Any, ...]]] = {
    "chat": (_BODY,),
    "messages": (
        {"model": "auto", "max_tokens": 9, "system": [{"type": "text", "text": "s"}], "messages": _CLAUDE_TURNS, "metadata": {"user_id": "u"},
         "thinking": {"type": "enabled", "budget_tokens": 2000}, "tools": [{"name": "f", "input_schema": {"type": "object"}}],
         "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "stop_sequences": ["x"], "output_config": {"effort": "low"}},
    ),
    "responses": (
        {"model": "auto", "input": _ITEMS, "instructions": "i", "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
         "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}, "reasoning": {"effort": "low", "summary": "auto"},
         "store": False, "include": ["reasoning.encrypted_content"], "max_output_tokens": 9, "previous_response_id": "resp_1", "stream": True},
        {"type": "response.create", "model": "auto", "input": "hi"},
    ),
    "other": (
        {"model": "auto", "prompt": ["hi", [1, 2]], "suffix": "s", "echo": True, "logprobs": 1, "best_of": 1},
        {"model": "m", "input": ["hi", [1, 2]], "dimensions": 8, "encoding_format": "base64"},
        {"model": "m", "input": [{"type": "text", "text": "hi"}], "voice": "alloy", "speed": 1.0},
        {"model": "m", "input": "hi", "voice": "alloy"},
        {"model": "m", "file": {"size": 10}, "prompt": "p", "stream": "true"},
        {"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 2},
        {"model": "m", "prompt": "p", "n": 1, "size": "1024x1024", "quality": "low"},
        {"model": "m", "prompt": "p", "n": "1", "file": {"size": 10}, "image": [{"size": 1}], "stream": "true"},
    ),
}  # fmt: skip
_BODY_SEEDS: Final = _packed(*(body for bodies in _BODIES.values() for body in bodies))
_CLAUDE: Final = deployment("litellm", upstream_model="anthropic/claude-x", base_url="")


def _wire(wire: Wire) -> Target:
    """What is read can be weighed, and sent to whom it is for."""

    def read(body: bytes) -> None:
        check_structure(body)
        names_in(body)
        understood = wire.read(body, RequestHeaders(), lambda name: name == "auto")
        request = understood.request
        needs(request)
        assert input_tokens(request, prompt_of(request)) >= 0
        if request.operation != "chat":
            return
        json.loads(upstream_body(request, deployment("openai")))
        if request.as_written is None:
            with contextlib.suppress(UpstreamError):
                json.loads(claude_body(upstream_call(_CLAUDE, request, marks_cache=True)).body)

    return Target(f"request {wire.path}", read, _BODY_SEEDS, (Refused,), "json")


_FORM: Final = (
    b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n\x00\x01\r\n--C\r\n--B--\r\n'
)


def _multipart(data: bytes) -> None:
    """Where the network cuts it does not matter."""

    def parts(reads: list[bytes]) -> list[tuple[Head, bytes]]:
        parser, found = Multipart("multipart/form-data; boundary=B"), list[tuple[Head, bytes]]()
        for each in (each for read in reads for each in parser.feed(read)):
            if isinstance(each, Head):
                found.append((each, b""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + each)
        assert not parser.is_complete or b"--B" in data
        return found

    # A refusal may come before or after what was read of a part; what is read whole is the same.
    assert parts([data]) == parts(in_pieces(data))


def _chunks(data: bytes) -> None:
    """Where the network cuts it does not matter, nor what follows."""

    def body(reads: list[bytes]) -> tuple[bytes, bool]:
        chunks, found = Chunks(8_192, 32), b""
        for read in reads:
            if chunks.whole:
                break
            found += chunks.feed(read)[0]
        return found, chunks.whole

    assert body([data]) == body(in_pieces(data))


def _head(data: bytes) -> None:
    end = data.find(b"\r\n\r\n")
    if end >= 0:
        head = parse_head(data[: end + 4], 32_768, 100)
        assert head.path.startswith("/") or head.path == "*", head.path


def _coded(data: bytes) -> None:
    for coding in (b"gzip", b"deflate", b"br", b"zstd"):
        if is_read(coding):
            with contextlib.suppress(Refused):
                assert len(decompressed(coding, data, 4_096)) <= 4_096


_HEADS: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nAuthorization: Bearer wb-x\r\nExpect: 100-continue\r\n\r\n",
    b"POST /v1/x?y=%20 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET http://a/b HTTP/1.0\r\nhost: a\r\ncontent-encoding: gzip\r\n\r\n",
)

# What the guard reads.

_GUARDED: Final = [
    {"name": "personal", "kind": "pii", "entities": ["card", "email", "iban", "phone", "us_ssn"], "input": "mask"},
    {"name": "keys", "kind": "secret", "input": "mask"},
]
_RULES: Final = asyncio.run(Guard(GuardSection.model_validate({"rules": _GUARDED}), b"k" * 32).rules_for(None))
_SECRETIVE: Final = _packed(
    {
        **_BODY,
        "messages": [
            {"role": "user", "content": "mail a.b@example.com, card 4111 1111 1111 1111, \\u0061@example.com"}
        ],
    },
    {
        "model": "m",
        "system": "x",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "DE89 3704 0044 0532 0130 00"}]}],
    },
    {"model": "m", "input": [{"type": "function_call_output", "output": '{"to": "x@example.org"}'}]},
)


def _guarded(body: bytes) -> None:
    """The quick look over the bytes never passes what the walk over the texts finds, and a walk alone changes nothing."""
    try:
        check_structure(body)
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        json.loads(body.decode())
    except (Refused, ValueError, RecursionError):
        # Its wire has refused it before.
        return
    for wire in ("chat", "messages", "responses"):
        walk = Walk(wire, body).all()
        found = [each for text in walk.texts for each in _RULES.find(text.text)]
        assert not (found and _RULES.passes(body)), "the bytes passed, and the texts do not"
        written = walk.written()
        # It is written anew only where a name stands twice, which two readers would read as two bodies.
        assert written is None or isinstance(json.loads(written), dict)


# What upstreams answer.

_CHUNK: Final = {
    "id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "hi", "reasoning_content": "r", "tool_calls": [
        {"index": 0, "id": "t", "function": {"name": "f", "arguments": "{"}}]}, "finish_reason": None, "logprobs": None}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}, "service_tier": "default",
}  # fmt: skip
_WHOLE: Final = {
    "id": "c", "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi", "annotations": []}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "cost": 0.1},
}  # fmt: skip
_EVENTS: Final = (
    b"".join(b"data: " + each + b"\n\n" for each in _packed(_CHUNK, _WHOLE))
    + b"event: x\r\nid: 1\r\ndata\r\n\r\n: c\n\ndata: [DONE]\n\n"
)
_FAILED: Final = {"error": {"message": "m", "type": "t", "code": 429, "param": None}}
_CLAUDE_EVENTS: Final = (
    {
        "type": "message_start",
        "message": {"id": "m", "model": "c", "usage": {"input_tokens": 3, "cache_read_input_tokens": 1}},
    },
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 2},
    },
    {"type": "message_stop"},
    {"type": "error", "error": {"type": "overloaded_error", "message": "m"}},
)
_CLAUDE_WHOLE: Final = {
    "id": "m", "type": "message", "model": "c", "stop_reason": "tool_use", "usage": {"input_tokens": 3, "output_tokens": 2},
    "content": [{"type": "text", "text": "hi"}, {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
}  # fmt: skip


def _sse(data: bytes) -> None:
    """Where the network cuts it does not matter."""
    whole, cut = SseParser(), SseParser()
    one = whole.feed(data) + whole.finish()
    assert one == [each for read in in_pieces(data) for each in cut.feed(read)] + cut.finish()


def _answered(wire: Wire, asked: dict[str, Any]) -> Target:
    """What is understood of an upstream's event is written, as it comes and whole."""

    def read(payload: bytes) -> None:
        event = decode_event(payload, "t/a")
        assert b"\n" not in event.payload
        dialect = wire.read(json.dumps(asked).encode(), RequestHeaders(), lambda _name: False).dialect
        writer = dialect.events(served())
        assert writer.render([event, event]) + writer.last_words()
        json.loads(dialect.whole(event.payload, served()))

    return Target(f"answer for {wire.path}", read, _packed(_CHUNK, _WHOLE, _FAILED), (UpstreamError,), "json")


def _claude(data: bytes) -> None:
    lines = [line for line in data.split(b"\n") if line]
    reader = ClaudeReader(_CLAUDE, passes=True)
    for line in lines:
        with contextlib.suppress(UpstreamError):
            reader.event(line)
    with contextlib.suppress(UpstreamError):
        json.loads(ClaudeReader(_CLAUDE).whole(data).payload)


def _outcomes(data: bytes) -> None:
    for reader in (partial(anthropic_batches._outcome, _CLAUDE), openai_batches._outcome):
        with contextlib.suppress(*DECODE_ERRORS):
            reader(data)


def _metered(data: bytes) -> None:
    for operation in ("moderations", "rerank", "images", "transcriptions", "speech"):
        with contextlib.suppress(UpstreamError):
            decode_metered(data, operation, "t/a")


# Engines.

_KV: Final = (
    [
        1.0,
        [
            ["BlockStored", [1, b"12345678"], None, [1, 2, 3, 4], 2, None, "GPU"],
            ["BlockRemoved", [1], "GPU"],
            ["AllBlocksCleared"],
        ],
        0,
    ],
    [
        1.0,
        [
            {
                "type": "BlockStored",
                "block_hashes": [1],
                "parent_block_hash": 2,
                "token_ids": [1, 2],
                "block_size": 2,
                "lora_name": "a",
                "extra_keys": [[1, "s"]],
            }
        ],
    ],
)


def _kv(payload: bytes) -> None:
    read_message([b"kv", b"\x00" * 8, payload])
    batch = read_batch(payload)
    assert sum(1 for _ in pieces(batch.events, 1)) >= len(batch.events)


_PAGE: Final = b'# HELP x\nvllm:num_requests_running{model_name="a\\"b",engine="0"} 3.0\nvllm:num_requests_waiting 1e3 1700000000\nup NaN\n'

# Files of operators and of other products.


def _on_disk(read: Callable[[Path], object], suffix: str) -> Callable[[bytes], None]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))

    def reading(data: bytes) -> None:
        path = folder / f"given{suffix}"
        path.write_bytes(data)
        read(path)

    return reading


def _validated(data: bytes) -> None:
    """A file of a batch: where it is cut does not matter, and each line is found where it stands."""

    def validated(reads: list[bytes]) -> Validated:
        validation = Validation(
            "/v1/chat/completions", max_lines=50, max_line_bytes=20_000, bound=lambda size: size.body_bytes
        )
        for read in reads:
            validation.feed(read)
        return validation.end()

    whole = validated([data])
    assert whole == validated(in_pieces(data))
    for line in whole.lines:
        json.loads(data[line.start : line.start + line.size])


_BATCH: Final = b"\n".join(
    json.dumps(
        {
            "custom_id": f"c{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": _BODY | {"x-tier": "batch"},
        }
    ).encode()
    for number in range(3)
)
_OPENAI_USAGE: Final = {
    "object": "page", "has_more": False, "next_page": None, "data": [{"object": "bucket", "start_time": 1735689600, "end_time": 1735776000, "results": [
        {"object": "organization.usage.completions.result", "input_tokens": 10, "output_tokens": 5, "input_cached_tokens": 1, "model": "m", "project_id": None}]}],
}  # fmt: skip
_OPENAI_COSTS: Final = {
    "object": "page", "has_more": False, "data": [{"object": "bucket", "start_time": 1735689600, "end_time": 1735776000, "results": [
        {"object": "organization.costs.result", "amount": {"value": 0.06, "currency": "usd"}, "line_item": "m, input"}]}],
}  # fmt: skip
_ANTHROPIC_USAGE: Final = {
    "has_more": False, "next_page": None, "data": [{"starting_at": "2025-01-01T00:00:00Z", "ending_at": "2025-01-02T00:00:00Z", "results": [
        {"uncached_input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 1, "model": "claude-x", "amount": "12.5", "currency": "USD"}]}],
}  # fmt: skip
_CSV: Final = (
    b"start_time,end_time,model,input_tokens,output_tokens,num_model_requests\n1735689600,1735776000,m,10,5,1\n",
    b'start_time_iso,amount_value,amount_currency,line_item\n2025-01-01T00:00:00Z,0.06,usd,"m, input"\n',
)
_TRACES: Final = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n",
    b'{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1, 2]}\n{"timestamp": 9, "input_length": 10, "output_length": 5, "hash_ids": [1]}\n',
)
_LITELLM: Final = tuple(path.read_bytes() for path in LITELLM_FILES)
_CONFIGS: Final = tuple(sorted(path.read_bytes() for path in (_ROOT / "config").glob("*.yaml")))

# Tokens, cursors and what else comes back from outside.

_KEY: Final = OctKey.import_key(b"k" * 32)
_EXPECTED: Final = Expected(issuer="https://idp", client_id="c", nonce="n", access_token=None, label="idp")
_CLAIMS: Final = {
    "iss": "https://idp",
    "sub": "s",
    "aud": ["c"],
    "azp": "c",
    "exp": 2_000_000_000,
    "iat": 1_700_000_000,
    "nonce": "n",
    "auth_time": 1,
}
_TOKEN: Final = jwt.encode({"alg": "HS256", "kid": "k"}, _CLAIMS, _KEY, algorithms=["HS256"]).encode()
_PENDING: Final = PendingSignIns(b"p" * 32, now_us=lambda: 1_700_000_000_000_000)
_SECTION: Final = OidcSection(name="idp", label="idp", issuer="https://idp", client_id="c", client_secret="env:SECRET")
_DESCRIBED: Final = {
    "issuer": "https://idp", "authorization_endpoint": "https://idp/a", "token_endpoint": "https://idp/t", "jwks_uri": "https://idp/k",
    "id_token_signing_alg_values_supported": ["RS256"], "userinfo_endpoint": "https://idp/u",
    "keys": [{"kty": "RSA", "n": "A" * 400, "e": "AQAB", "kid": "k"}, {"kty": "EC", "crv": "P-256", "x": "A" * 43, "y": "A" * 43}],
}  # fmt: skip


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """As a header or a part of an address has it."""
    return lambda data: read(data.decode("latin-1"))


def _token(token: str) -> None:
    header = header_of(token, ["HS256"], "idp")
    claims_of(token, header, _KEY, _EXPECTED, 1_700_000_000)


def _claims(data: bytes) -> None:
    """As above, with a signature that fits: what a provider that went astray would send."""
    try:
        claims = json.loads(data)
        signed = jwt.encode({"alg": "HS256"}, claims, _KEY, algorithms=["HS256"])
    except (ValueError, TypeError, RecursionError, AttributeError):
        return
    claims_of(signed, Header(algorithm="HS256", key_id=None), _KEY, _EXPECTED, 1_700_000_000)


def _provider(data: bytes) -> None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(found, dict):
        with warnings.catch_warnings(action="ignore"):
            # A key that is short for its kind is skipped; the library says so, too.
            usable(found)
        description_of(found, _SECTION)


TARGETS: Final = (
    *(_wire(wire) for wire in WIRES),
    Target("multipart", _multipart, (_FORM,), (Refused,)),
    Target("head", _head, _HEADS, (Refused,)),
    Target("chunks", _chunks, (b"5\r\nhello\r\n0\r\n\r\n", b'3;a=b;c="d"\r\nabc\r\n0\r\nx: y\r\n\r\nGET'), (Refused,)),
    Target("content coding", _coded, (gzip.compress(b"{}" * 50, mtime=0), zlib.compress(b"{}" * 50))),
    Target("preamble", parse_preamble, (b"weighbridge/1 tcp 127.0.0.1 80", b"weighbridge/1 tls - 0"), (ValueError,)),
    Target("guard", _guarded, _SECRETIVE + _packed(*_BODIES["messages"], *_BODIES["responses"]), (TooMuch,), "json"),
    Target("sse", _sse, (_EVENTS,), (EventTooLarge,)),
    _answered(CHAT, {"model": "a", "messages": [{"role": "user", "content": "x"}]}),
    _answered(MESSAGES, {"model": "a", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}),
    _answered(RESPONSES, {"model": "a", "input": "x"}),
    _answered(COMPLETIONS, {"model": "a", "prompt": "x"}),
    Target("claude's answer", _claude, (b"\n".join(_packed(*_CLAUDE_EVENTS)), *_packed(_CLAUDE_WHOLE, *_CLAUDE_EVENTS)), (), "json"),
    Target("a batch's answers", _outcomes, _packed(
        {"custom_id": "c", "result": {"type": "succeeded", "message": _CLAUDE_WHOLE}}, {"custom_id": "c", "result": {"type": "errored", "error": {"error": {"type": "x"}}}},
        {"custom_id": "c", "response": {"status_code": 200, "body": _WHOLE}, "error": None}), (), "json"),
    Target("embeddings", lambda data: decode_embeddings(data, "t/a"), _packed({"data": [{"embedding": [0.1]}], "usage": {"total_tokens": 2}}), (UpstreamError,), "json"),
    Target("metered", _metered, _packed({"results": [{"index": 0}], "meta": {"billed_units": {"search_units": 1}}, "text": "x", "duration": 1.5, "data": [{}], "usage": {"seconds": 2}}), (), "json"),
    Target("kv events", _kv, tuple(msgspec.msgpack.encode(each) for each in _KV), (Unreadable,), "msgpack"),
    Target("metrics of engines", PageReader(["vllm:num_requests_running", "vllm:num_requests_waiting"]).read, (_PAGE,), (PageUnreadable,)),
    Target("configuration", _on_disk(lambda path: load(path, Environment(), secrets_from=None), ".yaml"), _CONFIGS, (ConfigError,)),
    Target("litellm's configuration", _on_disk(imported, ".yaml"), _LITELLM, (ConfigError,)),
    Target("a batch's file", _validated, (_BATCH,)),
    Target("openai's statement", lambda data: read_openai([("a.json", data)]), (*_packed(_OPENAI_USAGE, _OPENAI_COSTS), *_CSV), (BadExport,), "json"),
    Target("anthropic's statement", lambda data: read_anthropic([("a.json", data)]), (*_packed(_ANTHROPIC_USAGE), *_CSV), (BadExport,), "json"),
    Target("prices", lambda data: checked_prices(parse_prices(data)), _packed({"input": "2.50", "output": 10, "cached_input": "0.1"}), (BadPrice,), "json"),
    Target("admin's body", lambda data: parsed(data, GiveFeedback), _packed({"request_id": "r", "rating": 1}), (Refused,), "json"),
    Target("feedback", _decoded_feedback, _packed({"request_id": "r", "rating": 1}), (Refused,), "json"),
    Target("budget", parse_budget, _packed({"scope": "team", "team_id": "t", "period": "month", "usd": "10.5"}), (BadBudget,), "json"),
    Target("words of an upstream's error", lambda data: original_of(UpstreamOverloaded("x", deployment_id="t/a"), [data], "k"), _packed(_FAILED), (), "json"),
    Target("message of a socket", _asked, _BODY_SEEDS, (Refused,), "json"),
    Target("traces", _on_disk(read_trace, ".csv"), _TRACES, (SimulationRefused,)),
    Target("id token", _text(_token), (_TOKEN,), (TokenUnsound,), "token"),
    Target("id token's claims", _claims, _packed(_CLAIMS), (TokenUnsound,), "json"),
    Target("provider's description", _provider, _packed(_DESCRIBED), (ProviderFailed,), "json"),
    Target("cookie of a sign-in", _text(_PENDING.read), (_PENDING.cookie(_PENDING.begin("idp", "/x")).encode(),)),
    Target("api key", _text(parse_key), (b"wb-abcdefgh-abcdefghijklmnop",), (MalformedKey,)),
    Target("cursor", _text(lambda text: decode_cursor(text, {}, [str, int])), (encode_cursor({}, ["a", 1]).encode(),), (BadQuery,)),
    Target("search", _text(parse_search), (b'model:gpt team:"a b" cost>0.1 since:2026-01-01 12:30 -status:ok',)),
    Target("audit's export", lambda data: verify_lines(data.split(b"\n")), _packed({"number": 1, "at_us": 1, "action": "a", "hash": "00", "previous": "00"}), (AuditError,), "json"),
    Target("audit's anchor", _text(parse_anchor), (b"123:" + b"9f" * 32,), (AuditError,)),
    Target("address of a database", _text(read_address), (b"postgresql://u:p@h:5432/d?host=a:1&sslmode=require",), (UnknownDatabase,)),
    Target("line of a journal", lambda data: decode_line(lines_of([data])), (b'["reserve","r",1]',), (), "json"),
    Target("place in a journal", lambda data: decode_drained(lines_of([data])), (b'{"segment":1,"offset":2}',), (), "json"),
    Target("kept answer", read_kept, (msgspec.msgpack.encode({"made_us": 1, "target_id": "t", "usage": {}, "cost_nanousd": 1, "events": []}),), (), "msgpack"),
    Target("record of a decision", _text(read_record), (b'[["t","cheapest",1,2]]',)),
)  # fmt: skip
