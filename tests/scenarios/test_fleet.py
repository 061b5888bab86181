"""Two real llama.cpp engines as a pool: what callers notice of affinity, drains, deaths and an empty pool."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.engines import ALIAS, LlamaReplica, llama_replicas
from tests.fleet import OWN, POOL, Callers, Place, Reply, callers, pool, pooled_model
from tests.processes import until
from tests.running_gateway import model, running_gateway

_TURNS: Final = 3
_CLERKS: Final = 4
_FALLBACK: Final = "dear"
_LONG: Final = 60


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LlamaReplica, ...]]:
    with llama_replicas(tmp_path_factory.mktemp("engines"), "a", "b") as started:
        yield started


def sections(places: tuple[LlamaReplica, ...], **fields: Any) -> dict[str, Any]:
    own = pool(
        [Place(each.name, each.url) for each in places],
        engine="llama.cpp",
        upstream_model=ALIAS,
        # The conversations of these tests are short, and one thread of a processor reads them slowly.
        balance={"block_bytes": 64, "prefill_tokens_per_s": 150, **fields.pop("balance", {})},
        **fields,
    )
    return {"selfhosted": {"pools": [own]}, "classifier": {"enabled": False}}


@pytest.fixture
async def fleet(tmp_path: Path, replicas: tuple[LlamaReplica, ...]) -> AsyncIterator[Callers]:
    """A gateway before the two."""
    async with (
        running_gateway(tmp_path, [pooled_model()], **sections(replicas)) as gateway,
        callers(gateway) as found,
    ):
        await found.until_states(a="ready", b="ready")
        yield found


def conversation(clerk: int, turn: int, place: str = "the canteen") -> list[dict[str, str]]:
    """It grows with each turn."""
    told = f"You are clerk number {clerk} of {place}. " + "Answer in few words and stay kind. " * 8
    asked = [{"role": "user", "content": f"Question {number} for you?"} for number in range(turn + 1)]
    return [{"role": "system", "content": told}, *asked]


def cached(replicas: tuple[LlamaReplica, ...]) -> float:
    """Prompt tokens that the engines took from their caches, by their own counters."""
    return sum(each.samples()["llamacpp:prompt_tokens_cached_total"] for each in replicas)


async def test_a_conversation_goes_where_it_is_cached(fleet: Callers, replicas: tuple[LlamaReplica, ...]) -> None:
    """Every turn of a conversation goes to one replica, both have some, and the engines' own counters tell the hits."""
    before = cached(replicas)
    where: dict[int, set[str]] = {clerk: set() for clerk in range(_CLERKS)}
    told = 0
    for turn in range(_TURNS):
        for clerk in range(_CLERKS):
            reply = await fleet.ask(conversation(clerk, turn), max_tokens=2)
            assert reply.done, reply.error
            where[clerk].add(reply.replica)
            told += reply.usage["prompt_tokens_details"]["cached_tokens"]
    assert all(len(names) == 1 for names in where.values()), where
    assert set().union(*where.values()) == {"a", "b"}
    assert cached(replicas) - before == told
    # Each conversation is about 90 tokens long, and computed once.
    assert told > _CLERKS * (_TURNS - 1) * 70


async def test_what_the_engines_say_is_what_the_gateway_tells(
    fleet: Callers, replicas: tuple[LlamaReplica, ...]
) -> None:
    """`GET /v1/fleet` has both replicas, what runs there, and the age of that knowledge."""
    running = asyncio.create_task(fleet.stream(conversation(7, 0), max_tokens=200))

    async def seen() -> bool:
        told = await fleet.pool()
        return any((each["stats"] or {}).get("running") == 1 for each in told["replicas"])

    await until(seen)
    told = await fleet.pool()
    assert told["engine"] == "llama.cpp"
    assert [each["url"] for each in told["replicas"]] == [each.url for each in replicas]
    assert (told["counts"]["ready"], told["unknown"]) == (2, 0)
    assert (await running).done


async def test_a_drained_replica_finishes_and_takes_nothing_new(fleet: Callers) -> None:
    """Its stream runs to the end, new work goes to the other, and it takes work again once the order is withdrawn."""
    running = asyncio.create_task(fleet.stream(conversation(8, 0), max_tokens=150))
    await until(lambda: _running(fleet))
    busy = next(each["name"] for each in (await fleet.pool())["replicas"] if (each["stats"] or {}).get("running"))
    order = f"/fleet/pools/{POOL}/replicas/{busy}/drain"
    await fleet.order("PUT", order)
    await fleet.until_states(**{busy: "draining"})
    # The very conversation that is cached there goes elsewhere all the same.
    others = [await fleet.ask(conversation(8, turn), max_tokens=2) for turn in range(2)]
    assert all(each.done and each.replica not in {busy, ""} for each in others), others
    ended = await running
    assert (ended.replica, ended.done, ended.usage["completion_tokens"]) == (busy, True, 150)
    await fleet.order("DELETE", order)
    await fleet.until_states(**{busy: "ready"})


async def _running(fleet: Callers) -> bool:
    return any((each["stats"] or {}).get("running") for each in (await fleet.pool())["replicas"])


async def test_an_empty_pool_is_told_and_its_work_goes_elsewhere(tmp_path: Path) -> None:
    """A pool scaled to zero: `auto` is served by another target, who insists is told 503, not kept waiting, and either wakes
    it.
    """
    models = [pooled_model(), model(_FALLBACK, [{"kind": "scripted", "upstream_model": "ok"}])]
    token = {"WB_POOL_TOKEN": "a token for tests only"}
    registration = {"token": "env:WB_POOL_TOKEN", "networks": ["127.0.0.0/8"]}
    scale = {"min_replicas": 0, "max_replicas": 2}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("WB_POOL_TOKEN", token["WB_POOL_TOKEN"])
        async with (
            running_gateway(tmp_path, models, **sections((), registration=registration, scale=scale)) as gateway,
            callers(gateway) as fleet,
        ):
            assert (await fleet.pool())["state"] in {"empty", "scaled_to_zero"}
            elsewhere = await fleet.ask(conversation(1, 0), model="auto")
            assert (elsewhere.status, elsewhere.headers["x-weighbridge-target"]) == (200, _FALLBACK)
            refused = await fleet.ask(conversation(1, 0), model=OWN)
            assert refused.status == 503
            assert refused.error is not None
            assert int(refused.headers["retry-after"]) >= 1

            async def awake() -> bool:
                return bool((await fleet.pool())["desired"])

            await until(awake)


@pytest.mark.long
async def test_a_killed_replica_is_not_noticed_before_the_first_byte(tmp_path: Path) -> None:
    """Kill -9 of one of two under load: whoever had not seen a byte gets a whole answer from the other one."""
    with llama_replicas(tmp_path, "a", "b") as pair:
        async with (
            running_gateway(tmp_path, [pooled_model()], **sections(pair, balance={"policy": "round-robin"})) as gateway,
            callers(gateway) as fleet,
        ):
            await fleet.until_states(a="ready", b="ready")
            # Each engine has one seat, so most of these wait at their replica for their first byte.
            asked = [asyncio.create_task(fleet.stream(conversation(clerk, 0), max_tokens=6)) for clerk in range(6)]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            pair[0].kill()
            replies = await asyncio.gather(*asked)
            assert [reply for reply in replies if not reply.done and not reply.began] == []
            assert sum(_broken(reply) for reply in replies) <= 1
            assert {reply.replica for reply in replies if reply.done} >= {"b"}
            await fleet.until_states(a="down", b="ready")
            later = await fleet.ask(conversation(9, 0), max_tokens=2)
            assert (later.done, later.replica) == (True, "b")


@pytest.mark.long
async def test_a_killed_replicas_stream_goes_on(tmp_path: Path) -> None:
    """Kill -9 in the middle of an answer, for a team that wants its streams continued: the other engine completes the very
    sentence, in as many tokens as were asked for.
    """
    with llama_replicas(tmp_path, "a", "b") as pair:
        async with running_gateway(tmp_path, [pooled_model()], **sections(pair)) as gateway, callers(gateway) as fleet:
            await gateway.accounts.update_team("team_a", continue_streams=True)
            await fleet.until_states(a="ready", b="ready")
            unbroken = await fleet.ask(conversation(3, 0), max_tokens=_LONG)
            reply = Reply()
            asked = asyncio.create_task(fleet.stream(conversation(3, 0), max_tokens=_LONG, into=reply))
            await until(lambda: _so_far(reply, 8))
            said = reply.text
            (pair[0] if reply.replica == "a" else pair[1]).kill()
            await asked
            assert (reply.error, reply.done) == (None, True)
            assert reply.text.startswith(said)
            assert len(said) < len(reply.text)
            broken, rest = (await gateway.rows("entry = 'settle'"))[1:]
            assert "continued" in rest["flags"]
            # The engine counts at the end alone, so the first part is our estimate.
            assert reply.usage["prompt_tokens"] == broken["input_tokens"]
            assert reply.usage["completion_tokens"] == broken["output_tokens"] + rest["output_tokens"]
            assert broken["deployment_id"] != rest["deployment_id"]
            # Without the seam it would be this; tokens that were split otherwise may change a word.
            assert reply.text[: len(said) + 1] == unbroken.text[: len(said) + 1]


async def _so_far(reply: Reply, events: int) -> bool:
    return reply.events >= events


def _broken(reply: Reply) -> bool:
    """It had begun, and its caller was told that it broke."""
    return reply.began and not reply.done
