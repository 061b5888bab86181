import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from benchmarks import engine, open_loop
from benchmarks.arrivals import Arrival
from benchmarks.engine import Done
from benchmarks.open_loop import GAVE_UP, NO_REPLY, TOKENS, Loaded, Plan

_STREAM = '{"stream":true,"max_tokens":' + TOKENS.decode() + ',"messages":[{"role":"user","content":"########"}]}'
_WHOLE = _STREAM.replace('"stream":true,', "")


@asynccontextmanager
async def _engine(slots: int, tokens_per_s: float = 1_000.0) -> AsyncIterator[str]:
    server = await engine.listen(0, slots=slots, tokens_per_s=tokens_per_s, prompt_tokens=7)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        # The other end's connections close when they read the end of ours.
        await asyncio.sleep(0.01)


async def _load(url: str, arrivals: list[Arrival], body: str = _STREAM, **changes: object) -> Loaded:
    plan = Plan(url=url, keys=("one", "two"), body=body, arrivals=tuple(arrivals), patience_s=5.0)
    return await open_loop.drive(msgspec.structs.replace(plan, **changes))


async def _done(url: str) -> Done:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.rpartition(b"content-length: ")[2])
    told = msgspec.json.decode(await reader.readexactly(length), type=Done)
    writer.close()
    await writer.wait_closed()
    return told


async def test_streams_and_whole_answers_come_to_their_end() -> None:
    """With all their events, from connections that are used again: the last comes half a second after the others."""
    async with _engine(slots=4) as url:
        streams = await _load(url, [Arrival(n / 100 if n < 7 else 0.5, n % 2, 5) for n in range(8)])
        whole = await _load(url, [Arrival(0.0, 0, 5)], _WHOLE)
        done = await _done(url)
    assert [(reply.status, reply.whole) for reply in streams.replies] == [(200, True)] * 8
    assert all(0 < reply.ttft_us <= reply.latency_us for reply in streams.replies)
    assert streams.most_connections < 8
    assert (whole.replies[0].status, whole.replies[0].whole, whole.replies[0].ttft_us) == (200, True, 0)
    assert (done.served, done.served_tokens, done.running, done.cut) == (9, 45, 0, 0)


async def test_no_more_run_than_there_are_slots() -> None:
    """The others wait inside, first come, first served: no answer ends here, and a place is free when a caller hangs up."""
    async with _engine(slots=1, tokens_per_s=0.001) as url:
        callers = [await _standing(url, waiting) for waiting in range(3)]
        for running, (reader, writer) in enumerate(callers):
            assert b"The" in await asyncio.wait_for(reader.readuntil(b"The"), 30)
            done = await _done(url)
            assert (done.running, done.waiting, done.most_waiting) == (1, 2 - running, 2)
            writer.close()
            await writer.wait_closed()


async def _standing(url: str, waiting: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the connection of a caller whose request the engine has taken in, behind so many that wait."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    body = _STREAM.replace(TOKENS.decode(), "30").encode()
    writer.write(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    async with asyncio.timeout(30):
        while ((done := await _done(url)).running, done.waiting) != (1, waiting):  # noqa: ASYNC110 - the engine is asked
            await asyncio.sleep(0.001)
    return reader, writer


async def test_a_caller_that_gives_up_frees_its_place() -> None:
    """Both while it runs and while it waits; it is counted as given up."""
    async with _engine(slots=1, tokens_per_s=1.0) as url:
        loaded = await _load(url, [Arrival(0.0, 0, 500), Arrival(0.01, 0, 500)], patience_s=0.05)
        async with asyncio.timeout(30):
            while (done := await _done(url)).cut < 2:  # noqa: ASYNC110 - the engine is asked
                await asyncio.sleep(0.01)
    assert [reply.status for reply in loaded.replies] == [GAVE_UP, GAVE_UP]
    assert (done.cut, done.running, done.waiting, done.served) == (2, 0, 0, 0)


@asynccontextmanager
async def _answering(answer: bytes) -> AsyncIterator[str]:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10_000)
        writer.write(answer)
        writer.close()
        closed.append(writer)

    closed: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0.01)
        for writer in closed:
            await writer.wait_closed()


async def test_a_refusal_tells_its_code_and_when_to_come_back() -> None:
    """The queue's reason too, and that both headers were there."""
    body = b'{"error":{"message":"full","code":"queue_full","queue":{"why":"late"}}}'
    head = b"HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\nretry-after-ms: 900\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    async with _answering(head % len(body) + body) as url:
        loaded = await _load(url, [Arrival(0.0, 1, 5)])
    (reply,) = loaded.replies
    assert (reply.status, reply.code, reply.why, reply.retry_after) == (429, "queue_full", "late", True)


async def test_a_cut_stream_is_not_whole() -> None:
    """It ended without [DONE]: the status alone would hide it."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 10\r\n\r\ndata: {}\n\n"
    async with _answering(answer) as url:
        loaded = await _load(url, [Arrival(0.0, 0, 5)])
    assert [(reply.status, reply.whole) for reply in loaded.replies] == [(200, False)]


async def test_a_broken_connection_is_no_reply() -> None:
    """Whether it breaks in the middle, says nonsense or is refused."""
    async with _answering(b"") as url, _answering(b"nonsense\r\n\r\n") as odd_url:
        lost, odd = await _load(url, [Arrival(0.0, 0, 5)]), await _load(odd_url, [Arrival(0.0, 0, 5)])
    gone = await _load(url, [Arrival(0.0, 0, 5)])
    assert [each.replies[0].status for each in (lost, odd, gone)] == [NO_REPLY] * 3
    assert [each.replies[0].code.partition(":")[0] for each in (lost, odd, gone)] == [
        "connection lost",
        "malformed",
        "connect",
    ]


async def test_probes_ask_beside_the_load() -> None:
    """On connections of their own, for as long as the load goes on."""
    async with _engine(slots=1) as url:
        loaded = await _load(url, [Arrival(0.0, 0, 50)], probes=("/readyz",), probe_every_s=0.01)
    assert loaded.probes == []  # The engine keeps its connections, so a probe that waits for the end is cancelled.
    async with _answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as url:
        loaded = await _load(url, [Arrival(0.03, 0, 5)], probes=("/readyz",), probe_every_s=0.005)
    assert {(probe.path, probe.status) for probe in loaded.probes} == {("/readyz", 200)}
