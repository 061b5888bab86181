"""An engine of two data-parallel ranks behind one address: each has its cache, its events and its requests."""

import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import zmq.asyncio
from aiohttp import web

from tests.fleet import Callers, Place, callers, pool, pooled_model
from tests.odd_engine import OddEngine, metrics_page, served
from tests.processes import until
from tests.running_gateway import running_gateway
from tests.selfhosted.kv_events.engine import Cache, Publisher, payload

_RANKS: Final = 2
_BLOCKS: Final = 600


def _tokens(messages: Sequence[dict[str, Any]]) -> list[int]:
    text = "".join(str(each["content"]) for each in messages).encode()
    return [int.from_bytes(text[start : start + 4], "big") for start in range(0, len(text), 4)]


def _ports() -> int:
    """Return the first of four ports in a row that nobody has."""
    for first in range(21_000, 31_000, 4):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 2 * _RANKS):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise OSError("no four ports in a row are free")


class RankedEngine(OddEngine):
    """vLLM with `--data-parallel-size 2`: whom no header sends to a rank goes to the next in turn."""

    def __init__(self, publishers: list[Publisher]) -> None:
        super().__init__("engine")
        self.publishers = publishers
        self.caches = [Cache(_BLOCKS) for _ in publishers]
        self.ranks: list[int | None] = []
        """Of each request, as its header says."""
        self.tokenized = 0
        self.loads_of = [0, 0]
        self.page = self._page

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_post("/tokenize", self._tokenize)
        return app

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        told = request.headers.get("x-data-parallel-rank")
        self.ranks.append(None if told is None else int(told))
        await self.serve(len(self.ranks) % _RANKS if told is None else int(told), (await request.json())["messages"])
        return await super()._chat(request)

    async def serve(self, rank: int, messages: Sequence[dict[str, Any]]) -> None:
        """A prompt is read by a rank, for whomever."""
        self.caches[rank].serve(_tokens(messages))
        await self.tell(rank)

    async def flood(self, rank: int) -> None:
        """All that a rank holds goes for something else."""
        self.caches[rank].serve([1_000_000 + at for at in range(4 * _BLOCKS)])
        await self.tell(rank)

    async def tell(self, rank: int, *, as_rank: int | None = None) -> None:
        await self.publishers[rank].publish_raw(
            payload(self.caches[rank].take(), rank=rank if as_rank is None else as_rank)
        )

    async def _tokenize(self, request: web.Request) -> web.Response:
        self.tokenized += 1
        return web.json_response({"tokens": _tokens((await request.json())["messages"])})

    async def was_tokenized(self) -> bool:
        """A prompt was, which happens a moment after its first token."""
        return self.tokenized > 0

    def _page(self) -> bytes:
        first = metrics_page(running=self.loads_of[0], waiting=0, kv_usage=0.1, blocks=_BLOCKS)
        second = metrics_page(running=self.loads_of[1], waiting=0, kv_usage=0.3, blocks=_BLOCKS)
        return (first + second.replace('engine="0"', 'engine="1"')).encode()


@contextlib.asynccontextmanager
async def _house(tmp_path: Path, **fields: Any) -> AsyncIterator[tuple[Callers, RankedEngine]]:
    context = zmq.asyncio.Context()
    publishers = [Publisher(context) for _ in range(_RANKS)]
    first = _ports()
    for rank, publisher in enumerate(publishers):
        await publisher.start(first + rank, first + _RANKS + rank)
    engine = RankedEngine(publishers)
    watch = {"kv_events_port": first, "kv_replay_port": first + _RANKS}
    try:
        async with contextlib.AsyncExitStack() as stack:
            engine.url = await served(stack, engine.app())
            own = pool([Place("a", engine.url)], watch=watch, data_parallel_ranks=_RANKS, **fields)
            section = {"selfhosted": {"pools": [own]}, "classifier": {"enabled": False}}
            gateway = await stack.enter_async_context(running_gateway(tmp_path, [pooled_model()], **section))
            found = await stack.enter_async_context(callers(gateway))
            await found.until_states(**{"a-dp0": "ready", "a-dp1": "ready"})
            yield found, engine
    finally:
        for publisher in publishers:
            await publisher.stop()
        context.destroy(linger=0)


def _talk(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Story {number}, please, " + f"and make it number {number}. " * 120}]


async def _events(fleet: Callers, rank: int) -> dict[str, Any]:
    return (await fleet.replica(f"a-dp{rank}"))["kv_events"] or {"state": None, "blocks": 0, "why": ""}


async def _heard(fleet: Callers, engine: RankedEngine) -> None:
    """Both ranks' events are listened to: ZeroMQ tells nobody when a subscription stands."""

    async def live() -> bool:
        for rank in range(_RANKS):
            await engine.tell(rank)
        return all([(await _events(fleet, rank))["state"] == "live" for rank in range(_RANKS)])

    await until(live)


async def test_a_prompt_goes_to_the_rank_that_has_it(tmp_path: Path) -> None:
    """Also after it moved: by its events, whoever sent the prompt there."""
    async with _house(tmp_path) as (fleet, engine):
        await _heard(fleet, engine)
        asked = await fleet.ask(_talk(1))
        home = engine.ranks[-1]
        assert asked.done
        assert home is not None
        assert asked.replica == f"a-dp{home}"

        async def told(rank: int, least: int) -> None:
            async def known() -> bool:
                return bool((await _events(fleet, rank))["blocks"] >= least)

            await until(known)

        await told(home, 100)
        await until(engine.was_tokenized)
        assert (await fleet.ask(_talk(1))).replica == f"a-dp{home}"
        other = 1 - home
        await engine.flood(home)
        await engine.serve(other, _talk(1))
        # Whoever asks before both are told puts the prompt back where it was.
        await told(home, _BLOCKS)
        await told(other, 100)
        assert [(await fleet.ask(_talk(1))).replica for _ in range(4)] == [f"a-dp{other}"] * 4
        assert engine.ranks[-4:] == [other] * 4
        # Other prompts know both ranks, and none is left to the engine to place.
        for number in range(2, 12):
            await fleet.ask(_talk(number))
        assert set(engine.ranks) == {0, 1}


async def test_each_rank_has_its_own_figures_from_one_page(tmp_path: Path) -> None:
    """Its load and its cache are its own."""
    async with _house(tmp_path) as (fleet, engine):
        engine.loads_of = [7, 0]

        async def told() -> bool:
            found = [(await fleet.replica(f"a-dp{rank}"))["stats"] or {} for rank in range(_RANKS)]
            return [each.get("running") for each in found] == [7, 0] and [each["kv_usage"] for each in found] == [
                0.1,
                0.3,
            ]

        await until(told)


async def test_events_of_another_rank_are_not_believed(tmp_path: Path) -> None:
    """Such as through one port for all: they would be of caches that the rank does not have."""
    async with _house(tmp_path) as (fleet, engine):
        await _heard(fleet, engine)
        engine.caches[0].serve(_tokens(_talk(1)))
        await engine.tell(0, as_rank=1)

        async def refused() -> bool:
            return "rank 1 tells its events" in (await _events(fleet, 0))["why"]

        await until(refused)
        assert (await _events(fleet, 0))["blocks"] == 0
