"""Stories of a pool whose engines misbehave: what callers notice, which should be nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.fleet import Callers, Place, callers, pool, pooled_model
from tests.odd_engine import OddEngine, odd_engines
from tests.processes import until
from tests.running_gateway import model, running_gateway

_DEAR: Final = "dear"


@contextlib.asynccontextmanager
async def _house(
    tmp_path: Path,
    *names: str,
    models: tuple[dict[str, Any], ...] = (),
    sections: dict[str, Any] | None = None,
    **fields: Any,
) -> AsyncIterator[tuple[Callers, list[OddEngine]]]:
    async with odd_engines(*names) as engines:
        own = pool([Place(each.name, each.url) for each in engines], **fields)
        section = {"selfhosted": {"pools": [own]}, "classifier": {"enabled": False}, **(sections or {})}
        async with (
            running_gateway(tmp_path, [pooled_model(), *models], **section) as gateway,
            callers(gateway) as found,
        ):
            await found.until_states(**dict.fromkeys(names, "ready"))
            yield found, engines


def _talk(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Story number {number}, please, and make it a good one."}]


async def test_a_replica_that_fails_costs_one_request(tmp_path: Path) -> None:
    """Whoever met it is answered by another replica; nobody else is sent there until a probe was answered."""
    async with _house(tmp_path, "a", "b", "c", balance={"policy": "round-robin"}) as (fleet, engines):
        bad = engines[0]
        bad.dies = True
        replies = [await fleet.ask(_talk(number)) for number in range(12)]
        assert all(reply.done for reply in replies)
        assert len(bad.asked) == 1
        assert {reply.replica for reply in replies} == {"b", "c"}
        # Its request is booked once for each attempt, and the lost one is told from the answered one.
        rows = await fleet.gateway.rows("entry <> 'reserve'")
        assert len([row for row in rows if row["status"] == 200]) == len(replies)
        bad.dies, bad.healthy = False, True
        await fleet.until_states(a="ready")
        assert "a" in {(await fleet.ask(_talk(number))).replica for number in range(6)}


async def test_many_lost_at_once_are_all_answered(tmp_path: Path) -> None:
    """A replica that takes thirty requests down with it is hidden from every one of them: no budget runs out."""
    room = {"max_waiting": 100}
    async with _house(tmp_path, "a", "b", balance={"policy": "round-robin"}, room=room) as (fleet, engines):
        bad, good = engines
        bad.gate.clear()
        asked = [asyncio.create_task(fleet.stream(_talk(number))) for number in range(60)]
        await until(_asked(bad, 25))
        # Those that wait for their answer lose their connection.
        bad.dies = True
        bad.gate.set()
        replies = await asyncio.gather(*asked)
        assert [reply for reply in replies if not reply.done] == []
        assert good.asked


def _asked(engine: OddEngine, times: int) -> Any:
    async def reached() -> bool:
        return len(engine.asked) >= times

    return reached


async def test_a_replica_whose_probes_are_fine_but_whose_answers_are_not(tmp_path: Path) -> None:
    """It is tried again ever more rarely, and nobody's request fails for it."""
    async with _house(tmp_path, "a", "b", balance={"policy": "round-robin"}) as (fleet, engines):
        engines[0].status = 500
        replies = []
        for number in range(40):
            replies.append(await fleet.ask(_talk(number)))
            await asyncio.sleep(0.01)
        assert all(reply.done and reply.replica == "b" for reply in replies)
        assert len(engines[0].asked) <= 4


async def test_a_full_pool_spills_over_and_says_so(tmp_path: Path) -> None:
    """What a paid target can answer goes there; who insists on the pool is told 429 with the pool's state."""
    dear = model(_DEAR, [{"kind": "scripted", "upstream_model": "ok"}])
    sections = {"policy": {"fallbacks": {"own-model": [_DEAR]}, "aliases": {"only-own": "own-model"}}}
    async with _house(tmp_path, "a", models=(dear,), sections=sections) as (fleet, engines):
        engines[0].kv_usage, engines[0].waiting = 0.99, 40

        async def told() -> bool:
            return bool(((await fleet.replica("a"))["stats"] or {}).get("waiting") == 40)

        await until(told)
        spilled = await fleet.ask(_talk(1))
        assert (spilled.headers["x-weighbridge-target"], spilled.headers["x-weighbridge-reason"]) == (
            _DEAR,
            "spill-over",
        )
        refused = await fleet.ask(_talk(1), model="only-own")
        assert refused.status == 429
        assert refused.error is not None
        assert refused.error["code"] == "queue_full"
        assert (refused.error["queue"]["name"], refused.error["queue"]["waiting"]) == ("own", 40)
        assert float(refused.headers["retry-after"]) > 0
        engines[0].kv_usage, engines[0].waiting = 0.1, 0

        async def again() -> bool:
            return (await fleet.ask(_talk(1), model="only-own")).done

        await until(again)


async def test_a_queue_without_a_size_is_as_large_as_the_pool(tmp_path: Path) -> None:
    """It grows and shrinks with what the replicas hold that are ready."""
    sections = {"queues": {"own": {"targets": ["own-model"]}}}
    async with _house(tmp_path, "a", "b", sections=sections) as (fleet, engines):

        async def holds(tokens: int) -> bool:
            told = (await fleet.order("GET", "/queues"))["data"][0]
            return bool(told["whole_capacity_tokens"] == tokens)

        await until(lambda: holds(2 * int(16_000 * 0.95)))
        engines[0].healthy = False
        await until(lambda: holds(int(16_000 * 0.95)))
        assert (await fleet.ask(_talk(1))).replica == "b"


async def test_metrics_that_lie_harm_no_traffic(tmp_path: Path) -> None:
    """NaN, nothing, ten megabytes, and a page that never ends: unknown, told and counted, and requests go on."""
    async with _house(tmp_path, "a", "b", "c", "d", watch={"timeout_s": 0.5, "stale_s": 0.5}) as (fleet, engines):
        nan, nothing, huge, slow = engines
        nan.running, nan.kv_usage = "NaN", "-3"
        nothing.page = lambda: b"# nothing\n"
        huge.page = lambda: b"x" * 10_000_000
        slow.page_delay_s = 60.0

        async def unknown() -> bool:
            return bool((await fleet.pool())["unknown"] == 4)

        await until(unknown)
        told = await fleet.pool()
        assert all(each["state"] == "ready" and each["why"] for each in told["replicas"])
        replies = await asyncio.gather(*(fleet.ask(_talk(number)) for number in range(16)))
        assert [reply.error for reply in replies if not reply.done] == []
        assert len({reply.replica for reply in replies}) >= 3


async def test_interactive_work_is_told_to_overtake_batch(tmp_path: Path) -> None:
    """The engine gets a lower number for what should go first, and whose cache it may use; callers can't say either."""
    async with _house(tmp_path, "a", priority_scheduling=True, cache_isolation="team") as (fleet, engines):
        await fleet.ask(_talk(1), headers={"x-tier": "batch"})
        await fleet.ask(_talk(1))
        await fleet.ask(_talk(1), headers={"x-priority": "high"})
        batch, normal, high = engines[0].asked
        assert high["priority"] < normal["priority"] < batch["priority"]
        assert len(normal["cache_salt"]) == 32
        assert "team_a" not in normal["cache_salt"]
        for field in ("priority", "cache_salt"):
            refused = await fleet.ask(_talk(1), **{field: "0"})
            assert refused.status == 400
        assert len(engines[0].asked) == 3


async def test_engines_that_were_not_configured_for_it_get_no_such_fields(tmp_path: Path) -> None:
    """An engine answers 400 to a priority without its priority scheduling."""
    async with _house(tmp_path, "a") as (fleet, engines):
        await fleet.ask(_talk(1), headers={"x-tier": "batch"})
        assert not {"priority", "cache_salt"} & engines[0].asked[0].keys()


async def test_a_replica_that_is_back_takes_work_at_once(tmp_path: Path) -> None:
    """However many requests it took with it: once its probes are answered it is not left alone any longer."""
    room = {"max_waiting": 100}
    async with _house(tmp_path, "a", "b", balance={"policy": "round-robin"}, room=room) as (fleet, engines):
        bad = engines[0]
        bad.gate.clear()
        asked = [asyncio.create_task(fleet.stream(_talk(number))) for number in range(40)]
        await until(_asked(bad, 15))
        bad.dies = True
        bad.gate.set()
        assert all(reply.done for reply in await asyncio.gather(*asked))
        await fleet.until_states(a="down")
        bad.dies, bad.healthy = False, True
        await fleet.until_states(a="ready")
        assert {(await fleet.ask(_talk(number))).replica for number in range(4)} == {"a", "b"}


async def test_a_replica_that_freezes_keeps_nobody(tmp_path: Path) -> None:
    """Its connections stand and nothing comes: once it is down by its probes, who waits there is answered elsewhere."""
    async with _house(tmp_path, "a", "b", balance={"policy": "round-robin"}) as (fleet, engines):
        frozen = engines[0]
        frozen.gate.clear()
        asked = [
            asyncio.create_task(fleet.stream(_talk(number)) if number % 4 < 2 else fleet.ask(_talk(number)))
            for number in range(8)
        ]
        await until(_asked(frozen, 4))
        frozen.healthy = False
        replies = await asyncio.gather(*asked)
        assert {(reply.done, reply.replica) for reply in replies} == {(True, "b")}
        rows = await fleet.gateway.rows("entry <> 'reserve'")
        assert sorted(row["status"] for row in rows) == [200] * 8 + [504] * 4


async def test_a_burst_finds_room_in_an_idle_pool(tmp_path: Path) -> None:
    """Engines read many short prompts at once: what came since they were last asked is no queue."""
    async with _house(tmp_path, "a", "b", watch={"every_s": 5.0}) as (fleet, engines):
        for engine in engines:
            engine.gate.clear()
        asked = [asyncio.create_task(fleet.stream(_talk(number))) for number in range(60)]
        await until(lambda: _all_asked(engines, 60))
        for engine in engines:
            engine.gate.set()
        assert [reply.error for reply in await asyncio.gather(*asked) if not reply.done] == []


async def _all_asked(engines: list[OddEngine], times: int) -> bool:
    return sum(len(engine.asked) for engine in engines) == times


def _lora() -> dict[str, Any]:
    return {"adapters": [{"name": "lora-tales", "target": "tales", "path": "/loras/tales"}]}


async def test_an_adapter_that_another_process_unloaded_is_loaded_again(tmp_path: Path) -> None:
    """The engine says 404, whatever was believed: its only replica loads it once more, and the caller sees nothing."""
    async with _house(tmp_path, "a", models=(pooled_model("tales"),), **_lora()) as (fleet, engines):
        together = await asyncio.gather(*(fleet.ask(_talk(number), model="tales") for number in range(4)))
        assert all(reply.done for reply in together)
        assert engines[0].loads == ["lora-tales"]
        engines[0].adapters.clear()
        again = await fleet.ask(_talk(5), model="tales")
        assert (again.done, again.error) == (True, None)
        assert engines[0].loads == ["lora-tales"] * 2


async def test_replicas_that_do_not_load_an_adapter_cost_no_retries(tmp_path: Path) -> None:
    """Nothing was sent there, so many requests in a row find the one that does, and the others stay in use."""
    names = ("a", "b", "c", "d", "e")
    async with _house(tmp_path, *names, models=(pooled_model("tales"),), **_lora()) as (fleet, engines):
        for engine in engines[:4]:
            engine.load_status = 500
        replies = [await fleet.ask(_talk(number), model="tales") for number in range(12)]
        assert [reply.error for reply in replies if reply.replica != "e"] == []
        assert set((await fleet.states()).values()) == {"ready"}
        # What failed is not tried again and again.
        assert all(len(engine.loads) <= 1 for engine in engines)


async def test_a_reload_changes_no_pool(tmp_path: Path) -> None:
    """Pools are opened at the start: another one in the file takes a restart, also after the second reload."""
    async with _house(tmp_path, "a") as (fleet, _engines):
        gateway = fleet.gateway
        written = yaml.safe_load(gateway.config_path.read_text())
        written["selfhosted"]["pools"][0]["name"] = "other"
        gateway.config_path.write_text(yaml.safe_dump(written))
        for _ in range(2):
            gateway.reload()
            assert (await fleet.ask(_talk(1))).replica == "a"


async def test_a_replica_that_only_looks_well_loses_what_waits_there(tmp_path: Path) -> None:
    """It answers its probes and no request: its streams are answered by another one, long before their time is up."""
    watch = {"silent_s": 0.2}
    async with _house(tmp_path, "a", "b", balance={"policy": "round-robin"}, watch=watch) as (fleet, engines):
        engines[0].gate.clear()
        replies = await asyncio.gather(*(fleet.stream(_talk(number)) for number in range(8)))
        assert engines[0].asked
        assert [reply.error for reply in replies if not reply.done] == []
        assert {reply.replica for reply in replies} == {"b"}
        engines[0].gate.set()


_BILLED: Final[dict[str, Any]] = {
    "name": "own",
    "targets": ["own-model"],
    "usd_per_gpu_hour": 3,
    "seconds_per_million": {"input": 10, "output": 100},
}


@pytest.mark.parametrize("price", ["margin", "average"])
async def test_our_own_are_used_while_they_have_room_and_overflow_when_full(tmp_path: Path, price: str) -> None:
    """Their average price is above the other's, so by `average` they get nothing; what is booked is that price always."""
    cheap = model(
        "cheap",
        [{"kind": "scripted", "upstream_model": "ok"}],
        prices={"input": "0.1", "output": "0.1", "version": "test"},
    )
    sections = {"cost": {"pools": [{**_BILLED, "price": price}]}}
    async with _house(tmp_path, "a", models=(cheap,), sections=sections) as (fleet, engines):

        async def asked() -> tuple[str, str]:
            reply = await fleet.ask(_talk(1), model="auto")
            return reply.headers["x-weighbridge-target"], reply.headers["x-weighbridge-reason"]

        async def told(waiting: int) -> bool:
            return bool(((await fleet.replica("a"))["stats"] or {}).get("waiting") == waiting)

        await until(lambda: told(0))
        first = await asked()
        assert first == (("own-model" if price == "margin" else "cheap"), "cheapest-capable")
        engines[0].kv_usage, engines[0].waiting = 0.99, 40
        await until(lambda: told(40))
        full = await asked()
        assert full == ("cheap", "spill-over" if price == "margin" else "cheapest-capable")
        if price == "margin":
            engines[0].kv_usage, engines[0].waiting = 0.1, 0
            await until(lambda: told(0))
            assert await asked() == first
            booked = await fleet.gateway.rows("entry = 'settle' AND target_id = 'own-model'")
            for row in booked:
                assert row["margin_why"] == "own-room"
                # 0.4 USD for a million tokens, in and out: the average, and not what it was compared by.
                assert row["cost_nanousd"] == 400 * (row["input_tokens"] + row["output_tokens"])
                assert 0 < row["margin_nanousd"] * 10 < row["cost_nanousd"]
            reserved = await fleet.gateway.rows("entry = 'reserve' AND target_id = 'own-model'")
            assert all(row["cost_nanousd"] >= 400 * row["input_tokens"] for row in reserved)
