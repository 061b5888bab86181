"""The scripted server as a process of its own, with its log."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from providers.errors import RequestRejected
from providers.http_client import HttpUpstream
from testing.scripted.log import read_log
from tests.providers.calls import chat_request, deployment, talk, text_of, upstream_call


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[str, Path]]:
    log = tmp_path / "seen.jsonl"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "testing.scripted.server", "--log", str(log), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip(), log
    finally:
        process.terminate()
        assert await process.wait() == 0


async def test_everything_seen_is_logged(server: tuple[str, Path]) -> None:
    """One line when a request arrives and one when its reply is over, with the true usage."""
    url, log = server
    upstream = HttpUpstream()
    for number, model in enumerate(("tokens-4", "absurd-usage+tokens-6")):
        call = upstream_call(
            deployment(base_url=url, upstream_model=model), chat_request(stream=number == 0), request_id=f"r{number}"
        )
        assert text_of(await talk(upstream, call))
    stream = await upstream.open(upstream_call(deployment(base_url=url, upstream_model="hang-3"), request_id="r2"))
    await stream.read()
    await stream.aclose()
    with pytest.raises(RequestRejected):
        await talk(upstream, upstream_call(deployment(base_url=url, upstream_model="nonsense")))
    for _ in range(500):
        lines = read_log(log)
        if len(lines) == 6:
            break
        await asyncio.sleep(0.01)
    await upstream.aclose()
    assert [(line.request_id, line.event) for line in lines] == [
        ("r0", "arrived"),
        ("r0", "ended"),
        ("r1", "arrived"),
        ("r1", "ended"),
        ("r2", "arrived"),
        ("r2", "cut"),
    ]
    assert [line.completion_tokens for line in lines[1:4:2]] == [4, 6]
