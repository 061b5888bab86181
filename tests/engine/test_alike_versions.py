"""A rollout of a version that is the same as the one before, on two real engines: nothing of it may be taken for worse."""

import asyncio
import itertools
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.wiring import rollouts
from tests.engines import ALIAS, LlamaReplica, llama_replicas
from tests.fleet import OWN, callers, pooled_model
from tests.processes import until
from tests.running_gateway import running_gateway

ASKED: Final = 60
_AT_ONCE: Final = 4


def pool(old: LlamaReplica, new: LlamaReplica) -> dict[str, Any]:
    return {
        "name": "own",
        "targets": [OWN],
        "upstream_model": ALIAS,
        "replicas": [
            {"name": "old", "url": old.url, "version": "v1"},
            {"name": "new", "url": new.url, "version": "v2"},
        ],
        "watch": {"every_s": 0.5, "timeout_s": 5.0},
    }


@pytest.mark.parametrize("percent", [20, 50])
async def test_a_version_like_the_one_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, percent: int
) -> None:
    """Dozens of streams over both, the rule looking five times a second at failures and both times: nobody rolls it back."""
    monkeypatch.setattr(rollouts, "EVERY_S", 0.2)
    with llama_replicas(tmp_path, "old", "new") as (old, new):
        async with (
            running_gateway(tmp_path, [pooled_model()], selfhosted={"pools": [pool(old, new)]}) as gateway,
            callers(gateway) as found,
        ):
            await found.until_states(old="ready", new="ready")
            await found.order("POST", "/fleet/versions", model=OWN, version="v1", weights="/models/v1")
            await found.order("POST", "/fleet/versions", model=OWN, version="v2", weights="/models/v2")
            await found.order("PUT", "/fleet/rollouts/canary", model=OWN, version="v2", percent=percent)
            numbers = itertools.count()
            room = asyncio.Semaphore(_AT_ONCE)

            async def ask() -> bool:
                async with room:
                    reply = await found.stream(
                        [{"role": "user", "content": f"Story {next(numbers)}"}], max_tokens=12, temperature=0
                    )
                    return reply.status == 200 and reply.done

            assert all(await asyncio.gather(*(ask() for _ in range(ASKED))))

            async def all_are_booked() -> bool:
                rows = await gateway.rows("entry = 'settle' AND version <> ''")
                return len(rows) >= ASKED

            await until(all_are_booked)
            rows = await gateway.rows("entry = 'settle' AND version = 'v2'")
            assert len(rows) >= ASKED * percent / 100 / 2
            await asyncio.sleep(1.0)
            (told,) = (await found.order("GET", "/fleet/rollouts"))["data"]
            assert told["state"] == "canary", told
