"""The savings report from a caller's request to its verdict, through a running gateway."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from accounts.keys import Pepper
from accounts.pepper_file import pepper_id
from tests.running_gateway import PEPPER, Running, model, running_gateway

SCRIPTED: list[dict[str, Any]] = [{"name": "a", "kind": "scripted", "upstream_model": "ok"}]


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Running]:
    """One target on our own GPUs, one that it is compared with."""
    pool = {
        "name": "h100",
        "targets": ["own"],
        "gpus_per_replica": 2,
        "usd_per_gpu_hour": 2.95,
        "up_since": datetime.now(UTC).date(),
        "seconds_per_million": {"input": 20, "output": 200},
    }
    cost = {"pools": [pool], "reference_target": "reference", "gateway_usd_per_hour": 0.01}
    models = [model("own", SCRIPTED), model("reference", SCRIPTED)]
    async with running_gateway(tmp_path, models, cost=cost, classifier={"enabled": False}) as running:
        yield running


async def test_a_request_on_our_own_gpus_is_billed_by_their_hours(gateway: Running) -> None:
    """Booked at the planned rate, told at its share of the hours; finance sees the idle rest, its team does not."""
    pepper = Pepper(id=pepper_id(PEPPER.encode()), secret=PEPPER.encode())
    finance = (await gateway.accounts.create_key("team_a", "finance", pepper, role="finance")).plaintext
    body = {"model": "own", "messages": [{"role": "user", "content": "hello"}]}
    async with aiohttp.ClientSession() as session:

        async def savings(key: str) -> Any:
            headers = {"authorization": f"Bearer {key}"}
            async with session.get(f"{gateway.base_url}/savings", headers=headers) as got:
                assert got.status == 200, await got.text()
                return json.loads(await got.text(), parse_float=Decimal)

        headers = {"authorization": f"Bearer {gateway.key}"}
        async with session.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
        whole, mine = await savings(finance), await savings(gateway.key)
    (row,) = await gateway.rows("entry = 'settle'")
    assert (row["pool"], bool(row["served"])) == ("h100", True)
    (fleet,) = whole["fleet"]
    assert (fleet["pool"], whole["served_requests"], whole["provisional"]) == ("h100", 1, True)
    assert whole["cost"]["idle_usd"] > 0
    assert whole["comparisons"][0]["baseline_usd"] > 0
    # 20 µs of a replica for a token of the prompt, 200 for one of the answer, at 5.90 $ an hour.
    busy_us = 20 * row["input_tokens"] + 200 * row["output_tokens"]
    share = (5_900_000_000 * busy_us + 1_800_000_000) // 3_600_000_000
    assert abs(mine["cost_usd"] * 1_000_000_000 - share) <= 1
    assert (mine["fleet"], mine["cost"]["idle_usd"]) == ([], 0)
