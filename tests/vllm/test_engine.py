"""What we read of a vLLM engine, held against the engine itself."""

import asyncio
import json
from random import Random

import aiohttp

from providers.target import DeploymentKind
from selfhosted.balance.blocks import prompt_blocks
from selfhosted.balance.index import PrefixIndex
from selfhosted.engines.dialects import read_page
from selfhosted.kv_events.listening import KvEvents
from selfhosted.kv_events.sampling import Sample
from selfhosted.kv_events.tokenizing import HttpTokenize
from selfhosted.replica import Address
from tests.fleet import renewed
from tests.vllm.conftest import Pair
from tests.vllm.conversations import conversation
from tests.vllm.engines import BLOCK_TOKENS, BLOCKS, MODEL, SEATS, VllmReplica, moved, until

KIND: DeploymentKind = "vllm"


async def complete(
    engine: VllmReplica, name: str, *, lines: int = 20, turn: int = 0, **fields: object
) -> dict[str, int]:
    """One answer, straight from the engine: its usage."""
    body = {"model": MODEL, "messages": conversation(name, turn, lines=lines), "max_tokens": 8, **fields}
    async with aiohttp.ClientSession() as session, session.post(f"{engine.url}/v1/chat/completions", json=body) as got:
        told = await got.json()
        assert got.status == 200, told
        usage: dict[str, int] = told["usage"]
        return usage


async def test_the_reader_and_the_engine_agree(pair: Pair) -> None:
    """Counters move by what the answers' usage says, and the cache is as large as the command line made it."""
    before = read_page(KIND, pair.a.get("/metrics"), 0.0).stats
    usages = [await complete(pair.a, "reader", turn=turn) for turn in range(3)]
    after = read_page(KIND, pair.a.get("/metrics"), 1.0).stats
    assert (after.kv_tokens, after.block_tokens) == (BLOCKS * BLOCK_TOKENS, BLOCK_TOKENS)
    assert (after.running, after.waiting) == (0, 0)
    assert after.prompt_tokens is not None
    assert after.output_tokens is not None
    assert after.prefix_hits is not None
    assert after.ttft_count is not None
    assert after.prompt_tokens - (before.prompt_tokens or 0) == sum(usage["prompt_tokens"] for usage in usages)
    assert after.output_tokens - (before.output_tokens or 0) == 8 * 3
    assert after.ttft_count - (before.ttft_count or 0) == 3
    # Two later turns find the blocks of the turn before them.
    first = usages[0]["prompt_tokens"] // BLOCK_TOKENS * BLOCK_TOKENS
    assert after.prefix_hits - (before.prefix_hits or 0) >= 2 * (first - BLOCK_TOKENS)


async def test_what_runs_and_waits_is_read(pair: Pair) -> None:
    """With more requests than seats the reader tells both numbers, and a cache that is in use."""

    async def ask(name: str) -> None:
        assert (await complete(pair.a, f"seats {name}", max_tokens=600))["completion_tokens"] == 600

    async def all_there() -> bool:
        stats = read_page(KIND, await asyncio.to_thread(pair.a.get, "/metrics"), 0.0).stats
        return (stats.running, stats.waiting) == (SEATS, 2) and (stats.kv_usage or 0.0) > 0.0

    async with renewed(ask, callers=SEATS + 2):
        await until(all_there, pair.a)


async def test_kv_events_tell_what_is_cached_and_what_was_thrown_out(pair: Pair) -> None:
    """The index learns of a prompt's blocks from the engine, and that they are gone when others took their place."""
    index = PrefixIndex(10_000)
    messages = conversation("events", 0, lines=40)
    body = json.dumps({"model": MODEL, "messages": messages}).encode()
    text = "".join(message["content"] for message in messages).encode()
    blocks = prompt_blocks(text, block_bytes=256, most=64)
    address = Address(pool="own", name="a", url=pair.a.url, kind=KIND, source="configured")
    sample = Sample(
        replica="a",
        url=pair.a.url,
        blocks=blocks,
        block_bytes=256,
        rendered_bytes=len(text),
        body=body,
        adapter=None,
        salt=None,
    )
    async with aiohttp.ClientSession() as session:
        events = KvEvents("own", port=pair.a.kv_port, replay_port=None, index=index, tokenize=HttpTokenize(session))
        events.adopt([address])
        listening = asyncio.create_task(events.run())
        try:

            async def heard() -> bool:
                # The first event proves that the subscription stands: ZeroMQ tells nobody when it does.
                await complete(pair.a, f"hello {Random().random()}", lines=4, max_tokens=1)
                return events.states()["a"].state == "live"

            await until(heard, pair.a)
            await complete(pair.a, "events", lines=40, max_tokens=1)
            events.offer(sample)
            await until(lambda: index.depths(blocks).get("a", 0) >= len(blocks) - 2, pair.a)
            # 8,192 tokens fit; twice as many of other conversations push this one out.
            for number in range(12):
                await complete(pair.a, f"flood {number}", lines=70, max_tokens=1)
            await until(lambda: index.depths(blocks).get("a", 0) == 0, pair.a)
        finally:
            listening.cancel()
            # It closes its sockets; collected with open ones, ZeroMQ's context would wait for them without end.
            await asyncio.gather(listening, return_exceptions=True)


async def test_prefix_counters_are_the_engines(pair: Pair) -> None:
    """A prompt that was seen before is a hit in the engine's own counters, and cached tokens in the answer's usage."""
    await complete(pair.b, "twice", lines=30)
    before = pair.b.samples()
    usage = await complete(pair.b, "twice", lines=30)
    after = pair.b.samples()
    hits = moved(before, after, "vllm:prefix_cache_hits_total")
    assert hits >= usage["prompt_tokens"] - 2 * BLOCK_TOKENS
