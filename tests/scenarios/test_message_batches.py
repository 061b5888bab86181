"""Batches of messages through Anthropic's own client."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.processes import until
from tests.running_gateway import model, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_anthropic_client import ASK, client
from tests.scenarios.test_batch import FAST


def requests(count: int, name: str = "auto") -> Any:
    return [
        {"custom_id": f"m{number}", "params": {"model": name, "max_tokens": 50, "messages": ASK}}
        for number in range(count)
    ]


async def ended(caller: anthropic.AsyncAnthropic, batch_id: str) -> Any:
    async with asyncio.timeout(60):
        while True:
            batch = await caller.messages.batches.retrieve(batch_id)
            if batch.processing_status == "ended":
                return batch
            await asyncio.sleep(0.05)


async def test_messages_are_answered_in_their_own_shape(tmp_path: Path, upstream: Upstream) -> None:
    """Created, followed, listed, read and deleted by the client as it is."""
    models = [model("cheap", [upstream.deployment("ok")])]
    async with running_gateway(tmp_path, models, batch=FAST) as gateway, client(gateway) as caller:
        asked = [*requests(5), *requests(1, "nobody-such")]
        asked[-1]["custom_id"] = "odd"
        made = await caller.messages.batches.create(requests=asked)
        assert made.id.startswith("msgbatch_")
        assert (made.processing_status, made.request_counts.processing) == ("in_progress", 6)
        batch = await ended(caller, made.id)
        counts = batch.request_counts
        assert (counts.processing, counts.succeeded, counts.errored) == (0, 5, 1)
        assert (batch.results_url or "").endswith(f"{made.id}/results")
        found = {each.custom_id: each.result async for each in await caller.messages.batches.results(made.id)}
        assert sorted(found) == ["m0", "m1", "m2", "m3", "m4", "odd"]
        good = found["m0"]
        assert good.type == "succeeded"
        assert good.message.content[0].text == " w0 w1 w2"  # type: ignore[union-attr]
        bad = found["odd"]
        assert bad.type == "errored"
        assert bad.error.type == "error"
        assert [each.id async for each in caller.messages.batches.list()] == [made.id]
        rows = await gateway.rows("entry = 'settle'")
        assert {row["tier"] for row in rows} == {"batch"}
        deleted = await caller.messages.batches.delete(made.id)
        assert deleted.type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError) as refused:
            await caller.messages.batches.retrieve(made.id)
        assert refused.value.body["type"] == "error"  # type: ignore[index]


async def test_what_was_not_begun_is_canceled(tmp_path: Path, upstream: Upstream) -> None:
    """And counted so; faults are told before anything is kept."""
    models = [model("slow", [upstream.deployment("slow-first-token-200ms+tokens-2")])]
    async with running_gateway(tmp_path, models, batch={**FAST, "at_once": 2}) as gateway, client(gateway) as caller:
        with pytest.raises(anthropic.BadRequestError, match="stands already"):
            await caller.messages.batches.create(requests=[*requests(1), *requests(1)])
        made = await caller.messages.batches.create(requests=requests(30, "slow"))
        with pytest.raises(anthropic.ConflictError):
            await caller.messages.batches.delete(made.id)
        await until(lambda: bool(upstream.arrived()))
        cancelling = await caller.messages.batches.cancel(made.id)
        assert cancelling.processing_status in {"canceling", "ended"}
        batch = await ended(caller, made.id)
        counts = batch.request_counts
        assert counts.succeeded + counts.canceled == 30
        assert counts.canceled > 0
        kinds = [each.result.type async for each in await caller.messages.batches.results(made.id)]
        assert kinds.count("canceled") == counts.canceled
