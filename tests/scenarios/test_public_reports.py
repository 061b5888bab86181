"""What users of other gateways, engines and clients reported in public, tried here: one row a report, with its address."""

import asyncio
import gzip
import json
import re
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from tests.processes import until
from tests.providers.wires import LITELLM_WARNINGS, anthropic_events, provider
from tests.running_gateway import DEAR_PRICES, Running, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_batch import FAST, ended
from tests.scenarios.test_lying_upstreams import booked, secrets
from tests.scenarios.test_model_facts import ASK, answer, bare, claude, client, whole
from tests.scenarios.test_open_responses import socket_of
from tests.scenarios.test_responses_client import house

__all__ = ["secrets"]
pytestmark = LITELLM_WARNINGS

CLAUDE_PRICES: Final = {**DEAR_PRICES, "cache_write": "3.75"}
MEDIA_PRICES: Final = {**DEAR_PRICES, "image_output": "40"}


class Told(msgspec.Struct, frozen=True):
    """A usage object that a provider was seen to send, and what is to be booked of it."""

    source: str
    usage: Mapping[str, Any]
    input_tokens: int
    output_tokens: int
    cached: int = 0
    flags: str = "[]"
    cost_nanousd: int | None = None


TOLD: Final = (
    Told(
        "vercel/ai/pull/12485",
        {
            "prompt_tokens": 4142,
            "completion_tokens": 254,
            "total_tokens": 4396,
            "prompt_tokens_details": {"cached_tokens": 4328, "text_tokens": 4142},
        },
        8470,
        254,
        4328,
        '["cache_added"]',
    ),
    Told(
        "BerriAI/litellm/issues/14874",
        {
            "prompt_tokens": 616,
            "completion_tokens": 5,
            "total_tokens": 854,
            "prompt_tokens_details": {"text_tokens": 616, "cached_tokens": 615, "audio_tokens": 0, "image_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 233, "audio_tokens": 0},
            "num_sources_used": 0,
        },
        616,
        238,
        615,
        '["reasoning_added"]',
    ),
    Told(
        "BerriAI/litellm/issues/22984",
        {
            "total_tokens": 687,
            "prompt_tokens": 383,
            "completion_tokens": 304,
            "prompt_tokens_details": {
                "text_tokens": None,
                "audio_tokens": None,
                "image_tokens": None,
                "cached_tokens": 336,
            },
            "completion_tokens_details": {
                "text_tokens": None,
                "reasoning_tokens": 15,
                "accepted_prediction_tokens": None,
                "rejected_prediction_tokens": None,
            },
        },
        383,
        304,
        336,
    ),
    Told(
        "mozilla-ai/any-llm/issues/1290",
        {"prompt_tokens": 20, "completion_tokens": 198, "total_tokens": 623},
        20,
        603,
        flags='["thought_added"]',
    ),
    Told(
        "BerriAI/litellm/issues/16316",
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 135,
            "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 20,
        },
        130,
        5,
        100,
        '["cache_added"]',
    ),
    Told(
        "BerriAI/litellm/issues/17410",
        {
            "prompt_tokens": 10,
            "completion_tokens": 1345,
            "total_tokens": 1355,
            "prompt_tokens_details": {"text_tokens": 10},
            "completion_tokens_details": {"reasoning_tokens": 225, "text_tokens": 0, "image_tokens": 1120},
        },
        10,
        1345,
        cost_nanousd=25_000 + 225 * 10_000 + 1120 * 40_000,
    ),
)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.source)
async def test_usage_is_booked(tmp_path: Path, told: Told, stream: bool) -> None:
    """With each part at its own price, whatever the host counts where."""

    async def reply(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not body.get("stream"):
            return web.json_response(answer(body) | {"usage": told.usage})
        out = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await out.prepare(request)
        head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
        for choices, usage in (
            ([{"index": 0, "delta": {"role": "assistant", "content": "hello"}, "finish_reason": None}], None),
            ([{"index": 0, "delta": {}, "finish_reason": "stop"}], None),
            ([], told.usage),
        ):
            await out.write(b"data: " + json.dumps({**head, "choices": choices, "usage": usage}).encode() + b"\n\n")
        await out.write(b"data: [DONE]\n\n")
        return out

    async with provider(reply) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=MEDIA_PRICES)
        words: Any = [{"role": "user", "content": "so " * (told.usage["prompt_tokens"] - 10)}]
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            if stream:
                async for _ in await ask.chat.completions.create(model="some-model", messages=words, stream=True):
                    pass
            else:
                await ask.chat.completions.create(model="some-model", messages=words)
            row = await booked(gateway)
    found = (row["input_tokens"], row["output_tokens"], row["cached_input_tokens"], row["flags"])
    assert found == (told.input_tokens, told.output_tokens, told.cached, told.flags)
    assert row["usage_source"] == "upstream"
    if told.cost_nanousd is not None:
        assert row["cost_nanousd"] == told.cost_nanousd


class Reply(msgspec.Struct, frozen=True):
    """A reply that an upstream was seen to give: its status, its fields and its body in pieces."""

    source: str
    pieces: tuple[bytes, ...]
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "text/event-stream"),)
    said: str = "hello"
    """The text that callers are to read."""

    async def give(self, request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        out = web.StreamResponse(status=self.status, headers=dict(self.headers))
        await out.prepare(request)
        for piece in self.pieces:
            await out.write(piece)
            await asyncio.sleep(0)
        return out


def chunk(delta: Any, finish: str | None = None, **fields: Any) -> bytes:
    """Return one event of a stream of chat completions."""
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": choices}
    return b"data: " + json.dumps(head | fields, ensure_ascii=False).encode() + b"\n\n"


_USAGE: Final = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
_DONE: Final = b"data: [DONE]\n\n"
_END: Final = chunk({}, "stop") + chunk({}, choices=[], usage=_USAGE) + b"data: [DONE]\n\n"
_FILTER: Final = {"hate": {"filtered": False, "severity": "safe"}}
_BEFORE: Final = chunk(
    {},
    id="",
    object="",
    model="",
    choices=[],
    prompt_filter_results=[{"prompt_index": 0, "content_filter_results": _FILTER}],
)
_BESIDE: Final = chunk(
    {},
    id="",
    object="",
    model="",
    choices=[
        {
            "index": 0,
            "finish_reason": None,
            "content_filter_results": _FILTER,
            "content_filter_offsets": {"check_offset": 44},
        }
    ],
    usage=None,
)
_CJK: Final = chunk({"content": "你好世界 🌍"})
STREAMS: Final = (
    Reply("api7/aisix/issues/111", (*tuple(bytes([each]) for each in _CJK), _END), said="你好世界 🌍"),
    Reply("meilisearch/meilisearch/pull/6477", (_BEFORE, chunk({"role": "assistant", "content": "hello"}), _END)),
    Reply(
        "microsoft/autogen/issues/6465",
        (
            _BEFORE,
            chunk({"role": "assistant", "content": "hel"}),
            _BESIDE,
            chunk({"content": "lo"}),
            _BESIDE,
            _END,
            _BESIDE,
        ),
    ),
    Reply("openai/openai-go/issues/227", (b": OPENROUTER PROCESSING\n\n" * 3, chunk({"content": "hello"}), _END)),
    Reply(
        "Effect-TS/effect/pull/6117",
        (
            chunk({"content": "hello"}),
            chunk({}, "stop"),
            b'data: { "choices": [], "usage": {"prompt_tokens": 13, "completion_tokens": 16, "total_tokens": 29, "cost": 0.000093, "is_byok": false} }\n\n',
            b"data: [DONE]\n\n",
        ),
    ),
    Reply(
        "rashidrazak/opencode-cmd-provider/pull/213",
        (
            *tuple(
                chunk({"content": each}, usage={"prompt_tokens": 10, "completion_tokens": n, "total_tokens": 10 + n})
                for n, each in enumerate("hello", 1)
            ),
            _END,
        ),
    ),
)
WIRES: Final[Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK},
    "/v1/responses": {"input": "Say hello."},
    "/v1/messages": {"messages": ASK, "max_tokens": 100},
}


def said(path: str, text: str) -> str:
    """Return the text of a stream's deltas."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if path == "/v1/chat/completions":
        return "".join(
            each["delta"].get("content") or ""
            for event in events
            for each in event.get("choices", ())
            if "delta" in each
        )
    if path == "/v1/responses":
        return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")


async def post(gateway: Running, path: str, body: Any, **fields: str) -> tuple[int, str, Mapping[str, str]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {gateway.key}", "content-type": "application/json", **fields}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.url}{path}", data=data, headers=headers) as found,
    ):
        return found.status, await found.text(), found.headers


@pytest.mark.parametrize("reply", STREAMS, ids=lambda reply: reply.source)
async def test_a_stream_is_read(tmp_path: Path, reply: Reply) -> None:
    """Whole on each wire, and it ends as one that is complete."""
    async with provider(reply.give) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway:
            for path, body in WIRES.items():
                status, text, _ = await post(gateway, path, {"model": "some-model", "stream": True, **body})
                assert (path, status, said(path, text)) == (path, 200, reply.said), text
                assert any(end in text for end in ("[DONE]", "response.completed", "message_stop"))
            rows = await gateway.rows("entry = 'settle'")
    assert [row["usage_source"] for row in rows] == ["upstream"] * 3


_JSON: Final = (("content-type", "application/json"),)
_HTML: Final = (("content-type", "text/html; charset=UTF-8"),)
FAULTS: Final = (
    Reply(
        "azrtydxb/Fastllm-proxy/issues/28",
        (
            b'{"error":{"message":"Upstream error from Nvidia: ResourceExhausted: Worker local total request limit reached (1)","code":502}}',
        ),
        headers=_JSON,
    ),
    Reply(
        "letta-ai/letta-code/pull/1179",
        (
            b"<!DOCTYPE html><html><head><title>api.example.com | 521: Web server is down</title></head><body>Cloudflare</body></html>",
        ),
        521,
        _HTML,
    ),
    Reply(
        "vellum-ai/vellum-assistant/pull/25930",
        (b"<!DOCTYPE html><html><body>Not found</body></html>",),
        404,
        _HTML,
    ),
    Reply(
        "ai-ecoverse/slicc/issues/3037",
        (gzip.compress(json.dumps({"choices": []}).encode()),),
        headers=(*_JSON, ("content-encoding", "gzip")),
    ),
    Reply("afeld/jsonp/issues/107", (b"<html><body>Please log in</body></html>",), 200, _HTML),
    Reply(
        "mnfst/llm-gateway/issues/1986",
        (b'{"error":{"message":"Authentication failed","type":"upstream_error","status":401}}',),
        401,
        _JSON,
    ),
    Reply(
        "lablup/backend.ai/issues/5771",
        (gzip.compress(b'{"error":{"message":"no worker is left","type":"server_error"}}'),),
        503,
        (*_JSON, ("content-encoding", "gzip")),
    ),
    Reply(
        "openclaw/openclaw/pull/96509",
        (b'{"error":{"message":"Upstream request failed","type":"upstream_error"}}',),
        400,
        _JSON,
    ),
    Reply("open-webui/terminals/issues/24", (), 200, _JSON),
)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.source)
async def test_another_answers(tmp_path: Path, fault: Reply, stream: bool) -> None:
    """What is the upstream's fault is no caller's, while another deployment is there."""
    good = Reply("", (chunk({"content": "hello"}), _END))

    async def sound(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await good.give(request, body) if body.get("stream") else web.json_response(answer(body))

    async with provider(fault.give) as ill, provider(sound) as well:
        both: list[dict[str, Any]] = [
            {"name": name, "kind": "openai", "base_url": f"{each.base_url}/v1", "weight": weight}
            for name, each, weight in (("a", ill, 1000), ("b", well, 0.001))
        ]
        entry = {"model_id": "some-model", "provider": "elsewhere", "prices": DEAR_PRICES, "deployments": both}
        async with running_gateway(tmp_path, [entry]) as gateway:
            status, text, _ = await post(
                gateway, "/v1/chat/completions", {"model": "some-model", "messages": ASK, "stream": stream}
            )
        assert (len(ill.bodies) > 0, status) == (True, 200), text
        assert "hello" in text


class Asked(msgspec.Struct, frozen=True):
    """A request that clients were seen to send, and the answer to it."""

    source: str
    path: str = "/v1/chat/completions"
    fields: tuple[tuple[str, str], ...] = (("authorization", "Bearer {key}"),)
    body: bytes = json.dumps({"model": "some-model", "messages": ASK, "max_tokens": 9}).encode()
    method: str = "POST"
    status: int = 200
    said: str = "hello"


_BODY: Final = Asked("").body
_OURS: Final = Asked("").fields
_HALF: Final = _BODY.replace(b"hello", b"hello \\ud83d")
REQUESTS: Final = (
    # Keys, wherever clients put them.
    Asked("farion1231/cc-switch/pull/5123", "/v1/messages", (("x-api-key", "{key}"),)),
    Asked("Alishahryar1/free-claude-code/issues/902", "/v1/messages", (*_OURS, ("x-api-key", "sk-ant-api03-AAAA"))),
    Asked(
        "Wei-Shaw/claude-relay-service/pull/204",
        "/v1/messages",
        (("authorization", "Bearer sk-ant-oat01-AAAA"), ("x-api-key", "{key}")),
    ),
    Asked(
        "musistudio/claude-code-router/pull/1157", fields=(("authorization", "Basic bWU6bWU="), ("x-api-key", "{key}"))
    ),
    Asked("Portkey-AI/portkey-python-sdk/pull/163", fields=(("authorization", "bearer  {key} "),)),
    Asked("bionic-gpt/bionic-gpt/issues/176", fields=(("authorization", "{key}"),)),
    Asked("openai/openai-python/pull/1800", fields=(("authorization", "Bearer Bearer {key}"),)),
    Asked(
        "BerriAI/litellm/issues/20482", fields=(("authorization", "Bearer "),), status=401, said="No API key was sent"
    ),
    Asked(
        "BerriAI/litellm/issues/4077",
        "/openai/deployments/some-model/chat/completions?api-version=x",
        (("api-key", "{key}"),),
    ),
    Asked("timoklimmer/powerproxy-aoai/pull/183", "/openai/v1/chat/completions", (("api-key", "{key}"),)),
    Asked("BerriAI/litellm/issues/12090", fields=(("authorization", "Bearer"), ("x-api-key", "{key}"))),
    # Bodies.
    Asked("wazuh/wazuh/issues/38109", fields=(*_OURS, ("content-encoding", "gzip")), body=gzip.compress(_BODY)),
    Asked("zyycn/codex-proxy-rs/pull/66", fields=(*_OURS, ("content-encoding", "Deflate")), body=zlib.compress(_BODY)),
    Asked(
        "sozercan/vekil/pull/6",
        fields=(*_OURS, ("content-encoding", "gzip")),
        body=gzip.compress(b" " * 60_000_000 + _BODY),
        status=413,
        said="once it is decompressed",
    ),
    Asked(
        "ding113/claude-code-hub/issues/1193",
        fields=(*_OURS, ("content-encoding", "gzip")),
        body=gzip.compress(_BODY)[:-3],
        status=400,
        said="not whole as gzip",
    ),
    Asked(
        "farion1231/cc-switch/pull/3817",
        fields=(*_OURS, ("content-encoding", "br")),
        status=415,
        said="may come in gzip, deflate",
    ),
    Asked("anthropics/claude-code/issues/60394", body=_HALF, status=400, said="half of a surrogate pair at byte"),
    Asked(
        "anomalyco/opencode/issues/14630",
        "/v1/messages",
        body=_HALF,
        status=400,
        said="half of a surrogate pair at byte",
    ),
    Asked(
        "JohnnyZ93/oai-compatible-copilot/issues/206",
        "/v1/responses",
        body=_HALF.replace(b"messages", b"input"),
        status=400,
        said="half of a surrogate pair at byte",
    ),
    # Addresses.
    Asked("NousResearch/hermes-agent/issues/24833", "/v1/v1/messages", status=404, said="It is /v1/messages"),
    Asked(
        "anthropics/anthropic-sdk-typescript/issues/336",
        "/anthropic/v1/messages",
        status=404,
        said="It is /v1/messages",
    ),
    Asked("vercel/ai/pull/15586", "/messages", status=404, said="It is /v1/messages"),
    Asked("hotovo/aider-desk/issues/854", "//v1//chat/completions/", status=404, said="It is /v1/chat/completions"),
    Asked(
        "lidge-jun/opencodex/issues/1773",
        fields=(
            ("origin", "https://app.example"),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,x-stainless-os,x-stainless-timeout"),
        ),
        body=b"",
        method="OPTIONS",
        status=204,
        said="authorization,x-stainless-os,x-stainless-timeout",
    ),
    Asked(
        "pollinations/pollinations/pull/10165",
        "/openai/deployments/some-model/chat/completions",
        (
            ("origin", "https://app.example"),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "api-key"),
        ),
        b"",
        "OPTIONS",
        204,
        "api-key",
    ),
)


async def test_requests_are_answered(tmp_path: Path) -> None:
    """Or refused with words that say what to send instead."""
    found: list[tuple[str, int, bool]] = []
    async with provider(whole) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        cors = {"cors_origins": ["https://app.example"]}
        async with running_gateway(tmp_path, [entry], server=cors) as gateway, aiohttp.ClientSession() as session:
            for each in REQUESTS:
                fields = {name: value.format(key=gateway.key) for name, value in each.fields}
                url = URL(f"{gateway.url}{each.path}", encoded=True)
                async with session.request(each.method, url, data=each.body, headers=fields) as reply:
                    text = await reply.text() + reply.headers.get("access-control-allow-headers", "")
                found.append((each.source, reply.status, each.said in text))
    assert found == [(each.source, each.status, True) for each in REQUESTS]


class ToldByClaude(msgspec.Struct, frozen=True):
    """The usages at the beginning and the end of a stream of messages, and what is to be booked of them."""

    source: str
    start: Mapping[str, Any] | None
    delta: Mapping[str, Any]
    input_tokens: int
    cached: int
    written: int
    output_tokens: int

    async def give(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        out = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await out.prepare(request)
        for event in anthropic_events(body):
            if event["type"] == "message_start":
                event["message"].pop("usage")
                event["message"] |= {} if self.start is None else {"usage": self.start}
            elif event["type"] == "message_delta":
                event["usage"] = self.delta
            await out.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return out


TOLD_BY_CLAUDE: Final = (
    ToldByClaude(
        "jeremychone/rust-genai/pull/258",
        {"input_tokens": 3602, "output_tokens": 0},
        {
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3604,
            "prompt_tokens_details": {"cached_tokens": 3604},
            "output_tokens": 878,
        },
        7206,
        3604,
        0,
        878,
    ),
    ToldByClaude(
        "api7/aisix/pull/712",
        None,
        {"input_tokens": 50, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 5},
        170,
        100,
        20,
        5,
    ),
    ToldByClaude(
        "envoyproxy/ai-gateway/pull/2239",
        {"input_tokens": 317, "cache_creation_input_tokens": 4425, "cache_read_input_tokens": 0, "output_tokens": 1},
        {"input_tokens": 317, "cache_creation_input_tokens": 4425, "cache_read_input_tokens": 0, "output_tokens": 30},
        4742,
        0,
        4425,
        30,
    ),
    ToldByClaude(
        "maximhq/bifrost/pull/5355",
        {"input_tokens": 8834, "output_tokens": 0},
        {
            "input_tokens": 18,
            "output_tokens": 426,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 8831,
            "cache_creation": {"ephemeral_5m_input_tokens": 0},
        },
        8849,
        8831,
        0,
        426,
    ),
    ToldByClaude(
        "mnfst/llm-gateway/pull/2057",
        {"input_tokens": 10, "output_tokens": 1},
        {"input_tokens": 12, "cache_read_input_tokens": 3, "cache_creation_input_tokens": None, "output_tokens": 5},
        15,
        3,
        0,
        5,
    ),
)


@pytest.mark.parametrize("told", TOLD_BY_CLAUDE, ids=lambda told: told.source)
async def test_usage_of_a_stream_of_messages_is_booked_once(tmp_path: Path, told: ToldByClaude) -> None:
    """Wherever in the stream it stands, on its own wire and as a chat."""
    async with provider(told.give) as served:
        entry = claude(served, prices=CLAUDE_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway:
            words = [{"role": "user", "content": "so " * 5_000}]
            for path in ("/v1/messages", "/v1/chat/completions"):
                body = {"model": "claude", "messages": words, "max_tokens": 1000, "stream": True}
                status, text, _ = await post(gateway, path, body)
                assert status == 200, text
            rows = await gateway.rows("entry = 'settle'")
    names = ("input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens", "usage_source")
    expected = (told.input_tokens, told.cached, told.written, told.output_tokens, "upstream")
    assert [tuple(row[name] for name in names) for row in rows] == [expected] * 2


async def test_a_recording_is_billed_by_what_its_provider_tells(tmp_path: Path) -> None:
    """https://github.com/laravel/ai/pull/935: Mistral's name of its length. The name of its file, and so its format, is kept:
    https://github.com/laravel/ai/pull/316. Azure's clients name the model in the path: https://github.com/Azure/azure-sdk-for-net/issues/40780.
    """
    sent: list[bytes] = []

    async def listen(request: web.Request) -> web.StreamResponse:
        sent.append(await request.read())
        usage = {"prompt_audio_seconds": 7, "prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
        return web.json_response({"text": "hello", "usage": usage})

    app = web.Application()
    app.router.add_post("/{path:.*}", listen)
    async with TestServer(app) as served:
        entry = {
            "model_id": "listener",
            "provider": "elsewhere",
            "capabilities": ["transcription"],
            "prices": {"units": {"second": "0.0001"}, "version": "test"},
            "deployments": [{"kind": "openai", "base_url": f"{str(served.make_url('/')).rstrip('/')}/v1"}],
        }
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            await ask.audio.transcriptions.create(model="listener", file=("note.oga", bytes(64_000), "audio/ogg"))
            azure = openai.AsyncAzureOpenAI(azure_endpoint=gateway.url, api_key=gateway.key, api_version="2024-06-01")
            async with azure:
                await azure.audio.transcriptions.create(model="listener", file=("é.m4a", bytes(64_000)))
            rows = await gateway.rows("entry = 'settle'")
    assert [(row["unit"], row["quantity_milli"], row["flags"]) for row in rows] == [("second", 7_000, "[]")] * 2
    assert b'filename="note.oga"' in sent[0]
    assert b"audio/ogg" in sent[0]
    assert b'.m4a"' in sent[1]


@pytest.mark.parametrize("made", [partial(bare, "some-model"), claude], ids=["chat", "messages"])
async def test_one_bad_call_does_not_end_a_conversation(tmp_path: Path, made: Callable[..., dict[str, Any]]) -> None:
    """https://github.com/aws-samples/bedrock-access-gateway/pull/258: a client replays the call without arguments that it was given,
    and each turn from then on fails. https://github.com/aaif-goose/goose/pull/8121: null; others replay an object.
    """
    seen: list[dict[str, Any]] = []

    async def take(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        seen.append(body)
        return await whole(request, body)

    wrong = ("", None, "null", {"kg": 7})
    async with provider(take) as served:
        entry = made(served, prices=CLAUDE_PRICES, provider="elsewhere")
        async with running_gateway(tmp_path, [entry]) as gateway:
            for arguments in wrong:
                call = {"id": "c1", "type": "function", "function": {"name": "weigh", "arguments": arguments}}
                turns = [
                    {"role": "user", "content": "How heavy?"},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c1", "content": "heavy"},
                ]
                await post(gateway, "/v1/chat/completions", {"model": entry["model_id"], "messages": turns})
    asked = [each["messages"][1] for each in seen]
    sent = [
        each["content"][0]["input"] if each["content"] else json.loads(each["tool_calls"][0]["function"]["arguments"])
        for each in asked
    ]
    assert sent == [{}, {}, {}, {"kg": 7}]


EMPTY: Final = "The input file has no requests in it."
BATCH_FILES: Final[tuple[tuple[str, Callable[[bytes], bytes], str | None], ...]] = (
    ("https://github.com/llm-d/llm-d-batch-gateway/pull/574", lambda line: line + b"\r\n\r\n\n", None),
    ("https://github.com/wardi/jsonlines/issues/95", lambda line: b"\xef\xbb\xbf" + line, None),
    (
        "https://github.com/headroomlabs-ai/headroom/pull/2316",
        lambda line: line + b"\nnull\n",
        "This line is not a JSON object.",
    ),
    (
        "https://github.com/BerriAI/litellm/pull/37527",
        lambda line: line.replace(b'"method"', b'"way"'),
        "`method` is missing.",
    ),
    ("https://github.com/567-labs/instructor/issues/1120", lambda _: b"\n\n", EMPTY),
)


async def test_files_of_batches(tmp_path: Path) -> None:
    """Are run whole, or refused with the line and what is wrong with it."""
    body = {"model": "some-model", "messages": ASK}
    line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
    found: list[tuple[str, str | None]] = []
    async with provider(whole) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry], batch=FAST) as gateway, client(gateway) as ask:
            for source, written, _ in BATCH_FILES:
                file = await ask.files.create(file=("a.jsonl", written(json.dumps(line).encode())), purpose="batch")
                batch = await ask.batches.create(
                    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
                )
                batch = await ended(ask, batch)
                told = batch.errors.data[0].message if batch.errors and batch.errors.data else None
                found.append((source, told))
                assert (batch.status, batch.output_file_id is None) == (
                    ("completed", False) if told is None else ("failed", True)
                )
    assert found == [(source, told) for source, _, told in BATCH_FILES]


async def test_codex_may_say_that_it_has_an_answer(tmp_path: Path, upstream: Upstream) -> None:
    """https://github.com/openai/codex/pull/21284: a receipt on the socket needs no answer, and the next turn is one."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, socket_of(gateway) as socket:
        first = await socket.turn(input="hi")
        await socket.raw.send_json({"type": "response.processed", "response_id": first["id"]})
        assert (await socket.turn(input="hi"))["status"] == "completed"


class Made(msgspec.Struct, frozen=True):
    """A stream of pictures or speech, the call for it, and its cost by prices of 2.5 in, 10 out, 40 and 20 for what is made."""

    source: str
    capability: str
    path: str
    body: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...]
    cost_nanousd: int


MADE: Final = (
    Made(
        "BerriAI/litellm/issues/19569",
        "images",
        "/v1/images/generations",
        {"prompt": "a truck", "stream": True, "partial_images": 1},
        (
            {"type": "image_generation.partial_image", "partial_image_index": 0, "b64_json": "AAAA"},
            {
                "type": "image_generation.completed",
                "b64_json": "AAAA",
                "usage": {
                    "total_tokens": 110,
                    "input_tokens": 10,
                    "output_tokens": 100,
                    "input_tokens_details": {"text_tokens": 10, "image_tokens": 0},
                },
            },
        ),
        10 * 2_500 + 100 * 40_000,
    ),
    Made(
        "BerriAI/litellm/issues/33974",
        "speech",
        "/v1/audio/speech",
        {"input": "a truck", "voice": "alloy", "stream_format": "sse"},
        (
            {"type": "speech.audio.delta", "audio": "AAAA"},
            {"type": "speech.audio.done", "usage": {"input_tokens": 10, "output_tokens": 100, "total_tokens": 110}},
        ),
        10 * 2_500 + 100 * 20_000,
    ),
)


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.source)
async def test_what_is_made_has_its_price(tmp_path: Path, made: Made) -> None:
    """Its events reach the caller as they are, and no host tells that its tokens are pictures or sound."""
    events = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in made.events)
    async with provider(Reply("", (events,)).give) as served:
        prices = {**MEDIA_PRICES, "audio_output": "20"}
        entry = bare("maker", served, provider="elsewhere", prices=prices, capabilities=[made.capability])
        async with running_gateway(tmp_path, [entry]) as gateway:
            status, text, headers = await post(gateway, made.path, {"model": "maker", **made.body})
            row = await booked(gateway)
    assert (status, text.encode(), headers["content-type"][:17]) == (200, events, "text/event-stream")
    assert (row["cost_nanousd"], row["usage_source"], row["flags"]) == (made.cost_nanousd, "upstream", "[]")


async def test_speech_has_the_type_that_its_provider_says(tmp_path: Path) -> None:
    """https://github.com/BerriAI/litellm/pull/38798: browsers and caches go by it."""
    sound = Reply("", (b"RIFF", b"WAVE"), headers=(("content-type", "audio/wav"),))
    async with provider(sound.give) as served:
        entry = bare("speaker", served, provider="elsewhere", prices=DEAR_PRICES, capabilities=["speech"])
        async with running_gateway(tmp_path, [entry]) as gateway:
            body = {"model": "speaker", "input": "a truck", "voice": "alloy", "response_format": "wav"}
            status, text, headers = await post(gateway, "/v1/audio/speech", body)
    assert (status, text, headers["content-type"]) == (200, "RIFFWAVE", "audio/wav")


async def test_tokens_may_be_embedded(tmp_path: Path) -> None:
    """https://github.com/huggingface/text-embeddings-inference/issues/273: LangChain's client sends them in place of texts."""

    async def embed(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        data = [{"object": "embedding", "index": n, "embedding": [0.5]} for n, _ in enumerate(body["input"])]
        usage = {"prompt_tokens": 3, "total_tokens": 3}
        return web.json_response({"object": "list", "model": "m", "data": data, "usage": usage})

    async with provider(embed) as served:
        entry = bare("embedder", served, provider="elsewhere", prices=DEAR_PRICES, capabilities=["embeddings"])
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            found = await ask.embeddings.create(model="embedder", input=[[1, 2], [3]])
    assert [each.embedding for each in found.data] == [[0.5], [0.5]]
    assert [body["input"] for body in served.bodies] == [[[1, 2], [3]]]


async def test_a_connection_that_the_upstream_closed_meanwhile_costs_nobody_a_request(tmp_path: Path) -> None:
    """https://github.com/llm-d/llm-d-benchmark/pull/1675: uvicorn closes an idle connection after five seconds, unsaid."""
    calls = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head.lower())[1])  # type: ignore[index]
        await reader.readexactly(length)
        calls += 1
        body = json.dumps(answer({"model": "m"})).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(once, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        entry = {
            "model_id": "some-model",
            "provider": "elsewhere",
            "prices": DEAR_PRICES,
            "deployments": [{"kind": "openai", "base_url": url}],
        }
        async with running_gateway(tmp_path, [entry], providers={"retry": {"attempts": 1}}) as gateway:
            found = [
                (await post(gateway, "/v1/chat/completions", {"model": "some-model", "messages": ASK}))[0]
                for _ in range(20)
            ]
    assert (found, calls) == ([200] * 20, 20)


PAUSES: Final = (
    ("duolahypercho/codex-router/pull/573", {"retry-after": lambda: format_datetime(_soon(), usegmt=True)}),
    ("SpaceTradersAPI/api-docs/issues/24", {"retry-after": lambda: "29.6"}),
    (
        "anthropics/anthropic-sdk-typescript/issues/357",
        {
            "anthropic-ratelimit-requests-remaining": lambda: "0",
            "anthropic-ratelimit-requests-reset": lambda: _soon().strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
    ),
)


def _soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=30)


@pytest.mark.parametrize(("source", "fields"), PAUSES, ids=[source for source, _ in PAUSES])
async def test_a_provider_is_left_alone_for_as_long_as_it_says(
    tmp_path: Path, source: str, fields: Mapping[str, Callable[[], str]]
) -> None:
    """In each of the forms that they say it in; callers read whole seconds, as all of their clients understand."""
    del source

    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        headers = {name: value() for name, value in fields.items()}
        error = {"message": "Slow down.", "type": "rate_limit_error", "code": "rate_limit_exceeded"}
        return web.json_response({"error": error}, status=429, headers=headers)

    async with provider(refuse) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway:
            body = {"model": "some-model", "messages": ASK}
            replies = [await post(gateway, "/v1/chat/completions", body) for _ in range(3)]
        asked = len(served.bodies)
    assert [status for status, _, _ in replies] == [429] * 3
    assert all(15 <= int(headers["retry-after"]) <= 31 for _, _, headers in replies), [r[2] for r in replies]
    assert asked == 1


async def test_an_answer_that_was_cut_tells_its_usage(tmp_path: Path) -> None:
    """https://github.com/QuantumNous/new-api/issues/7241: in `response.incomplete` as in any other end, and in the books."""
    cut = Reply("", (chunk({"content": "hello"}), chunk({}, "length"), chunk({}, choices=[], usage=_USAGE), _DONE))
    async with provider(cut.give) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway:
            body = {"model": "some-model", "input": "Say hello.", "stream": True}
            _, text, _ = await post(gateway, "/v1/responses", body)
            row = await booked(gateway)
    last = json.loads([line[6:] for line in text.splitlines() if line.startswith("data: {")][-1])
    assert (last["type"], last["response"]["usage"]["output_tokens"]) == ("response.incomplete", 5)
    assert (row["input_tokens"], row["output_tokens"], row["usage_source"]) == (10, 5, "upstream")


async def test_a_caller_that_hangs_up_pays_for_what_it_got(tmp_path: Path) -> None:
    """https://github.com/pollinations/pollinations/issues/5594 and https://github.com/vercel/ai/issues/8325: no less, and no more, as the
    upstream is told to stop.
    """
    stopped = asyncio.Event()

    async def endless(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        out = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await out.prepare(request)
        try:
            while True:
                await out.write(chunk({"content": "word "}))
                await asyncio.sleep(0.01)
        finally:
            stopped.set()

    async with provider(endless) as served:
        entry = bare("some-model", served, provider="elsewhere", prices=DEAR_PRICES)
        async with running_gateway(tmp_path, [entry]) as gateway, client(gateway) as ask:
            stream = await ask.chat.completions.create(model="some-model", messages=ASK, stream=True)
            for _ in range(3):
                await anext(stream)
            await stream.close()
            await asyncio.wait_for(stopped.wait(), 30)

            async def is_booked() -> bool:
                return bool(await gateway.rows("entry = 'settle'"))

            await until(is_booked)
            row = await booked(gateway)
    assert row["input_tokens"] > 0
    assert row["output_tokens"] >= 3
    assert row["cost_nanousd"] > 0
    assert "caller_gone" in row["flags"]
