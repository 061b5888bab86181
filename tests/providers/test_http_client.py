"""HttpUpstream over real sockets: what is sent, what comes back, and how each failure is told."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

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
from providers.http_client import HttpLimits, HttpUpstream
from providers.target import DeploymentKind
from providers.upstream import UpstreamCall, UpstreamStream
from providers.wire import Event
from testing.scripted.log import LogLine
from testing.scripted.server import make_app
from tests.providers.calls import chat_request, deployment, read_all, talk, text_of, tokens_of, upstream_call

KEY = "sk-made-up-0123456789abcdef"

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with listening(app) as url:
        yield url


@asynccontextmanager
async def raw_server(reply: bytes, *, then_hang: bool = False) -> AsyncIterator[str]:
    """Writes these bytes to whoever sends a request, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        await reader.readexactly(length)
        writer.write(reply)
        await writer.drain()
        if then_hang:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


@pytest.fixture
async def upstream() -> AsyncIterator[HttpUpstream]:
    direct = HttpUpstream(HttpLimits(max_event_bytes=10_000, max_reply_bytes=100_000))
    yield direct
    await direct.aclose()


@pytest.fixture
async def scripted() -> AsyncIterator[tuple[str, list[LogLine]]]:
    seen: list[LogLine] = []
    async with listening(make_app(seen.append)) as url:
        yield url, seen


def streaming(*pieces: bytes, kind: str = "text/event-stream") -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": kind})
        await reply.prepare(request)
        for piece in pieces:
            await reply.write(piece)
        return reply

    return answer


async def text_until(kind: type[UpstreamError], stream: UpstreamStream) -> str:
    """The text that arrives before an error of this kind."""
    seen = ""
    try:
        while (batch := await stream.read()) is not None:
            seen += text_of(batch)
    except kind:
        return seen
    finally:
        await stream.aclose()
    raise AssertionError("the stream ended well")


async def test_a_stream_is_read_to_its_end(upstream: HttpUpstream, scripted: tuple[str, list[LogLine]]) -> None:
    """Tokens, the finish and the usage arrive; the role alone is no token; the request id goes along."""
    url, seen = scripted
    events = await talk(upstream, upstream_call(deployment(base_url=url, upstream_model="tokens-5")))
    assert text_of(events) == " w0 w1 w2 w3 w4"
    assert tokens_of(events) == 5
    assert [event.token for event in events[:1] + events[-2:]] == [False] * 3
    assert [event.choices for event in events] == [1] * (len(events) - 1) + [0]
    assert [event.finished for event in events].index(True) == len(events) - 2
    usage = events[-1].usage
    assert usage is not None
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (12, 5)
    assert [(line.event, line.request_id, line.completion_tokens) for line in seen] == [
        ("arrived", "req-1", 0),
        ("ended", "req-1", 5),
    ]


@pytest.mark.parametrize(("model", "text"), [("ok", " w0 w1 w2"), ("json", '{"answer": 42}'), ("tools", "")])
async def test_a_whole_answer_is_one_event(
    upstream: HttpUpstream, scripted: tuple[str, list[LogLine]], model: str, text: str
) -> None:
    """Without streaming the body is one event with everything in it."""
    call = upstream_call(deployment(base_url=scripted[0], upstream_model=model), chat_request())
    (event,) = await talk(upstream, call)
    assert (event.token, event.finished, text_of([event])) == (True, True, text)
    assert event.usage is not None
    assert event.text_chars > 0


async def test_connections_are_used_again(upstream: HttpUpstream) -> None:
    """A reply that was read to its end gives its connection back, streaming or not."""
    ports: set[int] = set()
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}

    async def answer(request: web.Request) -> web.StreamResponse:
        ports.add(request.transport.get_extra_info("peername")[1])  # type: ignore[union-attr]
        if not json.loads(await request.read()).get("stream"):
            return web.json_response(whole)
        reply = await streaming(CHUNK, FINISH, b"data: [DONE]\n\n")(request)
        # The end of the HTTP body comes a moment after the end marker.
        await asyncio.sleep(0.005)
        return reply

    async with answering(answer) as url:
        for stream in (True, False, True, False):
            await talk(upstream, upstream_call(deployment(base_url=url), chat_request(stream=stream)))
    assert len(ports) == 1


async def test_closing_early_cuts_the_connection(upstream: HttpUpstream) -> None:
    """A caller that hangs up is felt by the upstream at once."""
    gone = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        try:
            reply = await streaming(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')(request)
            await asyncio.sleep(60)
        finally:
            gone.set()
        return reply

    async with answering(endless) as url:
        stream = await upstream.open(upstream_call(deployment(base_url=url)))
        assert await stream.read()
        await stream.aclose()
        await stream.aclose()
        await asyncio.wait_for(gone.wait(), 5)


@pytest.mark.parametrize("opened", [False, True])
async def test_cancelling_cuts_the_connection(upstream: HttpUpstream, opened: bool) -> None:
    """A cancelled attempt leaves nothing running upstream, wherever it was."""
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        try:
            if opened:
                await streaming()(request)
            arrived.set()
            await asyncio.sleep(60)
        finally:
            gone.set()
        raise AssertionError

    async with answering(hang) as url:
        task = asyncio.create_task(talk(upstream, upstream_call(deployment(base_url=url))))
        await arrived.wait()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 5)


@pytest.mark.parametrize(
    ("kind", "header", "value"), [("openai", "authorization", f"Bearer {KEY}"), ("azure", "api-key", KEY)]
)
async def test_what_is_sent(upstream: HttpUpstream, kind: DeploymentKind, header: str, value: str) -> None:
    """The key in the kind's own header, the upstream's model name, our headers, and no compression."""
    sent: list[tuple[Any, dict[str, Any]]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        sent.append((request.headers.copy(), json.loads(await request.read())))
        return await streaming(FINISH, b"data: [DONE]\n\n")(request)

    async with answering(answer) as url:
        to = deployment(kind, base_url=url + "/", api_key=KEY, upstream_model="theirs")
        call = upstream_call(to, chat_request(stream=True, unknown={"a": [1]}), headers={"traceparent": "00-a-b-01"})
        assert text_of(await talk(upstream, call)) == ""
    headers, body = sent[0]
    assert headers[header] == value
    assert headers["x-request-id"] == "req-1"
    assert headers["traceparent"] == "00-a-b-01"
    assert headers["accept-encoding"] == "identity"
    assert body["model"] == "theirs"
    assert body["unknown"] == {"a": [1]}
    assert body["stream_options"] == {"include_usage": True}


async def test_a_large_request(upstream: HttpUpstream, scripted: tuple[str, list[LogLine]]) -> None:
    """A body of several megabytes is sent without a warning and is whole."""
    request = chat_request(stream=True, messages=[{"role": "user", "content": "x" * 3_000_000}])
    assert text_of(await talk(upstream, upstream_call(deployment(base_url=scripted[0]), request))) == " w0 w1 w2"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, UpstreamRefusedUs),
        (400, RequestRejected),
        (401, UpstreamRefusedUs),
        (402, UpstreamRefusedUs),
        (403, UpstreamRefusedUs),
        (404, UpstreamRefusedUs),
        (408, AnswerLost),
        (409, UpstreamUnavailable),
        (413, RequestRejected),
        (422, RequestRejected),
        (429, UpstreamRateLimited),
        (499, AnswerLost),
        (500, UpstreamUnavailable),
        (503, UpstreamUnavailable),
        (504, AnswerLost),
        (524, AnswerLost),
        (529, UpstreamOverloaded),
    ],
)
async def test_statuses(upstream: HttpUpstream, status: int, kind: type[UpstreamError]) -> None:
    """Each status becomes one kind of error; redirects are not followed, and no key is shown."""
    error = {"message": f"key {KEY}\r\n bad", "type": "t", "param": "messages", "code": "c"}

    async def answer(_request: web.Request) -> web.StreamResponse:
        headers = {"location": "/v1/elsewhere", "retry-after-ms": "1500"}
        return web.json_response({"error": error}, status=status, headers=headers)

    async with answering(answer) as url:
        with pytest.raises(kind) as raised:
            await talk(upstream, upstream_call(deployment(base_url=url, api_key=KEY)))
    found = raised.value
    assert type(found) is kind
    assert (found.status, found.deployment_id) == (status, "t/main")
    assert KEY not in found.public
    if isinstance(found, RequestRejected):
        assert (found.public, found.error_type, found.param, found.code) == ("key *** bad", "t", "messages", "c")
    if isinstance(found, UpstreamRateLimited):
        assert found.retry_after_s == 1.5


CHUNK = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([CHUNK], StreamCut),
        ([CHUNK, b"data: [DONE]\n\n"], StreamCut),
        ([CHUNK, b'data: {"choi'], StreamCut),
        ([CHUNK, b"data: {broken\n\n"], MalformedReply),
        ([CHUNK, b"data: [1,2]\n\n"], MalformedReply),
        ([CHUNK, b'data: {"choices": 7}\n\n'], MalformedReply),
        ([b"data: " + b"x" * 20_000 + b"\n\n"], MalformedReply),
        ([b": " + b"x" * 20_000], MalformedReply),
        ([CHUNK] * 3_000, MalformedReply),
        ([CHUNK, b'data: {"error":{"message":"m","type":"server_error"}}\n\n'], UpstreamUnavailable),
        ([b'data: {"error":{"message":"m","code":429}}\n\n'], UpstreamRateLimited),
        ([b'data: {"error":{"message":"m","code":"rate_limit_exceeded"}}\n\n'], UpstreamRateLimited),
        ([b'data: {"error":{"message":"m","type":"BadRequestError","code":400}}\n\n'], RequestRejected),
    ],
)
async def test_broken_streams(upstream: HttpUpstream, pieces: list[bytes], kind: type[UpstreamError]) -> None:
    """A stream that is cut, malformed, endless or ends in an error object says which it was."""
    async with answering(streaming(*pieces)) as url:
        with pytest.raises(kind):
            await talk(upstream, upstream_call(deployment(base_url=url)))


async def test_what_came_before_a_broken_event_is_not_lost(upstream: HttpUpstream) -> None:
    """Tokens of the read that also broke were generated, so they are given before the error."""
    async with answering(streaming(CHUNK + b"data: {broken\n\n")) as url:
        stream = await upstream.open(upstream_call(deployment(base_url=url)))
        assert text_of(await stream.read() or []) == "x"
        with pytest.raises(MalformedReply):
            await stream.read()
        await stream.aclose()


@pytest.mark.parametrize(
    "piece",
    [
        b'data: {\ndata:   "choices":\ndata: [{"delta":{"content":"x"}}]}\n\n',
        b'data:   { "choices":[{"delta":{"content":"x"}}]} \r\n\r\n',
        CHUNK + b"data: {}\n\ndata: { }\n\ndata: \n\ndata:  \n\n",
        b"data: {}\n\n" + CHUNK,
    ],
)
async def test_payloads_can_be_spliced(upstream: HttpUpstream, piece: bytes) -> None:
    """However an upstream lays out its events, each payload is one line that begins with its first key."""
    async with answering(streaming(piece, FINISH, b"data: [DONE] \n\n", b"data: {broken\n\n")) as url:
        events = await talk(upstream, upstream_call(deployment(base_url=url)))
    assert text_of(events) == "x"
    assert len(events) == 2
    for event in events:
        assert event.payload.startswith(b'{"')
        assert not {b"\n", b"\r"} & {event.payload[i : i + 1] for i in range(len(event.payload))}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}',
        b'\n {\n "choices":[{"message":{"content":"x"},\r\n"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}\n',
        b'{"choices":[{"message":{"content":"x","refusal":"\\ud83d"}}],"usage":{"prompt_tokens":3}}',
    ],
)
async def test_odd_whole_answers(upstream: HttpUpstream, body: bytes, stream: bool) -> None:
    """A byte order mark, line ends or half an emoji cost neither the answer nor its usage."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    async with answering(answer) as url:
        (event,) = await talk(upstream, upstream_call(deployment(base_url=url), chat_request(stream=stream)))
    assert event.payload.startswith(b'{"')
    assert b"\n" not in event.payload
    assert json.loads(event.payload)["choices"][0]["delta" if stream else "message"]["content"] == "x"
    assert event.usage is not None
    assert event.usage["prompt_tokens"] == 3


async def test_half_an_emoji_goes_through(upstream: HttpUpstream) -> None:
    """Engines cut surrogate pairs between events: both halves arrive, and count as tokens."""
    halves = [b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % half for half in (b"\\ud83d", b"\\ude00")]
    async with answering(streaming(*halves, FINISH, b"data: [DONE]\n\n")) as url:
        events = await talk(upstream, upstream_call(deployment(base_url=url)))
    text = "".join(json.loads(event.payload)["choices"][0]["delta"].get("content", "") for event in events)
    assert text.encode("utf-16", "surrogatepass").decode("utf-16") == "\N{GRINNING FACE}"
    assert [event.token for event in events] == [True, True, False]


@pytest.mark.parametrize("ending", [[], [b"data: [DONE]"], [b"data: [DONE]\n\ndata: ignored\n\n"]])
async def test_a_clean_end_after_the_finish(upstream: HttpUpstream, ending: list[bytes]) -> None:
    """After a finish reason a clean end is an end, with the marker or without."""
    async with answering(streaming(CHUNK, FINISH, *ending)) as url:
        events = await talk(upstream, upstream_call(deployment(base_url=url)))
    assert text_of(events) == "x"


_USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6}}\n\n'


def _chunked(*pieces: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces)


@pytest.mark.parametrize("pieces", [[CHUNK, FINISH, _USAGE], [CHUNK, FINISH], [CHUNK, FINISH, CHUNK, FINISH, _USAGE]])
async def test_an_upstream_that_stays_open_behind_its_end_is_not_waited_for(
    upstream: HttpUpstream, pieces: list[bytes]
) -> None:
    """Without an end marker the finish reason and the usage are the end; without usage it is waited for a moment."""
    async with raw_server(_chunked(*pieces), then_hang=True) as url:
        call = upstream_call(deployment(base_url=url), idle_timeout_s=600, total_timeout_s=600)
        events = await talk(upstream, call)
    assert [event.usage is not None for event in events].count(True) == pieces.count(_USAGE)
    assert text_of(events) == "x" * pieces.count(CHUNK)


async def test_comments_do_not_keep_a_finished_answer_open(upstream: HttpUpstream) -> None:
    """An upstream that only keeps its line alive says nothing more."""

    async def answer(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(CHUNK + FINISH + _USAGE)
        while True:
            await reply.write(b": still here\n\n")
            await asyncio.sleep(0.1)

    async with answering(answer) as url:
        events = await talk(upstream, upstream_call(deployment(base_url=url), idle_timeout_s=600, total_timeout_s=600))
    assert events[-1].usage is not None


async def test_usage_behind_the_finish_reason_is_waited_for(upstream: HttpUpstream) -> None:
    """It comes in a read of its own, a little later; text that comes late all the same is no end either."""

    async def answer(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        for piece in (CHUNK, FINISH, CHUNK, FINISH, _USAGE):
            await reply.write(piece)
            await asyncio.sleep(0.7)
        await reply.write(b"data: [DONE]\n\n")
        return reply

    async with answering(answer) as url:
        events = await talk(upstream, upstream_call(deployment(base_url=url)))
    assert text_of(events) == "xx"
    assert events[-1].usage is not None


async def test_a_connection_that_breaks_is_a_cut(upstream: HttpUpstream, scripted: tuple[str, list[LogLine]]) -> None:
    """A broken connection in the middle is a cut, and what arrived before it is given."""
    stream = await upstream.open(upstream_call(deployment(base_url=scripted[0], upstream_model="cut-3+every-20ms")))
    seen = await text_until(StreamCut, stream)
    assert seen == " w0 w1"


@pytest.mark.parametrize("after_finish", [False, True])
async def test_a_chunked_body_without_its_last_chunk(upstream: HttpUpstream, after_finish: bool) -> None:
    """Only a clean end counts as an end: a body that HTTP itself calls incomplete is a cut."""
    piece = FINISH if after_finish else CHUNK
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    async with raw_server(head + f"{len(piece):x}\r\n".encode() + piece + b"\r\n") as url:
        with pytest.raises(StreamCut):
            await talk(upstream, upstream_call(deployment(base_url=url)))


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"", AnswerLost),
        (b"HTTP/1.1 200 OK\r\ncontent-", AnswerLost),
        (b"not http at all\r\n\r\n", MalformedReply),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi", MalformedReply),
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nhi",
            MalformedReply,
        ),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 20_000 + b"\r\n\r\n", MalformedReply),
        (b"HTTP/1.1 500 no\r\ncontent-length: 99\r\n\r\ncut", UpstreamUnavailable),
    ],
)
async def test_replies_that_are_not_replies(upstream: HttpUpstream, reply: bytes, kind: type[UpstreamError]) -> None:
    """Whatever a socket may say, it becomes one of our errors."""
    async with raw_server(reply) as url:
        with pytest.raises(kind):
            await talk(upstream, upstream_call(deployment(base_url=url)))


async def test_a_reset_before_the_status_is_a_lost_answer(upstream: HttpUpstream) -> None:
    """An upstream that is killed at its work may have charged for it; another attempt stays allowed."""

    async def die(request: web.Request) -> web.StreamResponse:
        await request.read()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with answering(die) as url:
        with pytest.raises(AnswerLost) as raised:
            await talk(upstream, upstream_call(deployment(base_url=url)))
    assert raised.value.retry_same
    assert raised.value.fall_back
    assert raised.value.gateway_failure


@pytest.mark.parametrize("kind", ["vllm", "tgi"])
async def test_a_media_link_is_refused_unsent(upstream: HttpUpstream, kind: DeploymentKind) -> None:
    """An engine of one's own never sees a request that would make it fetch something."""
    content = [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}]
    request = chat_request(stream=True, messages=[{"role": "user", "content": content}])
    with pytest.raises(CannotCarry):
        await upstream.open(upstream_call(deployment(kind, base_url="http://nowhere.invalid/v1"), request))


async def test_nobody_listens(upstream: HttpUpstream) -> None:
    """A refused connection and an unknown host are connection failures."""
    async with raw_server(b"") as url:
        pass
    for base_url in (url, "http://nowhere.invalid/v1"):
        with pytest.raises(ConnectFailed):
            await talk(upstream, upstream_call(deployment(base_url=base_url)))


async def test_silence(upstream: HttpUpstream) -> None:
    """Silence before the status meets the total time; within a reply it meets the idle time."""
    async with raw_server(b"", then_hang=True) as url:
        with pytest.raises(UpstreamTimeout):
            await upstream.open(upstream_call(deployment(base_url=url), total_timeout_s=0.1))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    async with raw_server(head + CHUNK, then_hang=True) as url:
        with pytest.raises(UpstreamTimeout):
            await talk(upstream, upstream_call(deployment(base_url=url), idle_timeout_s=0.1))


async def test_a_slow_first_token_is_not_silence(upstream: HttpUpstream, scripted: tuple[str, list[LogLine]]) -> None:
    """Until the reply begins only the total time counts: a long whole answer has nothing to show before."""
    to = deployment(base_url=scripted[0], upstream_model="slow-first-token-200ms")
    call = upstream_call(to, chat_request(), idle_timeout_s=0.05)
    assert text_of(await talk(upstream, call)) == " w0 w1 w2"


async def test_json_in_answer_to_a_streaming_request(upstream: HttpUpstream) -> None:
    """A host that ignores `stream: true` still serves: its whole answer becomes one chunk."""
    function = {"name": "f", "arguments": "{}"}
    message = {
        "role": "assistant",
        "content": "x",
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    whole = {
        "id": "1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3},
    }

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(whole)

    async with answering(answer) as url:
        (event,) = await talk(upstream, upstream_call(deployment(base_url=url)))
    chunk = msgspec.json.decode(event.payload)
    assert chunk["object"] == "chat.completion.chunk"
    assert chunk["choices"][0]["delta"]["content"] == "x"
    assert chunk["choices"][0]["delta"]["tool_calls"][0]["index"] == 0
    assert event.usage is not None
    assert event.token
    assert event.finished


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"{}", b'{"choices": []}', b"x" * 200_000, b'{"choices":[{"message":' + b"[" * 5_000]
)
async def test_whole_answers_that_are_none(upstream: HttpUpstream, body: bytes) -> None:
    """A body that is not a completion, or is too large, is malformed."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    async with answering(answer) as url:
        with pytest.raises(MalformedReply):
            await talk(upstream, upstream_call(deployment(base_url=url), chat_request()))


async def test_an_error_object_with_status_200(upstream: HttpUpstream) -> None:
    """Some gateways answer 200 with an error; it is one."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "over", "code": 503}})

    async with answering(answer) as url:
        with pytest.raises(UpstreamUnavailable):
            await talk(upstream, upstream_call(deployment(base_url=url), chat_request()))


async def test_a_stream_where_a_whole_answer_was_asked(upstream: HttpUpstream) -> None:
    """Events cannot be given to a caller that wants one object."""
    async with answering(streaming(CHUNK)) as url:
        with pytest.raises(MalformedReply):
            await talk(upstream, upstream_call(deployment(base_url=url), chat_request()))


async def test_many_at_once(upstream: HttpUpstream, scripted: tuple[str, list[LogLine]]) -> None:
    """Replies side by side do not mix."""

    async def one(tokens: int) -> None:
        to = deployment(base_url=scripted[0], upstream_model=f"tokens-{tokens}")
        events = await read_all(await upstream.open(upstream_call(to, request_id=f"r{tokens}")))
        assert text_of(events) == "".join(f" w{index}" for index in range(tokens))

    await asyncio.gather(*(one(tokens) for tokens in range(1, 60)))


async def test_what_had_come_when_nobody_reads_on_is_told(upstream: HttpUpstream) -> None:
    """An engine that is cut off made what lies in our buffer, so it counts; a piece of an event tells nothing."""
    more = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(CHUNK)
        await more.wait()
        await reply.write(CHUNK * 3 + b'data: {"choi')
        await asyncio.sleep(10)
        return reply

    async with answering(answer) as url:
        stream = await upstream.open(upstream_call(deployment(base_url=url)))
        assert await stream.read()
        assert stream.unread() == []
        more.set()
        unread: list[Event] = []
        while not unread:
            await asyncio.sleep(0.01)
            unread = stream.unread()
        assert tokens_of(unread) == 3
        await stream.aclose()
        assert stream.unread() == []


@pytest.mark.parametrize("chunks", [1, 20])
async def test_behind_many_events_the_next_gather(chunks: int) -> None:
    """What comes within a moment of a read of several events is one read; behind a single one nothing waits."""
    more = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(CHUNK * chunks)
        await more.wait()
        for piece in (CHUNK, CHUNK, FINISH, b"data: [DONE]\n\n"):
            await reply.write(piece)
            await asyncio.sleep(0)
        return reply

    direct = HttpUpstream(HttpLimits(gather_s=3_600 if chunks == 1 else 0.5))
    async with answering(answer) as url:
        stream = await direct.open(upstream_call(deployment(base_url=url)))
        assert tokens_of(await stream.read() or []) == chunks
        more.set()
        async with asyncio.timeout(30):
            events = await stream.read() or []
        assert tokens_of(events) >= 1
        if chunks > 1:
            assert tokens_of(events) == 2
            assert tokens_of(await read_all(stream)) == 0
        await stream.aclose()
        await direct.aclose()


async def test_nothing_is_told_of_a_stream_that_broke(upstream: HttpUpstream) -> None:
    """Whoever asks is settling an attempt, which nothing may keep from it."""
    async with answering(streaming(CHUNK, b"data: nonsense\n\n")) as url:
        stream = await upstream.open(upstream_call(deployment(base_url=url)))
        await asyncio.sleep(0.05)
        assert len(stream.unread()) <= 1
        assert stream.unread() == []
        await stream.aclose()


async def test_it_is_told_when_an_upstream_can_have_seen_a_request() -> None:
    """Not while the request waits for a connection; from then on, be it a new connection or one that stood already."""
    told: dict[str, list[bool]] = {name: [] for name in ("held", "waits", "new", "again")}
    direct = HttpUpstream(HttpLimits(max_connections=1))
    seen: list[LogLine] = []
    async with listening(make_app(seen.append)) as url:

        def call(name: str, script: str = "ok") -> UpstreamCall:
            to = deployment(base_url=url, upstream_model=script)
            return upstream_call(to, request_id=name, reaches=told[name].append)

        held = await direct.open(call("held", "tokens-5+hang-2"))
        # The only connection is taken, so nothing of this one can leave.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await direct.open(call("waits"))
        await held.aclose()
        for name in ("new", "again"):
            await talk(direct, call(name))
        await direct.aclose()
    assert told == {"held": [False, True], "waits": [False], "new": [False, True], "again": [True]}
    assert {line.request_id for line in seen} == {"held", "new", "again"}


@pytest.mark.parametrize("many", [1, 40])
async def test_a_byte_that_is_no_letter_costs_no_answer(upstream: HttpUpstream, many: int) -> None:
    """It becomes the replacement character, also among events that are read as one."""
    broken = CHUNK.replace(b'"x"', b'"\xffx"')
    async with answering(streaming(CHUNK * many + broken + CHUNK * many, FINISH, b"data: [DONE]\n\n")) as url:
        events = await talk(upstream, upstream_call(deployment(base_url=url)))
    assert text_of(events) == "x" * many + "\N{REPLACEMENT CHARACTER}x" + "x" * many
    for event in events:
        event.payload.decode()


async def test_a_whole_answer_with_a_byte_that_is_no_letter(upstream: HttpUpstream) -> None:
    """Likewise, whatever field it stands in."""
    body = b'{"id":"\xff","choices":[{"index":0,"message":{"role":"assistant","content":"a\xffb"},"finish_reason":"stop"}]}'

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    async with answering(answer) as url:
        (event,) = await talk(upstream, upstream_call(deployment(base_url=url), chat_request(stream=False)))
    assert json.loads(event.payload)["choices"][0]["message"]["content"] == "a\N{REPLACEMENT CHARACTER}b"
