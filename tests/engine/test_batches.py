"""Batches of two hundred lines on the demo's engine, by the published clients and by curl."""

import asyncio
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.engines import ALIAS, LlamaReplica
from tests.open_responses import house
from tests.running_gateway import Running, running_gateway
from tests.scenarios import test_anthropic_client, test_batch, test_message_batches

LINES: Final = 200
_WITHIN_S: Final = 1_800
"""A minute each on a machine that is ours alone."""
pytestmark = pytest.mark.timeout(_WITHIN_S + 60)
SECTION: Final[dict[str, Any]] = {**test_batch.FAST, "lease_s": 60, "at_once": 8}


def _question(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What is {number} and {number + 1}?"}]


async def _booked(gateway: Running) -> int:
    rows = await gateway.rows("entry = 'settle'")
    assert {row["tier"] for row in rows} == {"batch"}
    assert all(row["output_tokens"] > 0 for row in rows)
    return len(rows)


async def test_by_openai(tmp_path: Path, llama: LlamaReplica) -> None:
    """A file of lines; each is answered once, in its order, and booked once."""
    models = house("llama.cpp", llama.url, ALIAS)
    async with (
        asyncio.timeout(_WITHIN_S),
        running_gateway(tmp_path, models, batch=SECTION) as gateway,
        test_batch.client(gateway) as caller,
    ):
        name = "tiny"
        asked = [
            test_batch.line(f"q{number}", name, messages=_question(number), max_tokens=4) for number in range(LINES)
        ]
        batch = await test_batch.submit(caller, asked)
        while batch.status not in {"completed", "failed"}:
            await asyncio.sleep(0.5)
            batch = await caller.batches.retrieve(batch.id)
        answers = await test_batch.results(caller, batch.output_file_id)
        assert [each["custom_id"] for each in answers] == [each["custom_id"] for each in asked]
        assert {each["response"]["status_code"] for each in answers} == {200}
        assert await _booked(gateway) == LINES


async def test_by_anthropic(tmp_path: Path, llama: LlamaReplica) -> None:
    """Messages in their own shape."""
    models = house("llama.cpp", llama.url, ALIAS)
    async with (
        asyncio.timeout(_WITHIN_S),
        running_gateway(tmp_path, models, batch=SECTION) as gateway,
        test_anthropic_client.client(gateway) as caller,
    ):
        asked = test_message_batches.requests(LINES, "tiny")
        for number, each in enumerate(asked):
            each["params"].update(max_tokens=4, messages=_question(number))
        batch = await caller.messages.batches.create(requests=asked)
        while batch.processing_status != "ended":
            await asyncio.sleep(0.5)
            batch = await caller.messages.batches.retrieve(batch.id)
        assert batch.request_counts.succeeded == LINES
        results = [each async for each in await caller.messages.batches.results(batch.id)]
        assert [each.custom_id for each in results] == [each["custom_id"] for each in asked]
        assert await _booked(gateway) == LINES


async def test_by_curl(tmp_path: Path, llama: LlamaReplica) -> None:
    """The owner's own shape: everything in one body, and no file to upload first."""
    models = house("llama.cpp", llama.url, ALIAS)
    async with asyncio.timeout(_WITHIN_S), running_gateway(tmp_path, models, batch=SECTION) as gateway:
        name = "tiny"
        asked = [{"model": name, "messages": _question(number), "max_tokens": 4} for number in range(LINES)]
        body = tmp_path / "body.json"
        body.write_bytes(msgspec.json.encode({"requests": asked, "priority": "normal"}))
        made = msgspec.json.decode(await _curl(gateway, "batch", "--json", f"@{body}"))
        assert made["estimated_completion"]
        state: dict[str, Any] = {"status": ""}
        while state["status"] not in {"completed", "failed"}:
            await asyncio.sleep(0.5)
            state = msgspec.json.decode(await _curl(gateway, f"batch/{made['batch_id']}"))
        assert state["requests"] == {"total": LINES, "completed": LINES, "failed": 0}
        text = await _curl(gateway, f"files/{state['output_file_id']}/content")
        answers = [msgspec.json.decode(each) for each in text.splitlines()]
        assert [each["custom_id"] for each in answers] == [f"request-{number}" for number in range(1, LINES + 1)]
        assert await _booked(gateway) == LINES


async def _curl(gateway: Running, path: str, *arguments: str) -> bytes:
    """What curl writes; it fails where the status is an error's."""
    key = f"authorization: Bearer {gateway.key}"
    running = await asyncio.create_subprocess_exec(
        *(
            "curl",
            "--silent",
            "--show-error",
            "--fail-with-body",
            "--header",
            key,
            *arguments,
            f"{gateway.base_url}/{path}",
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await running.communicate()
    assert running.returncode == 0, told
    return told
