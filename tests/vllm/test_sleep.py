"""vLLM's sleep routes, as the gateway asks them. The CPU build has them and moves no memory: that part no test here can show."""

import asyncio

import aiohttp

from selfhosted.engines.dialects import read_page
from selfhosted.engines.scrape import HttpFetch, engine_session
from selfhosted.scale.engine_sleep import is_sleeping, put_to_sleep, wake
from tests.vllm.conftest import Pair
from tests.vllm.engines import MODEL

_PATIENCE_S = 120.0


async def test_an_engine_sleeps_and_wakes_by_its_own_routes(pair: Pair) -> None:
    """It says so itself, by route and metrics; its cache is lost; a request that comes while it sleeps waits, and is answered once it is
    awake. At level 2 it wakes in steps, and goes on sleeping until the last one.
    """
    url = pair.a.url
    body = {"model": MODEL, "messages": [{"role": "user", "content": "def sleep(self): return 1"}], "max_tokens": 4}
    async with engine_session() as session, aiohttp.ClientSession() as caller:
        fetch = HttpFetch(session)
        assert not await is_sleeping(fetch, url)
        await put_to_sleep(fetch, url)
        assert await is_sleeping(fetch, url)
        assert read_page("vllm", pair.a.get("/metrics"), 0.0).asleep
        asked = asyncio.ensure_future(caller.post(f"{url}/v1/chat/completions", json=body))
        done, _ = await asyncio.wait([asked], timeout=1.5)
        assert not done
        await wake(fetch, url)
        async with asyncio.timeout(_PATIENCE_S):
            async with await asked as reply:
                assert reply.status == 200
        assert not await is_sleeping(fetch, url)
        assert not read_page("vllm", pair.a.get("/metrics"), 0.0).asleep
        await put_to_sleep(fetch, url, level=2)
        await fetch.post(f"{url}/wake_up?tags=weights", b"", timeout_s=_PATIENCE_S, max_bytes=10_000)
        assert await is_sleeping(fetch, url)
        # What had been woken already does no harm.
        await wake(fetch, url, level=2)
        assert not await is_sleeping(fetch, url)
        async with caller.post(f"{url}/v1/chat/completions", json=body) as reply:
            assert reply.status == 200
