"""Replies of real engines, read as the gateway reads them (tests/recordings/README.md says where each is from)."""

from collections.abc import AsyncIterator
from typing import Final

import msgspec
import pytest

from providers.errors import (
    PromptTooLong,
    RequestRejected,
    UpstreamError,
    UpstreamOverloaded,
    UpstreamUnavailable,
)
from providers.http_client import HttpUpstream
from providers.target import DeploymentKind
from providers.wire import ChatRequest, Event, upstream_body
from selfhosted.engines.dialects import read_stats
from tests.providers.calls import chat_request, deployment, read_all, talk, text_of, tokens_of, upstream_call
from tests.recordings.replies import FOLDER, body_of, replying

KINDS: Final[dict[str, DeploymentKind]] = {
    "llama_cpp": "llama.cpp",
    "tgi": "tgi",
    "tensorrt_llm": "tensorrt-llm",
    "sglang": "sglang",
    # It has no metrics, so it is called as any host of OpenAI's API.
    "deepspeed_mii": "openai",
}


def named(name: str) -> list[str]:
    """The engines of which there is such a reply."""
    found = [engine for engine in KINDS if (FOLDER / engine / f"{name}.http").exists()]
    assert found
    return found


@pytest.fixture
async def upstream() -> AsyncIterator[HttpUpstream]:
    direct = HttpUpstream()
    yield direct
    await direct.aclose()


async def read(upstream: HttpUpstream, engine: str, name: str, request: ChatRequest) -> list[Event]:
    async with replying(f"{engine}/{name}") as url:
        return await talk(upstream, upstream_call(deployment(KINDS[engine], base_url=url), request))


def told(name: str) -> tuple[str, str]:
    """Engine and reply, of `engine/reply`."""
    engine, _, reply = name.partition("/")
    return engine, reply


def text_request(*, stream: bool) -> ChatRequest:
    """One that an engine of our own completes as a text."""
    fields = {"prompt": msgspec.Raw(b'"One two three"')}
    return msgspec.structs.replace(chat_request(stream=stream), for_text=fields)


@pytest.mark.parametrize("engine", named("chat_stream"))
async def test_a_stream(upstream: HttpUpstream, engine: str) -> None:
    """The role alone is no token; text comes in pieces, the finish once, and the usage where the engine tells it."""
    events = await read(upstream, engine, "chat_stream", chat_request(stream=True))
    assert text_of(events)
    assert tokens_of(events) > 1
    assert sum(event.finished for event in events) == 1
    told = [event.usage for event in events if event.usage is not None]
    if engine == "deepspeed_mii":
        assert told == [], "it tells none in a stream, so the gateway estimates"
    else:
        assert len(told) == 1
        assert told[0]["prompt_tokens"] > 0
        assert told[0]["completion_tokens"] > 0


@pytest.mark.parametrize("engine", named("chat_stream_bare"))
async def test_a_stream_that_was_asked_for_no_usage(upstream: HttpUpstream, engine: str) -> None:
    """It ends well, with what was said and a finish."""
    events = await read(upstream, engine, "chat_stream_bare", chat_request(stream=True))
    assert text_of(events)
    assert sum(event.finished for event in events) == 1


@pytest.mark.parametrize("engine", named("chat"))
async def test_a_whole_answer(upstream: HttpUpstream, engine: str) -> None:
    """One event has everything in it."""
    (event,) = await read(upstream, engine, "chat", chat_request())
    assert (event.token, event.finished) == (True, True)
    assert text_of([event])
    assert event.usage is not None
    assert event.usage["completion_tokens"] > 0


@pytest.mark.parametrize("engine", named("tool_stream"))
async def test_a_tool_call(upstream: HttpUpstream, engine: str) -> None:
    """Its name and the pieces of its arguments arrive, and they are tokens."""
    events = await read(upstream, engine, "tool_stream", chat_request(stream=True))
    called = [
        call["function"]
        for event in events
        for choice in msgspec.json.decode(event.payload)["choices"]
        for call in choice["delta"].get("tool_calls") or ()
    ]
    assert [call["name"] for call in called if call.get("name")] == ["weather"]
    assert "".join(call.get("arguments") or "" for call in called)
    assert sum(event.token for event in events) >= 1
    assert sum(event.finished for event in events) == 1


@pytest.mark.parametrize("engine", [each for each in named("text_stream") if each != "deepspeed_mii"])
async def test_a_text_that_is_made_longer(upstream: HttpUpstream, engine: str) -> None:
    """Its pieces are a chat's, and only the last one ends it: TGI writes an empty reason until then."""
    events = await read(upstream, engine, "text_stream", text_request(stream=True))
    assert len(text_of(events)) > 3
    ends = [at for at, event in enumerate(events) if event.finished]
    assert len(ends) == 1
    assert not any(event.token for event in events[ends[0] + 1 :])
    reasons = [
        choice["finish_reason"]
        for event in events
        for choice in msgspec.json.decode(event.payload)["choices"]
        if choice.get("finish_reason") is not None
    ]
    assert reasons == ["length"]


@pytest.mark.parametrize("engine", named("too_long"))
async def test_a_prompt_that_is_too_long(upstream: HttpUpstream, engine: str) -> None:
    """Each says it in words of its own; a longer context may take it, and clients learn it by OpenAI's code."""
    with pytest.raises(PromptTooLong) as refused:
        await read(upstream, engine, "too_long", chat_request())
    assert refused.value.code == "context_length_exceeded"


TGI: Final = [
    ("too_long_input", PromptTooLong),
    ("too_long_stream", PromptTooLong),
    ("bad_value", RequestRejected),
    ("overloaded", UpstreamOverloaded),
    ("overloaded_stream", UpstreamOverloaded),
    ("failed", UpstreamUnavailable),
]


@pytest.mark.parametrize(("name", "kind"), TGI)
async def test_tgis_errors(upstream: HttpUpstream, name: str, kind: type[UpstreamError]) -> None:
    """The text stands beside its type, in a stream all say 422, and 424 is a failure of the engine and not of the call."""
    with pytest.raises(kind) as failed:
        await read(upstream, "tgi", name, chat_request(stream=name.endswith("stream")))
    assert type(failed.value) is kind


async def test_a_tgi_that_fails_within_a_stream(upstream: HttpUpstream) -> None:
    """What was said arrives, then the failure, which is the engine's."""
    async with replying("tgi/failed_stream") as url:
        stream = await upstream.open(upstream_call(deployment("tgi", base_url=url), chat_request(stream=True)))
        first = await stream.read()
        assert first is not None
        assert text_of(first) == "Hello"
        with pytest.raises(UpstreamUnavailable):
            await read_all(stream)


REFUSED: Final = [
    ("llama_cpp/bad_type", "'messages'"),
    ("tensorrt_llm/unknown_field", "Extra inputs"),
    ("deepspeed_mii/parts", "messages"),
    ("deepspeed_mii/unknown_model", "not found"),
]


@pytest.mark.parametrize(("name", "word"), REFUSED)
async def test_a_refusal_says_why(upstream: HttpUpstream, name: str, word: str) -> None:
    """Flat or within `error`, the caller reads the engine's reason."""
    with pytest.raises(RequestRejected, match=word):
        await read(upstream, *told(name), chat_request())


@pytest.mark.parametrize("name", ["tensorrt_llm/failed", "deepspeed_mii/bad_type"])
async def test_a_failure_is_the_engines(upstream: HttpUpstream, name: str) -> None:
    """As JSON or as plain text."""
    with pytest.raises(UpstreamUnavailable):
        await read(upstream, *told(name), chat_request())


@pytest.mark.parametrize("engine", named("metrics"))
def test_metrics(engine: str) -> None:
    """The page of each is read: what runs and waits, and tokens."""
    stats = read_stats(KINDS[engine], body_of(f"{engine}/metrics"), 1.0)
    assert stats.running >= 0
    assert stats.waiting >= 0
    assert stats.prompt_tokens
    assert stats.output_tokens


def test_sglangs_metrics() -> None:
    """Since 0.5 whole answers and streams are counted apart, and a rank has four labels."""
    stats = read_stats("sglang", body_of("sglang/metrics"), 1.0)
    assert (stats.running, stats.waiting, stats.kv_usage, stats.kv_tokens, stats.block_tokens) == (0, 0, 0.0, 8_192, 1)
    assert (stats.prompt_tokens, stats.output_tokens, stats.prefix_hits) == (86, 112, 35)
    assert (stats.ttft_count, stats.tpot_count) == (9, 78)


@pytest.mark.parametrize(("kind", "value", "sent"), [("tgi", 1, False), ("tgi", 0.9, True), ("vllm", 1, True)])
def test_tgi_is_not_asked_for_what_it_refuses(kind: DeploymentKind, value: float, sent: bool) -> None:
    """A `top_p` of 1 is what every engine does unasked, and TGI answers it with 422."""
    body = msgspec.json.decode(upstream_body(chat_request(top_p=value), deployment(kind)))
    assert ("top_p" in body) is sent
