"""The Open Responses cases against vLLM, over HTTP and a WebSocket, with tools and, by a model that sees, with a picture."""

from pathlib import Path

from tests.open_responses import check_basics, check_compaction, check_pictures, check_socket, check_tools, house
from tests.running_gateway import running_gateway
from tests.vllm.conftest import Pair
from tests.vllm.engines import MODEL, VllmReplica
from tests.vllm.test_fleet import PATIENT


async def test_over_http(tmp_path: Path, pair: Pair) -> None:
    """Every reply and event is as published."""
    async with running_gateway(tmp_path, house("vllm", pair.a.url, MODEL), **PATIENT) as gateway:
        await check_basics(gateway)
        await check_tools(gateway)
        await check_compaction(gateway)


async def test_over_a_websocket(tmp_path: Path, pair: Pair) -> None:
    """The same events as messages."""
    async with running_gateway(tmp_path, house("vllm", pair.a.url, MODEL), **PATIENT) as gateway:
        await check_socket(gateway)


async def test_a_picture(tmp_path: Path, seer: VllmReplica) -> None:
    """It reaches the engine, and is counted there."""
    async with running_gateway(tmp_path, house("vllm", seer.url, MODEL, sees=True), **PATIENT) as gateway:
        await check_pictures(gateway)
