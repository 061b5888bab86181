"""What users of other gateways, engines and clients reported in public, tried here: one row a report, with its address."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
from aiohttp import web
from yarl import URL

from tests.providers.wires import LITELLM_WARNINGS, provider
from tests.running_gateway import DEAR_PRICES, Running, running_gateway
from tests.scenarios.test_lying_upstreams import booked, secrets
from tests.scenarios.test_model_facts import ASK, answer, bare, client, whole

__all__ = ["secrets"]
pytestmark = LITELLM_WARNINGS

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
