"""The Open Responses cases against llama.cpp, over HTTP and a WebSocket.

Its build here calls no tools and sees no pictures: vLLM has those with tools (`make test-vllm`), a scripted upstream all.
"""

from pathlib import Path

from tests.engines import ALIAS, LlamaReplica
from tests.open_responses import check_basics, check_compaction, check_socket, house
from tests.running_gateway import running_gateway


async def test_over_http(tmp_path: Path, llama: LlamaReplica) -> None:
    """Every reply and event is as published."""
    async with running_gateway(tmp_path, house("llama.cpp", llama.url, ALIAS)) as gateway:
        await check_basics(gateway)
        await check_compaction(gateway)


async def test_over_a_websocket(tmp_path: Path, llama: LlamaReplica) -> None:
    """The same events as messages."""
    async with running_gateway(tmp_path, house("llama.cpp", llama.url, ALIAS)) as gateway:
        await check_socket(gateway)
