"""vLLM's sleep routes, as the gateway asks them. The CPU build has them and moves no memory: that part no test here can show."""

import asyncio
from pathlib import Path

import aiohttp

from selfhosted.engines.dialects import read_page
from selfhosted.engines.scrape import HttpFetch, engine_session
from selfhosted.scale.engine_sleep import is_sleeping, put_to_sleep, wake
from tests.fleet import Place, callers, pool, pooled_model
from tests.running_gateway import running_gateway
from tests.vllm.conftest import Pair
from tests.vllm.engines import MODEL, until
from tests.vllm.test_fleet import PATIENCE_S, PATIENT, PATIENT_WATCH


async def test_an_engine_sleeps_and_wakes_by_its_own_routes(pair: Pair) -> None:
    """It says so itself, by route and metrics; its cache is lost; a request that comes while it sleeps waits, and is answered once it is
    awake. At level 2 it wakes in steps, and goes on sleeping until the last one.
    """
    url = pair.a.url
    body = {"model": MODEL, "messages": [{"role": "user", "content": "def sleep(self): return 1"}], "max_tokens": 4}
    async with (
        engine_session() as session,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as caller,
    ):
        fetch = HttpFetch(session)
        assert not await is_sleeping(fetch, url)
        await put_to_sleep(fetch, url)
        assert await is_sleeping(fetch, url)
        assert read_page("vllm", pair.a.get("/metrics"), 0.0).asleep
        asked = asyncio.ensure_future(caller.post(f"{url}/v1/chat/completions", json=body))
        # It is there, and waits.
        await until(lambda: pair.a.open_answers() > 0, pair.a)
        assert not asked.done()
        await wake(fetch, url)
        async with await asked as reply:
            assert reply.status == 200
        assert not await is_sleeping(fetch, url)
        assert not read_page("vllm", pair.a.get("/metrics"), 0.0).asleep
        await put_to_sleep(fetch, url, level=2)
        await fetch.post(f"{url}/wake_up?tags=weights", b"", timeout_s=PATIENCE_S, max_bytes=10_000)
        assert await is_sleeping(fetch, url)
        # What had been woken already does no harm.
        await wake(fetch, url, level=2)
        assert not await is_sleeping(fetch, url)
        async with caller.post(f"{url}/v1/chat/completions", json=body) as reply:
            assert reply.status == 200


async def test_two_engines_take_turns_behind_the_gateway(tmp_path: Path, pair: Pair) -> None:
    """One is put to sleep when the gateway comes; who asks for its model waits for a switch, and is answered by it, while the other one
    sleeps. Both ways.
    """
    urls = {"a": pair.a.url, "b": pair.b.url}
    pools = [
        {
            **pool([Place(f"{name}-1", url)], upstream_model=MODEL, watch=PATIENT_WATCH),
            "name": name,
            "targets": [f"{name}-model"],
        }
        for name, url in urls.items()
    ]
    section = {
        "selfhosted": {
            "pools": pools,
            "shared_gpus": [{"name": "box", "pools": ["a", "b"], "settle_s": 1, "least_awake_s": 1, "switch_s": 2}],
        },
        "queues": {name: {"targets": [f"{name}-model"]} for name in urls},
        "classifier": {"enabled": False},
        **PATIENT,
    }
    models = [pooled_model(f"{name}-model") for name in urls]
    async with (
        engine_session() as session,
        running_gateway(tmp_path, models, **section) as gateway,
        callers(gateway, patience_s=PATIENCE_S) as fleet,
    ):
        fetch = HttpFetch(session)

        async def awake() -> list[str]:
            return [name for name, url in urls.items() if not await is_sleeping(fetch, url)]

        async def is_turn_of(name: str) -> bool:
            return await awake() == [name] and (await fleet.pool(name))["state"] == "ok"

        await until(lambda: is_turn_of("a"), *pair.both)
        for name in ("b", "a", "b"):
            reply = await fleet.stream(
                [{"role": "user", "content": f"def turn_of_{name}(): return 1"}],
                model=f"{name}-model",
                headers={"x-request-timeout-ms": f"{1_000 * PATIENCE_S:.0f}"},
            )
            assert (reply.done, reply.replica) == (True, f"{name}-1")
            assert await awake() == [name]
    async with engine_session() as session:
        await wake(HttpFetch(session), pair.a.url)
