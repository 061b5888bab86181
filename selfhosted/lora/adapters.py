"""LoRA adapters: loads one that a replica lacks through vLLM's runtime API.

One load of an adapter runs at a replica at a time, and all requests of a process that need it wait for the same one.
Where the engine's slots are taken, the adapter idle longest is unloaded. `lora_poll` reports which replica has which,
as other processes load too.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal, Protocol

import msgspec

from providers.errors import UpstreamUnavailable
from selfhosted.config import AdapterConfig, PoolConfig
from selfhosted.engines.fetching import Fetched, FetchFailed, Post
from selfhosted.replica import PoolSnapshot, Replica
from settings.decoding import DECODE_ERRORS

_log = logging.getLogger("weighbridge.selfhosted")

LoadResult = Literal["loaded", "unloaded", "failed", "busy"]

_LOAD_S: Final = 60.0
"""Timeout of one load, which reads weights from a disk or a remote store."""
_IDLE_S: Final = 10.0
"""An adapter used within this time is not unloaded: it may be needed again, and the engine's own report of running
adapters is only read every second."""
_AGAIN_S: Final = 10.0
"""Pause after a failed load before the next try."""
_MAX_BYTES: Final = 1_000_000
_OK: Final = 200
_BAD_REQUEST: Final = 400
_NOT_FOUND: Final = 404


class AdapterUnavailable(UpstreamUnavailable):
    """The replica does not have the adapter and could not load it. The replica itself is healthy, and another may have
    it.
    """

    gateway_failure = False


class AdapterUnknown(AdapterUnavailable):
    """The adapter is not configured for the pool."""


class AdapterRefused(AdapterUnavailable):
    """The engine refused to load the adapter: no such files, a wrong rank, or it was started without `--enable-lora`."""


class AdapterUnreachable(AdapterUnavailable):
    """The engine did not answer the load request, or not in time."""


class Residency(Protocol):
    """The store of which replica has which adapters; implemented by PoolJudge."""

    @property
    def snapshot(self) -> PoolSnapshot: ...

    def adapter_changed(self, name: str, adapter: str, *, loaded: bool) -> None: ...


class AdapterObserver:
    """An observer of adapter loads and unloads; this base class ignores them."""

    def count_adapter_load(self, pool: str, result: LoadResult) -> None: ...


class _NestedError(msgspec.Struct, frozen=True):
    message: str = ""


class _ErrorReply(msgspec.Struct, frozen=True):
    """An engine's error body. Newer engines nest the message, older ones do not; FastAPI's own 404 has a `detail`."""

    error: _NestedError | None = None
    message: str = ""
    detail: str = ""


class _Load(msgspec.Struct, frozen=True):
    lora_name: str
    lora_path: str


class _Unload(msgspec.Struct, frozen=True):
    lora_name: str


_ERROR_REPLY: Final = msgspec.json.Decoder(_ErrorReply)


class _Failure(msgspec.Struct, frozen=True):
    """A failed load: the error to raise, and the reason for the log."""

    error: type[AdapterUnavailable]
    why: str


class _Place:
    """Adapter loads, failures and last uses at one replica's address."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.turn = asyncio.Lock()
        self.loads: dict[str, asyncio.Task[_Failure | None]] = {}
        self.used_at: dict[str, float] = {}
        self.failures: dict[str, tuple[float, _Failure]] = {}


class Adapters:
    """The adapters of a pool's replicas. Not thread-safe: all methods run on one event loop."""

    def __init__(
        self,
        config: PoolConfig,
        *,
        fetch: Post,
        residency: Residency,
        observer: AdapterObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = config.name
        self._by_name: Mapping[str, AdapterConfig] = {adapter.name: adapter for adapter in config.adapters}
        self._fetch = fetch
        self._residency = residency
        self._observer = observer or AdapterObserver()
        self._clock = clock
        self._places: dict[str, _Place] = {}

    async def ensure(self, replica: Replica, adapter: str) -> None:
        """Make sure that the replica has the adapter, loading it if necessary. Raises AdapterUnavailable."""
        place = self._place(replica)
        place.used_at[adapter] = self._clock()
        if adapter in replica.adapters:
            return
        config = self._by_name.get(adapter)
        if config is None:
            del place.used_at[adapter]
            raise _error(AdapterUnknown, replica, adapter)
        failure = await self._load_once(place, replica.name, config)
        if failure is not None:
            raise _error(failure.error, replica, config.target)

    def missing(self, replica: str, adapter: str) -> None:
        """Record that the engine answered that it does not have the adapter, such as after another process unloaded
        it.
        """
        self._residency.adapter_changed(replica, adapter, loaded=False)

    def adopt(self, names: Collection[str]) -> None:
        """Forget replicas that are not in the pool any more."""
        for gone in self._places.keys() - set(names):
            del self._places[gone]

    async def aclose(self) -> None:
        """Cancel the loads under way."""
        loads = [load for place in self._places.values() for load in place.loads.values()]
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    # --- loading

    async def _load_once(self, place: _Place, name: str, config: AdapterConfig) -> _Failure | None:
        again_at, failure = place.failures.get(config.name, (0.0, None))
        if failure is not None and self._clock() < again_at:
            return failure
        load = place.loads.get(config.name)
        if load is None:
            load = place.loads[config.name] = asyncio.create_task(self._load(place, name, config))
            load.add_done_callback(lambda _done: place.loads.pop(config.name, None))
        # Shielded: a caller that hangs up must not cancel the load for the others that wait for it.
        return await asyncio.shield(load)

    async def _load(self, place: _Place, name: str, config: AdapterConfig) -> _Failure | None:
        async with place.turn:
            await self._make_room(place, name)
            failure = await self._post_load(place, config)
            if failure is None:
                place.failures.pop(config.name, None)
                self._residency.adapter_changed(name, config.name, loaded=True)
                self._observer.count_adapter_load(self._pool, "loaded")
                return None
        place.failures[config.name] = (self._clock() + _AGAIN_S, failure)
        self._observer.count_adapter_load(self._pool, "failed")
        _log.warning("adapter %s is not at replica %s of pool %s: %s", config.name, name, self._pool, failure.why)
        return failure

    async def _post_load(self, place: _Place, config: AdapterConfig) -> _Failure | None:
        body = msgspec.json.encode(_Load(config.name, config.path))
        try:
            answer = await self._post(place, "load_lora_adapter", body)
        except FetchFailed as failure:
            return _Failure(AdapterUnreachable, str(failure))
        if answer.status == _OK or (
            answer.status == _BAD_REQUEST and "already been loaded" in _decode_error(answer)[0]
        ):
            return None
        if answer.status == _NOT_FOUND and _decode_error(answer)[1]:
            return _Failure(
                AdapterRefused,
                "it does not load adapters while it runs; start it with --enable-lora and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
            )
        return _Failure(AdapterRefused, f"it answered {answer.status} when it was told to load it")

    async def _post(self, place: _Place, path: str, body: bytes) -> Fetched:
        """Post to the engine, a second time where it was unreachable: loading is idempotent, and the connection may
        have been a dead one from the keep-alive pool.
        """
        url = f"{place.url}/v1/{path}"
        try:
            return await self._fetch.post(url, body, timeout_s=_LOAD_S, max_bytes=_MAX_BYTES)
        except FetchFailed as failure:
            if failure.result != "unreachable":
                raise
        return await self._fetch.post(url, body, timeout_s=_LOAD_S, max_bytes=_MAX_BYTES)

    async def _make_room(self, place: _Place, name: str) -> None:
        """Unload the adapter that was idle longest where the engine's slots are taken. When none is idle the engine
        swaps.
        """
        replica = self._replica(name)
        if replica is None or replica.stats is None or replica.stats.max_adapters is None:
            return
        if len(replica.adapters) < replica.stats.max_adapters:
            return
        busy = replica.stats.adapters or frozenset()
        victim = least_used(replica.adapters - busy, place.used_at, idle_since=self._clock() - _IDLE_S)
        if victim is None:
            self._observer.count_adapter_load(self._pool, "busy")
            return
        # Before the unload, so that no request for it is sent there any more.
        self._residency.adapter_changed(name, victim, loaded=False)
        try:
            answer = await self._post(place, "unload_lora_adapter", msgspec.json.encode(_Unload(victim)))
        except FetchFailed as failure:
            _log.warning("adapter %s was not unloaded at replica %s of pool %s: %s", victim, name, self._pool, failure)
            return
        place.used_at.pop(victim, None)
        # Not found means unloaded, too. After any other answer the next look finds out.
        if answer.status in (_OK, _NOT_FOUND):
            # Again: who looked meanwhile may have found it.
            self._residency.adapter_changed(name, victim, loaded=False)
            self._observer.count_adapter_load(self._pool, "unloaded")

    def _replica(self, name: str) -> Replica | None:
        return next((each for each in self._residency.snapshot.replicas if each.name == name), None)

    def _place(self, replica: Replica) -> _Place:
        url = replica.address.url.rstrip("/")
        place = self._places.get(replica.name)
        if place is None or place.url != url:
            place = self._places[replica.name] = _Place(url)
        return place


def least_used(adapters: frozenset[str], used_at: Mapping[str, float], *, idle_since: float) -> str | None:
    """Return the least recently used adapter, if its last use was before `idle_since`; None when there is none. Adapters never
    used here come first, by name.
    """
    never = float("-inf")
    idle = [name for name in adapters if used_at.get(name, never) <= idle_since]
    return min(idle, key=lambda name: (used_at.get(name, never), name)) if idle else None


def _decode_error(answer: Fetched) -> tuple[str, bool]:
    """Return the engine's error message, to match and not to show; and whether the error is FastAPI's own, as for an unknown
    path.
    """
    try:
        refusal = _ERROR_REPLY.decode(answer.body)
    except DECODE_ERRORS:
        return answer.body.decode(errors="replace"), False
    message = refusal.message if refusal.error is None else refusal.error.message
    return message, bool(refusal.detail)


def _error(kind: type[AdapterUnavailable], replica: Replica, target: str) -> AdapterUnavailable:
    """Return the error for the caller, without details of the engines; the reason is logged."""
    return kind("A replica could not load this model's adapter.", deployment_id=f"{target}/{replica.name}")
