"""Two models on one GPU: one sleeps while the other serves, who asks for it waits or goes elsewhere, and the GPU is paid for once.

The engines are scripted, with what vLLM 0.32's server takes and tells; no GPU has run this.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.fleet import Callers, Place, callers, pool, pooled_model
from tests.odd_engine import served
from tests.processes import until
from tests.running_gateway import model, running_gateway
from tests.signed_in import signed_in
from tests.sleeping_engine import Gpu, SleepingEngine

HELLO: Final = [{"role": "user", "content": "hello"}]
PATIENT: Final = {"x-request-timeout-ms": "60000"}
DEAR: Final = "dear"


def priced(name: str, **fields: Any) -> dict[str, Any]:
    weights = {"input": 5, "output": 20}
    return {"name": name, "targets": [f"{name}-model"], "usd_per_gpu_hour": 3, "seconds_per_million": weights, **fields}


@contextlib.asynccontextmanager
async def house(
    tmp_path: Path, engines: Sequence[SleepingEngine], **group: Any
) -> AsyncIterator[tuple[Callers, dict[str, SleepingEngine]]]:
    """A pool for each engine; all of them share one GPU."""
    by_name = {engine.name: engine for engine in engines}
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            engine.url = await served(stack, engine.app())
        pools = [
            {
                **pool([Place(f"{name}-1", engine.url)]),
                "name": name,
                "targets": [f"{name}-model"],
                "upstream_model": "own",
                "versions": [{"replicas": "*", "version": f"v-of-{name}"}],
            }
            for name, engine in by_name.items()
        ]
        shared = {"name": "box", "pools": list(by_name), "settle_s": 0.6, "least_awake_s": 0.3, "switch_s": 1, **group}
        costs = [priced(name, replicas=int(name == engines[0].name)) for name in by_name]
        section = {
            "selfhosted": {"pools": pools, "shared_gpus": [shared]},
            "queues": {name: {"targets": [f"{name}-model"]} for name in by_name},
            "cost": {"pools": costs},
            "classifier": {"enabled": False},
            "policy": {"fallbacks": {"b-model": [DEAR]}, "aliases": {"only-b": "b-model"}},
        }
        models = [
            *(pooled_model(f"{name}-model") for name in by_name),
            model(DEAR, [{"kind": "scripted", "upstream_model": "ok"}]),
        ]
        gateway = await stack.enter_async_context(running_gateway(tmp_path, models, **section))
        yield await stack.enter_async_context(callers(gateway)), by_name


async def awake(fleet: Callers, name: str) -> None:
    async def reached() -> bool:
        return bool((await fleet.pool(name))["state"] == "ok")

    await until(reached)


async def test_models_take_turns_and_nobody_meets_an_engine_that_sleeps(tmp_path: Path) -> None:
    """Both engines run when the gateway comes: one is put to sleep. Who asks for the model that sleeps, and can wait, is answered by
    it after a switch; who cannot goes elsewhere, and is told why where there is nowhere. What streams is finished first.
    """
    gpu = Gpu()
    async with house(tmp_path, [SleepingEngine("a", gpu), SleepingEngine("b", gpu)]) as (fleet, engines):
        await awake(fleet, "a")
        assert (gpu.awake, (await fleet.pool("b"))["state"]) == ({"a"}, "asleep")
        assert engines["b"].calls == ["/sleep?level=1"]
        async with signed_in(fleet.gateway, role="admin") as browser:
            shown = (await browser.get("/dashboard/operations/pools/b")).text
        assert "Shares the GPUs box with a: a is awake" in shown
        assert "Asleep" in shown
        assert "v-of-b" in shown
        first = await fleet.ask(HELLO, model="a-model")
        assert (first.text, first.replica) == ("a", "a-1")

        # It streams until it is let go, and only then it sleeps.
        engines["a"].gate.clear()
        stream = asyncio.create_task(fleet.stream(HELLO, model="a-model"))
        await until(lambda: engines["a"].running == 1)
        waits = [asyncio.create_task(fleet.ask(HELLO, model="b-model", headers=PATIENT)) for _ in range(3)]
        spilled = await fleet.ask(HELLO, model="b-model")
        assert (spilled.headers["x-weighbridge-target"], spilled.headers["x-weighbridge-reason"]) == (
            DEAR,
            "spill-over",
        )
        refused = await fleet.ask(HELLO, model="only-b", headers={"x-request-timeout-ms": "900"})
        assert refused.status in (429, 504)
        await asyncio.sleep(1.0)
        assert gpu.awake == {"a"}
        engines["a"].gate.set()
        assert (await stream).done
        assert [(each.text, each.replica) for each in await asyncio.gather(*waits)] == [("b", "b-1")] * 3
        assert gpu.awake == {"b"}

        again = await fleet.ask(HELLO, model="a-model", headers=PATIENT)
        assert (again.text, gpu.clashes) == ("a", [])
        assert [engine.asleep_when_asked for engine in engines.values()] == [0, 0]
        async with fleet.session.get(f"{fleet.gateway.url}/metrics") as page:
            told = await page.text()
        assert 'weighbridge_pool_awake{gpus="box",pool="a"} 1.0' in told
        assert 'weighbridge_pool_switch_seconds_count{gpus="box",pool="b"} 1.0' in told


async def test_at_level_two_the_weights_are_read_again(tmp_path: Path) -> None:
    """Weights come before the cache, and an engine without the routes is told of."""
    gpu = Gpu()
    engines = [SleepingEngine("a", gpu), SleepingEngine("b", gpu, level=2)]
    async with house(tmp_path, engines, level=2) as (fleet, by_name):
        await awake(fleet, "a")
        assert (await fleet.ask(HELLO, model="b-model", headers=PATIENT)).text == "b"
        assert by_name["a"].calls == ["/sleep?level=2"]
        assert by_name["b"].calls == [
            "/wake_up?tags=weights",
            "/collective_rpc reload_weights",
            "/wake_up?tags=kv_cache",
        ]
        by_name["a"].has_routes = False

        async def told() -> bool:
            return any("VLLM_SERVER_DEV_MODE=1" in each["text"] for each in (await fleet.pool("a"))["problems"])

        await until(told)
