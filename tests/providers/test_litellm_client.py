"""Anthropic directly and Bedrock through litellm, against local servers that speak their wires."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from providers.claude.reply import chat_of_message
from providers.claude.request import claude_params
from providers.errors import (
    AnswerLost,
    CannotCarry,
    ConnectFailed,
    MalformedReply,
    RequestRejected,
    StreamCut,
    UpstreamError,
    UpstreamOverloaded,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from providers.http_client import HttpUpstream
from providers.litellm_client import LitellmUpstream, litellm_arguments
from providers.refusals import Row, read_table
from providers.target import Deployment
from providers.upstreams import Upstreams
from providers.wire import Event
from tests.providers.calls import chat_request, deployment, talk, text_of, upstream_call
from tests.providers.wires import (
    LITELLM_WARNINGS,
    TOOLS,
    Answer,
    Provider,
    anthropic_events,
    anthropic_stream,
    anthropic_whole,
    bedrock_stream,
    bedrock_whole,
    provider,
)

pytestmark = LITELLM_WARNINGS

KEY = "sk-ant-made-up-0123456789"


@pytest.fixture
async def upstream() -> AsyncIterator[Upstreams]:
    door = LitellmUpstream()
    await door.prepare()
    upstreams = Upstreams({"openai": HttpUpstream(), "litellm": door})
    yield upstreams
    await upstreams.aclose()


def anthropic(served: Provider) -> Deployment:
    return deployment("litellm", upstream_model="anthropic/claude-sonnet-4-5", base_url=served.base_url, api_key=KEY)


def bedrock(served: Provider) -> Deployment:
    return deployment(
        "litellm",
        upstream_model="bedrock/converse/anthropic.claude-3-haiku-20240307-v1:0",
        base_url="",
        options={
            "aws_region_name": "us-east-1",
            "aws_access_key_id": "made-up",
            "aws_secret_access_key": "made-up",
            "aws_bedrock_runtime_endpoint": served.base_url,
        },
    )


WIRES = [
    pytest.param(anthropic, anthropic_whole, anthropic_stream, id="anthropic"),
    pytest.param(bedrock, bedrock_whole, bedrock_stream, id="bedrock"),
]
Deploy = Callable[[Provider], Deployment]


def usage_of(events: list[Event]) -> tuple[Any, ...]:
    found = [event.usage for event in events if event.usage is not None][-1]
    details = found["prompt_tokens_details"] or {}
    return (
        found["prompt_tokens"],
        details.get("cached_tokens"),
        found["cache_creation_input_tokens"],
        found["completion_tokens"],
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("deploy", "whole", "streamed"), WIRES)
async def test_text_and_usage(
    upstream: Upstreams, deploy: Deploy, whole: Answer, streamed: Answer, stream: bool
) -> None:
    """Text comes out in OpenAI's shape, and the prompt's tokens contain cache reads and writes."""
    async with provider(streamed if stream else whole) as served:
        call = upstream_call(deploy(served), chat_request(stream=stream, temperature=0.5))
        events = await talk(upstream, call)
    assert text_of(events) == "hello there"
    assert usage_of(events) == (130, 100, 20, 5)
    assert any(event.finished for event in events)
    if stream:
        assert events[-1].choices == 0
        assert sum(event.token for event in events) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("deploy", "whole", "streamed"), WIRES)
async def test_tools(upstream: Upstreams, deploy: Deploy, whole: Answer, streamed: Answer, stream: bool) -> None:
    """A tool goes out in the provider's shape and its call comes back in OpenAI's."""
    async with provider(streamed if stream else whole) as served:
        events = await talk(upstream, upstream_call(deploy(served), chat_request(stream=stream, tools=TOOLS)))
    name, arguments, finish = "", "", None
    for event in events:
        for choice in msgspec.json.decode(event.payload)["choices"]:
            finish = choice["finish_reason"] or finish
            for made in (choice.get("delta") or choice.get("message"))["tool_calls"] if event.token else ():
                name += made["function"].get("name") or ""
                arguments += made["function"]["arguments"]
    assert (name, json.loads(arguments), finish) == ("weigh", {"kg": 7}, "tool_calls")
    assert sum(event.text_chars for event in events) >= len('{"kg":7}')


async def test_an_effort_that_a_claude_does_not_take_is_left_out(upstream: Upstreams) -> None:
    """As agents send it with every request, and any model may be chosen; the caller is told."""
    dropped: list[str] = []
    asked = msgspec.structs.replace(chat_request(), for_anthropic=lambda: {"reasoning_effort": "low"})
    async with provider(anthropic_whole) as served:
        older = msgspec.structs.replace(anthropic(served), upstream_model="anthropic/claude-3-5-haiku-20241022")
        await talk(upstream, upstream_call(older, asked, drops=dropped.append))
    assert (dropped, len(served.requests)) == (["reasoning_effort"], 1)


async def test_the_key_goes_out_and_the_request_is_asked_once(upstream: Upstreams) -> None:
    """Our key is sent where the deployment says, and a failure is not tried again behind our back."""

    async def fail(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"type": "error", "error": {"type": "api_error", "message": "no"}}, status=500)

    async with provider(fail) as served:
        with pytest.raises(UpstreamUnavailable):
            await talk(upstream, upstream_call(anthropic(served)))
    assert [request.headers["x-api-key"] for request in served.requests] == [KEY]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RequestRejected),
        (401, UpstreamRefusedUs),
        (403, UpstreamRefusedUs),
        (404, UpstreamRefusedUs),
        (429, UpstreamRateLimited),
        (500, UpstreamUnavailable),
        (503, UpstreamUnavailable),
        (504, AnswerLost),
        (529, UpstreamOverloaded),
    ],
)
async def test_statuses_become_our_errors(upstream: Upstreams, status: int, kind: type[UpstreamError]) -> None:
    """As of any provider that is called directly, and no key is shown."""

    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": f"bad {KEY} line"}}
        return web.json_response(error, status=status, headers={"retry-after": "7"})

    async with provider(refuse) as served:
        with pytest.raises(kind) as raised:
            await talk(upstream, upstream_call(anthropic(served)))
    assert KEY not in str(raised.value)
    if status == 429:
        assert raised.value.retry_after_s == 7
    if status == 400:
        assert raised.value.public in {"bad *** line", "bad REDACTED line"}


BEDROCKS = [row for row in read_table().refusal if row.provider == "Bedrock"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("row", BEDROCKS, ids=lambda row: str(row.reason))
async def test_bedrocks_refusals_are_what_the_table_says(upstream: Upstreams, row: Row, stream: bool) -> None:
    """Classes of litellm's say 400 or 500 of much that is the operator's or a limit's: words and statuses come through it."""

    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        body = row.example if row.example.startswith("{") else json.dumps({"message": row.example})
        return web.Response(text=body, content_type="application/json", status=row.example_status or 500)

    async with provider(refuse) as served:
        with pytest.raises(UpstreamError) as raised:
            await talk(upstream, upstream_call(bedrock(served), chat_request(stream=stream)))
    assert (raised.value.owner, raised.value.reason) == (row.owner, row.reason)


async def test_nobody_listens(upstream: Upstreams) -> None:
    """A refused connection is told apart from an answer."""
    async with provider(anthropic_whole) as served:
        pass
    with pytest.raises(ConnectFailed):
        await talk(upstream, upstream_call(anthropic(served)))


async def test_a_connection_lost_before_the_answer(upstream: Upstreams) -> None:
    """Who took the request and vanished may have charged for it."""

    async def die(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with provider(die) as served:
        with pytest.raises(AnswerLost):
            await talk(upstream, upstream_call(anthropic(served)))


@pytest.mark.parametrize("deploy", [anthropic, bedrock])
async def test_an_answer_that_is_no_json(upstream: Upstreams, deploy: Deploy) -> None:
    """The provider did the work, so this is no refusal of the request, whatever litellm calls it."""

    async def nonsense(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=b"{nonsense", content_type="application/json")

    async with provider(nonsense) as served:
        with pytest.raises(MalformedReply):
            await talk(upstream, upstream_call(deploy(served), chat_request()))


async def test_silence_before_the_answer(upstream: Upstreams) -> None:
    """The total time is kept."""

    async def hang(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    async with provider(anthropic_stream) as served:
        served.answer = hang
        with pytest.raises(UpstreamTimeout):
            await talk(upstream, upstream_call(anthropic(served), total_timeout_s=0.2))


async def test_a_stream_that_breaks_off(upstream: Upstreams) -> None:
    """An end without a finish is a cut."""

    async def cut(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        for event in list(anthropic_events(body))[:4]:
            await reply.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        assert request.transport is not None
        request.transport.close()
        return reply

    async with provider(cut) as served:
        with pytest.raises(StreamCut):
            await talk(upstream, upstream_call(anthropic(served)))


async def test_closing_cuts_the_providers_stream(upstream: Upstreams) -> None:
    """A caller that hangs up stops the provider's work."""
    gone = asyncio.Event()

    async def endless(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        start, block, delta, *_ = anthropic_events(body)
        try:
            for event in (start, block):
                await reply.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            while True:
                await reply.write(f"event: {delta['type']}\ndata: {json.dumps(delta)}\n\n".encode())
                await asyncio.sleep(0.01)
        finally:
            gone.set()

    async with provider(endless) as served:
        stream = await upstream.open(upstream_call(anthropic(served)))
        assert await stream.read()
        await stream.aclose()
        await asyncio.wait_for(gone.wait(), 5)


STEERING = [
    "api_base",
    "base_url",
    "api_key",
    "extra_headers",
    "aws_region_name",
    "mock_response",
    "callbacks",
    "metadata_",
]


@pytest.mark.parametrize("field", STEERING)
def test_no_field_steers_the_call(field: str) -> None:
    """What is not on the allow-list is refused by name, never passed and never dropped in silence."""
    call = upstream_call(deployment("litellm"), chat_request(**{field: "http://elsewhere"}))
    with pytest.raises(CannotCarry) as raised:
        litellm_arguments(call)
    assert raised.value.param == field
    # Nothing was sent, so another candidate may still take the request.
    assert raised.value.fall_back


def test_what_cannot_be_decoded_is_refused() -> None:
    """A number out of range passes through raw elsewhere; here it is the caller's 400, not our 500."""
    request = chat_request()
    request.fields["seed"] = msgspec.Raw(b"1e999")
    with pytest.raises(CannotCarry) as raised:
        litellm_arguments(upstream_call(deployment("litellm"), request))
    assert raised.value.param == "seed"


def test_litellms_metadata_is_not_the_callers() -> None:
    """OpenAI's notes to itself are left out: litellm would read them as instructions."""
    arguments = litellm_arguments(upstream_call(deployment("litellm"), chat_request(metadata={"a": "b"}, store=True)))
    assert not {"metadata", "store"} & arguments.keys()


@pytest.mark.parametrize(
    ("url", "passes"),
    [("data:image/png;base64,AAAA", True), ("http://169.254.169.254/latest", False), ("file:///etc/passwd", False)],
)
def test_media_is_inline(url: str, passes: bool) -> None:
    """A link would be fetched by the gateway itself, from inside its network."""
    parts = [{"type": "text", "text": "http://fine"}, {"type": "image_url", "image_url": {"url": url}}]
    call = upstream_call(deployment("litellm"), chat_request(messages=[{"role": "user", "content": parts}]))
    if passes:
        assert litellm_arguments(call)["messages"][0]["content"] == parts
    else:
        with pytest.raises(CannotCarry):
            litellm_arguments(call)


IMPORTS_ALL = """
import pkgutil, sys, providers
for module in pkgutil.iter_modules(providers.__path__):
    __import__("providers." + module.name)
from providers.catalog import build_catalog
from providers.config import ProvidersSection
model = {"model_id": "a", "provider": "p", "max_context_tokens": 8000,
         "deployments": [{"kind": "openai", "base_url": "http://h/v1"}]}
assert not build_catalog(ProvidersSection(models=[model]), str).needs_litellm
assert "litellm" not in sys.modules
"""


def test_litellm_is_not_imported_without_need() -> None:
    """Importing every module of the folder and building a catalog leaves litellm alone."""
    subprocess.run([sys.executable, "-c", IMPORTS_ALL], check=True, timeout=60)


def test_embeddings_do_not_pass() -> None:
    """Such a target says so, before litellm is asked for anything."""
    request = msgspec.structs.replace(chat_request(), operation="embeddings", messages=[])
    with pytest.raises(CannotCarry, match="chats only") as raised:
        litellm_arguments(upstream_call(deployment("litellm"), request))
    assert (raised.value.status, raised.value.param) == (400, "model")


async def test_a_call_goes_into_a_batch_as_it_is_called(upstream: Upstreams) -> None:
    """The same parameters of messages reach Anthropic either way."""
    fields = {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "max_tokens": 50,
        "temperature": 0.2,
        "stop": ["x"],
        "tools": TOOLS,
        "tool_choice": "auto",
    }
    async with provider(anthropic_whole) as served:
        call = upstream_call(anthropic(served), chat_request(**fields))
        await talk(upstream, call)
    params = json.loads(claude_params(call))
    (called,) = served.bodies
    assert params == {name: value for name, value in called.items() if name != "stream"}


def test_what_is_called_in_another_way_goes_into_no_batch() -> None:
    """What only litellm's options can say."""
    at = deployment("litellm", upstream_model="anthropic/claude-sonnet-4-5", options={"api_version": "1"})
    with pytest.raises(CannotCarry):
        claude_params(upstream_call(at, chat_request()))


def test_a_message_of_a_batch_is_a_chat_completion() -> None:
    """With the usage of it, what came from caches included; anything else is refused."""
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "hello"}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}],
        "stop_reason": "tool_use", "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2},
    }  # fmt: skip
    at = deployment("litellm", upstream_model="anthropic/claude-sonnet-4-5")
    chat = json.loads(chat_of_message(json.dumps(message).encode(), at))
    assert chat["choices"][0]["message"]["content"] == "hello"
    assert chat["choices"][0]["message"]["tool_calls"][0]["function"] == {"arguments": '{"a":1}', "name": "f"}
    assert (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"]) == (15, 5)
    with pytest.raises(MalformedReply):
        chat_of_message(b"{}", at)


def test_headers_of_a_deployment_go_with_its_calls() -> None:
    """As litellm's own argument; without any there is none."""
    headed = msgspec.structs.replace(deployment("litellm"), headers={"X-Title": "My app"})
    assert litellm_arguments(upstream_call(headed))["extra_headers"] == {"X-Title": "My app"}
    assert "extra_headers" not in litellm_arguments(upstream_call(deployment("litellm")))
