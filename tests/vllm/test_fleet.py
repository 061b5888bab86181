"""Two real vLLM engines behind the gateway."""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from tests.fleet import OWN, POOL, Callers, Place, Reply, callers, pool, pooled_model, renewed
from tests.running_gateway import running_gateway
from tests.vllm.conftest import Pair
from tests.vllm.conversations import Messages, conversation
from tests.vllm.engines import CONTEXT_TOKENS, KV_PORT_ABOVE, MODEL, SEATS, VllmReplica, moved, until

_LOG: Final = logging.getLogger(__name__)
_ADAPTED: Final = "own-sql"
_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
_HITS: Final = "vllm:prefix_cache_hits_total"
_QUERIES: Final = "vllm:prefix_cache_queries_total"
_HEARD: Final = 12
_ROUNDS: Final = 3
_AFTER_THE_LAST_WORD: Final = 2
_CROWD: Final = 3 * SEATS
"""Callers that keep all seats taken and the line filled: while those that were answered ask again, others wait."""
_LONG_TOKENS: Final = 1_000
"""Such an answer takes far longer than an order; four fit into one replica's cache."""
_KV_EVENTS: Final = re.compile(r'weighbridge_kv_events_total\{.*result="(\w+)".*\} (\S+)')


PATIENCE_S: Final = 1_800.0
PATIENT: Final[dict[str, Any]] = {
    # Who waits for a seat on a busy machine has to wait long, and nobody is to be judged by the time that it takes there.
    "providers": {
        "timeouts": {
            "first_token_interactive_s": 1_200,
            "first_token_batch_s": 1_200,
            "idle_s": 1_200,
            "total_s": 1_800,
        }
    },
    "deadlines": {tier: {"first_token_s": 1_200, "answer_s": PATIENCE_S} for tier in ("interactive", "batch")},
}
PATIENT_WATCH: Final = {"timeout_s": 60, "stale_s": 120, "silent_s": 0}


async def until_states(fleet: Callers, engines: tuple[VllmReplica, ...], **states: str) -> None:
    """Returns once the gateway has the replicas as told."""

    async def reached() -> bool:
        found = await fleet.states()
        return all(found.get(name) == state for name, state in states.items())

    await until(reached, *engines)


@contextlib.asynccontextmanager
async def fleet_of(
    folder: Path, engines: tuple[VllmReplica, ...], *, more_models: tuple[str, ...] = (), **fields: Any
) -> AsyncIterator[Callers]:
    """A gateway before these engines, once all are ready."""
    fields["watch"] = {**PATIENT_WATCH, **fields.get("watch", {})}
    own = pool([Place(each.name, each.url) for each in engines], upstream_model=MODEL, **fields)
    models = [pooled_model(name, max_context_tokens=CONTEXT_TOKENS) for name in (OWN, *more_models)]
    sections: dict[str, Any] = {
        "selfhosted": {"pools": [own]},
        "classifier": {"enabled": False},
        **PATIENT,
    }
    async with (
        running_gateway(folder, models, **sections) as gateway,
        callers(gateway, patience_s=PATIENCE_S) as fleet,
    ):
        await until_states(fleet, engines, **{each.name: "ready" for each in engines})
        yield fleet


async def samples(engine: VllmReplica) -> dict[str, float]:
    return dict(await asyncio.to_thread(engine.samples))


async def until_at(engine: VllmReplica, gauge: str, value: float) -> None:
    """Waits until the engine itself says so."""

    async def reached() -> bool:
        return (await samples(engine)).get(gauge) == value

    await until(reached, engine)


def short(name: str) -> Messages:
    return conversation(name, 0, lines=4)


async def test_the_gateway_tells_what_the_engines_say(tmp_path: Path, pair: Pair) -> None:
    """State, what runs, KV use and prefix hits of each replica, in `GET /v1/fleet` and as metrics."""
    async with fleet_of(tmp_path, pair.both) as fleet:
        for _ in range(2):
            await asyncio.gather(*(fleet.ask(conversation(f"told {number}", 0, lines=20)) for number in range(4)))
        told: dict[str, Any] = {}

        async def ask(name: str) -> None:
            reply = await fleet.stream(short(f"told {name}"), max_tokens=300)
            assert reply.done, reply

        async def seen() -> bool:
            told.update(await fleet.pool())
            # What is not known at the moment is null.
            stats = [each["stats"] or {"running": 0, "kv_usage": 0} for each in told["replicas"]]
            return bool(sum(each["running"] for each in stats) == 4 and sum(each["kv_usage"] for each in stats) > 0)

        async with renewed(ask, callers=4):
            await until(seen, *pair.both)
        assert told["state"] == "ok"
        assert told["counts"]["ready"] == 2
        assert told["unknown"] == 0
        assert told["running"] == 4
        for each in pair.both:
            await until_at(each, _RUNNING, 0)
        async with fleet.session.get(f"{fleet.gateway.url}/metrics") as page:
            lines = (await page.text()).splitlines()
        for name in ("a", "b"):
            ready = [line for line in lines if line.startswith("weighbridge_replica_state{") and f'"{name}"' in line]
            assert any('"ready"' in line and line.endswith(" 1.0") for line in ready), ready


async def test_a_line_is_read_in_pieces_that_the_engine_keeps(tmp_path: Path, pair: Pair) -> None:
    """Each prompt is computed once though it is sent several times: what the engine looks up, and has, shows it. The answer is the
    same as without, and nothing of it counts as cached that was read for it.
    """
    asked = conversation("in pieces", 0, lines=60)
    batch = {"headers": {"x-tier": "batch"}}
    async with fleet_of(tmp_path, (pair.a,), read_ahead_tokens=128, priority_scheduling=True) as fleet:
        before = await samples(pair.a)
        reply = await fleet.ask(asked, **batch)
        after = await samples(pair.a)
        plain = await fleet.ask(asked)
        assert (reply.status, reply.text) == (200, plain.text)
        tokens = reply.usage["prompt_tokens"]
        # Of each piece, and of the whole, it had all that the piece before has read.
        assert moved(before, after, _HITS) == moved(before, after, _QUERIES) - tokens >= 128 * (1 + 2 + 3)
        row = (await fleet.gateway.rows("entry = 'settle'"))[0]
        assert (row["input_tokens"], row["cached_input_tokens"]) == (tokens, 0)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def hit_rate(base: Path, pair: Pair, policy: str) -> float:
    """The part of looked-up prompt tokens that both engines had, by their own counters. Conversations are this run's own."""
    folder = await asyncio.to_thread(_made, base / policy)
    conversations, turns = 13, 4
    async with fleet_of(folder, pair.both, balance={"policy": policy}) as fleet:
        before = [await samples(each) for each in pair.both]
        for turn in range(turns):
            asked = [conversation(f"{policy} {number}", turn, lines=40) for number in range(conversations)]
            for number in range(0, conversations, 3):
                replies = await asyncio.gather(*(fleet.ask(each) for each in asked[number : number + 3]))
                assert all(reply.done for reply in replies), replies
        after = [await samples(each) for each in pair.both]
    grown = {name: sum(moved(*each, name) for each in zip(before, after, strict=True)) for name in (_HITS, _QUERIES)}
    _LOG.info("%s: %s of %s prompt tokens were cached", policy, grown[_HITS], grown[_QUERIES])
    return grown[_HITS] / grown[_QUERIES]


async def test_affinity_raises_the_engines_own_hit_counters(tmp_path: Path, pair: Pair) -> None:
    """More conversations than one replica's cache holds: with affinity each stays where it is cached."""
    turned = await hit_rate(tmp_path, pair, "round-robin")
    kept = await hit_rate(tmp_path, pair, "prefix")
    # Of four turns the first cannot hit.
    assert kept > 0.6
    assert kept > turned + 0.15


async def test_interactive_work_overtakes_batch_inside_the_engine(tmp_path: Path, pair: Pair) -> None:
    """All seats are taken, batch waits first, interactive comes last: interactive has its first token first.

    Those that hold the seats are many and come back until the interactive ones were served, so no seat is ever left over.
    """
    # All of them are to wait in the engine's line, none in front of it.
    room = {"max_waiting": 100, "kv_high": 1.0}
    async with fleet_of(tmp_path, (pair.a,), priority_scheduling=True, room=room) as fleet:

        async def sit(name: str) -> None:
            reply = await fleet.ask(short(f"sit {name}"), max_tokens=300)
            assert reply.done, reply

        async def all_inside() -> bool:
            told = await samples(pair.a)
            return told[_RUNNING] == SEATS and told[_WAITING] == _CROWD

        async with renewed(sit, callers=_CROWD):
            await until_at(pair.a, _RUNNING, SEATS)
            batch = [
                asyncio.create_task(fleet.stream(short(f"batch {number}"), max_tokens=300, headers={"x-tier": "batch"}))
                for number in range(SEATS)
            ]
            # As many as there are: the crowd and the batch.
            await until(all_inside, pair.a)
            early = await asyncio.gather(
                *(fleet.stream(short(f"soon {number}"), max_tokens=60) for number in range(SEATS))
            )
        late = await asyncio.gather(*batch)
        assert all(reply.done for reply in (*late, *early)), (*late, *early)
        assert max(_first_at(reply) for reply in early) < min(_first_at(reply) for reply in late)


def _first_at(reply: Reply) -> float:
    assert reply.first_at is not None
    return reply.first_at


async def test_a_caller_that_hangs_up_frees_the_engine_and_is_booked_exactly(tmp_path: Path, pair: Pair) -> None:
    """What runs falls to none before the answer would have ended; the ledger has the tokens that the engine made.

    The engine may make one or two more between the last word that it sends and the end that it is asked for. How many a
    fast engine makes until it hears that the caller left is chance; so it is held still while the caller leaves.
    """
    async with fleet_of(tmp_path, (pair.a,)) as fleet:
        for number in range(4):
            before = await samples(pair.a)
            row = await hang_up(fleet, pair.a, number)
            await until_at(pair.a, _RUNNING, 0)
            after = await samples(pair.a)
            made = moved(before, after, "vllm:generation_tokens_total")
            _LOG.info("hung up: the engine made %s tokens, %s are booked", made, row["output_tokens"])
            assert row["usage_source"] == "upstream"
            assert row["input_tokens"] == moved(before, after, "vllm:prompt_tokens_total")
            assert made - _AFTER_THE_LAST_WORD <= row["output_tokens"] <= made


async def hang_up(fleet: Callers, engine: VllmReplica, number: int) -> dict[str, Any]:
    """In the middle of an answer; what was booked when the engine's server had noticed, too."""
    left = Reply()
    asked = asyncio.create_task(fleet.stream(short(f"hang up {number}"), into=left, max_tokens=3_500))
    await until(lambda: left.events >= _HEARD, engine)
    with engine.held_still():
        await until_quiet(fleet, engine, left)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        row = await settled(fleet, engine, number)
        await until(lambda: engine.open_answers() == 0, engine)
    assert not left.done
    return row


async def until_quiet(fleet: Callers, engine: VllmReplica, reply: Reply) -> None:
    """What was under way has come: whoever passes it on, the engine's server and the gateway, has served others since, and nothing
    came.
    """
    seen = -1
    while seen != reply.events:
        seen = reply.events
        for _ in range(_ROUNDS):
            await asyncio.to_thread(engine.open_answers)
            await fleet.ask([], max_tokens=1)


async def settled(fleet: Callers, engine: VllmReplica, before: int) -> dict[str, Any]:
    """The newest row, when there are more than before."""
    rows: list[dict[str, Any]] = []

    async def booked() -> bool:
        rows[:] = await fleet.gateway.rows("entry = 'settle'")
        return len(rows) > before

    await until(booked, engine)
    return rows[-1]


async def test_an_adapter_is_loaded_on_demand_and_its_work_goes_where_it_is(tmp_path: Path, pair: Pair) -> None:
    """The first request for its target loads it into one replica; later ones go there; the base model is untouched."""
    adapters = [{"name": "sql", "target": _ADAPTED, "path": str(pair.a.adapter)}]
    async with fleet_of(tmp_path, pair.both, more_models=(_ADAPTED,), adapters=adapters) as fleet:
        assert not any("sql" in each.models() for each in pair.both)
        question = short("adapted")
        plain = await fleet.ask(question, max_tokens=24)
        replies = [await fleet.ask(question, model=_ADAPTED, max_tokens=24) for _ in range(4)]
        assert all(reply.done for reply in replies), replies
        assert len({reply.replica for reply in replies}) == 1
        assert {each.name for each in pair.both if "sql" in each.models()} == {replies[0].replica}
        assert replies[0].text != plain.text
        assert (await fleet.ask(question, max_tokens=24)).text == plain.text

        async def told() -> bool:
            return bool((await fleet.replica(replies[0].replica))["adapters"] == ["sql"])

        await until(told, *pair.both)


async def test_a_drained_replica_finishes_its_streams_and_takes_nothing_new(tmp_path: Path, pair: Pair) -> None:
    """No stream is cut, the engine runs empty, and it takes work again once the order is withdrawn."""
    async with fleet_of(tmp_path, pair.both) as fleet:
        streams: list[Reply] = []

        async def ask(name: str) -> None:
            streams.append(reply := Reply())
            await fleet.stream(short(f"drain {name}"), into=reply, max_tokens=_LONG_TOKENS)
            assert reply.done, reply
            assert reply.usage["completion_tokens"] == _LONG_TOKENS

        def just_begun() -> bool:
            """Both work, and a stream of the one to be drained has nearly all of its way before it."""
            running = [reply for reply in streams if reply.began and not reply.done]
            young = any(reply.replica == "a" and reply.events < _LONG_TOKENS // 10 for reply in running)
            return young and {reply.replica for reply in running} == {"a", "b"}

        async with renewed(ask, callers=4):
            await until(just_begun, *pair.both)
            order = f"/fleet/pools/{POOL}/replicas/a/drain"
            ordered_at = time.monotonic()
            await fleet.order("PUT", order)
            await until_states(fleet, pair.both, a="draining")
            draining_at, before = time.monotonic(), len(streams)
            # It runs empty though there is no end of work.
            await until_at(pair.a, _RUNNING, 0)
            later = await asyncio.gather(*(fleet.ask(short(f"later {number}")) for number in range(8)))
            assert {reply.replica for reply in later} == {"b"}
            assert (await samples(pair.a))[_RUNNING] == 0
            meanwhile = streams[before:]
            await fleet.order("DELETE", order)
            await until_states(fleet, pair.both, a="ready")

            async def works_again() -> bool:
                return (await samples(pair.a))[_RUNNING] > 0

            await until(works_again, *pair.both)
        assert {reply.replica for reply in meanwhile} == {"b"}
        finished = [
            reply for reply in streams[:before] if reply.replica == "a" and _spans(reply, ordered_at, draining_at)
        ]
        assert finished, streams[:before]


def _spans(reply: Reply, start: float, end: float) -> bool:
    """It ran before the one and after the other."""
    assert reply.ended_at is not None
    return _first_at(reply) < start and reply.ended_at > end


async def test_kv_events_reach_the_gateway(tmp_path: Path, pair: Pair) -> None:
    """A pool whose engines publish what they cache: the gateway hears both, and maps their blocks to its own."""
    async with fleet_of(tmp_path, pair.both, watch={"kv_events_port": f"+{KV_PORT_ABOVE}"}) as fleet:
        heard: dict[str, float] = {}

        async def mapped() -> bool:
            # Two at once, so that both replicas have something to tell.
            names = [f"events {len(heard)} {number}" for number in range(2)]
            replies = await asyncio.gather(*(fleet.ask(conversation(name, 0, lines=40)) for name in names))
            assert all(reply.done for reply in replies), replies
            heard.update(await kv_events(fleet))
            return heard.get("stored", 0) > 0 and heard.get("learned", 0) > 0

        await until(mapped, *pair.both)
        assert "garbage" not in heard


async def kv_events(fleet: Callers) -> dict[str, float]:
    """How many of each kind the gateway counted."""
    async with fleet.session.get(f"{fleet.gateway.url}/metrics") as page:
        lines = (await page.text()).splitlines()
    found = [_KV_EVENTS.match(line) for line in lines]
    return {line[1]: float(line[2]) for line in found if line is not None}


async def test_a_killed_replica_is_not_noticed_before_the_first_byte(tmp_path: Path, pair: Pair) -> None:
    """Kill -9 at load: whoever had not seen a byte gets a whole answer, and the replica is used again once it is back."""
    async with fleet_of(tmp_path, pair.both) as fleet:
        replies = [Reply() for _ in range(24)]
        asked = [
            asyncio.create_task(fleet.stream(short(f"kill {number}"), into=reply, max_tokens=400))
            for number, reply in enumerate(replies)
        ]

        async def busy() -> bool:
            # Some see their answer come, others wait in the engine.
            waiting = (await samples(pair.a)).get(_WAITING, 0)
            return waiting >= SEATS and any(each.began and not each.done and each.replica == "a" for each in replies)

        await until(busy, *pair.both)
        pair.a.kill()
        await asyncio.gather(*asked)
        unseen = [reply for reply in replies if not reply.began]
        broken = [reply for reply in replies if reply.began and not reply.done]
        _LOG.info("killed: %d whole, %d broken after their first byte", len(replies) - len(broken), len(broken))
        assert unseen == [], unseen
        # Only those that sat in the dead engine can have seen a byte of it.
        assert 1 <= len(broken) <= SEATS
        assert all(reply.error is not None for reply in broken)
        await until_states(fleet, pair.both, a="down", b="ready")
        assert {(await fleet.ask(short(f"after {number}"))).replica for number in range(4)} == {"b"}
        await asyncio.to_thread(pair.a.start)
        await until_states(fleet, pair.both, a="ready")
        back = await asyncio.gather(*(fleet.ask(short(f"back {number}")) for number in range(12)))
        assert {reply.replica for reply in back} == {"a", "b"}


async def test_a_killed_replicas_stream_goes_on(tmp_path: Path, pair: Pair) -> None:
    """For a team that wants it: the other engine completes the very message. Both count exactly, so the caller has as many
    tokens as it asked for, and is told of the prompt once.
    """
    async with fleet_of(tmp_path, pair.both) as fleet:
        await fleet.gateway.accounts.update_team("team_a", continue_streams=True)
        asked = short("goes on")
        reply = Reply()
        running = asyncio.create_task(fleet.stream(asked, into=reply, max_tokens=_LONG_TOKENS))

        async def begun() -> bool:
            return reply.events >= _HEARD

        await until(begun, *pair.both)
        said = reply.text
        (pair.a if reply.replica == "a" else pair.b).kill()
        await running
        assert (reply.error, reply.done) == (None, True)
        assert reply.text.startswith(said)
        assert len(reply.text) > len(said)
        broken, rest = await fleet.gateway.rows("entry = 'settle'")
        assert "continued" in rest["flags"]
        assert reply.usage["completion_tokens"] == broken["output_tokens"] + rest["output_tokens"] == _LONG_TOKENS
        whole = await fleet.ask(asked, max_tokens=1)
        assert reply.usage["prompt_tokens"] == whole.usage["prompt_tokens"] < rest["input_tokens"]
