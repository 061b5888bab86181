"""Asks a pool's engines every few seconds which LoRA adapters are loaded, as every process loads and unloads."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

import aiohttp
import msgspec

from selfhosted.config import PoolConfig
from selfhosted.engines.fetching import EngineKey, FetchFailed
from selfhosted.engines.scrape import HttpFetch
from selfhosted.replica import PoolSnapshot, Replica
from settings.decoding import DECODE_ERRORS

_EVERY_S: Final = 5.0
_MAX_BYTES: Final = 1_000_000
_AT_ONCE: Final = 16
_OK: Final = 200


class AdapterStore(Protocol):
    """The replicas, and the store of what they have; implemented by PoolProber."""

    @property
    def snapshot(self) -> PoolSnapshot: ...

    def set_adapters(self, name: str, adapters: frozenset[str], at: float) -> None:
        """Take over the adapters that were loaded at a moment, unless something newer is known."""
        ...


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


_MODELS: Final = msgspec.json.Decoder(_Models)


class LoraPoll:
    """The periodic look at one pool, once a host."""

    def __init__(
        self,
        config: PoolConfig,
        *,
        session: aiohttp.ClientSession,
        api_key: EngineKey,
        watch: AdapterStore,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = _EVERY_S,
    ) -> None:
        self._names = frozenset(adapter.name for adapter in config.adapters)
        self._timeout_s = config.watch.timeout_s
        self._fetch = HttpFetch(session, api_key)
        self._watch = watch
        self._clock = clock
        self._every_s = every_s

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Read the loaded adapters of all replicas that answer, at most `_AT_ONCE` at a time."""
        few = asyncio.Semaphore(_AT_ONCE)

        async def look(replica: Replica) -> None:
            async with few:
                await self._look_at(replica)

        replicas = self._watch.snapshot.replicas
        await asyncio.gather(*(look(each) for each in replicas if each.state in ("ready", "draining")))

    async def _look_at(self, replica: Replica) -> None:
        url, asked_at = replica.address.url.rstrip("/"), self._clock()
        try:
            answer = await self._fetch(f"{url}/v1/models", timeout_s=self._timeout_s, max_bytes=_MAX_BYTES)
            models = _MODELS.decode(answer.body).data if answer.status == _OK else None
        except (FetchFailed, *DECODE_ERRORS):
            models = None
        if models is not None:
            # As of when it was asked: what was loaded meanwhile may not be in the answer.
            self._watch.set_adapters(replica.name, frozenset(model.id for model in models) & self._names, asked_at)
