"""Prefill and decode apart with two real vLLM engines, which hand over KV caches by NIXL in main memory. No GPU is there."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.vllm.conversations import conversation
from tests.vllm.engines import VllmReplica, free_port, until
from tests.vllm.test_fleet import fleet_of
from tests.vllm_more.conftest import MADE, PYTHON

_CONNECTOR: Final = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"})
_SOURCES: Final = re.compile(r'^vllm:prompt_tokens_by_source_total\{.*source="(\w+)".*\} (\S+)$', re.MULTILINE)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmReplica, VllmReplica]]:
    """One that reads, one that answers."""
    folder = tmp_path_factory.mktemp("engines")
    found = [
        VllmReplica(
            name,
            python=PYTHON,
            made=MADE,
            folder=folder,
            more=("--kv-transfer-config", _CONNECTOR),
            environment={
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
                "UCX_TLS": "tcp,self,sm",
            },
        )
        for name in ("read-1", "write-1")
    ]
    try:
        for engine in found:
            engine.start()
            engine.warm()
        yield found[0], found[1]
    finally:
        for engine in found:
            engine.kill()


def _sources(engine: VllmReplica) -> dict[str, float]:
    """Prompt tokens of an engine by where they came from."""
    return {source: float(tokens) for source, tokens in _SOURCES.findall(engine.get("/metrics").decode())}


async def test_the_gateway_has_a_prompt_read_by_another_engine(
    tmp_path: Path, engines: tuple[VllmReplica, VllmReplica]
) -> None:
    """The answering engine computes nothing of the prompt but fetches all of it, and says the same as one that read it; the usage
    has the prompt once, with what the reader had cached. When the reader is gone, it reads itself.
    """
    reader, writer = engines
    prefill = {"replicas": "read-*", "from_tokens": 50}
    messages = conversation("a bridge", 0, lines=20)
    async with fleet_of(tmp_path, engines, prefill=prefill) as fleet:
        before = await asyncio.to_thread(_sources, writer)
        apart = await fleet.ask(messages, max_tokens=12)
        after = await asyncio.to_thread(_sources, writer)
        fetched = {source: after[source] - before[source] for source in after}
        assert (apart.status, apart.replica) == (200, "write-1")
        assert fetched["external_kv_transfer"] == apart.usage["prompt_tokens"]
        assert fetched["local_compute"] == 0
        assert apart.usage["prompt_tokens_details"]["cached_tokens"] == 0
        (row,) = await fleet.gateway.rows("entry = 'settle'")
        assert (row["input_tokens"], row["cached_input_tokens"]) == (apart.usage["prompt_tokens"], 0)

        body: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 12, "temperature": 0}
        alone = json.loads(await asyncio.to_thread(reader._call, "/v1/chat/completions", json.dumps(body).encode()))
        assert apart.text == alone["choices"][0]["message"]["content"]

        await asyncio.to_thread(reader.kill)
        other = await fleet.ask(conversation("another one", 0, lines=20), max_tokens=12)
        assert (other.status, other.replica) == (200, "write-1")
        await until(lambda: _sources(writer)["local_compute"] > after["local_compute"], writer)
