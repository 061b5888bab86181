"""Subscribes to the KV events of a pool's replicas over ZeroMQ, and updates the balancer's index by them.

Every queue on the way is bounded: ZeroMQ keeps at most `queue` messages of at most `message_bytes` for each replica,
and disconnects one that sends a longer message; then the engine's own queue fills, and what it drops shows as a gap.
Without pyzmq (the extra `kv-events`) there are no subscriptions, which is logged once, and the index infers as it does
without events.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from selfhosted.balance.index import PrefixIndex
from selfhosted.kv_events.chains import ChainLimits, Chains
from selfhosted.kv_events.sampling import Sample, SampleLimits, SampleResult, Sampling, Tokenize
from selfhosted.kv_events.subscriber import Follower, KvObserver, KvResult, KvState
from selfhosted.replica import Address

if TYPE_CHECKING:
    import zmq.asyncio

_log: Final = logging.getLogger("weighbridge.kv_events")

_SEQUENCE_BYTES: Final = 8
_SECOND_MS: Final = 1_000
_MOST_PORT: Final = 65_535


class KvLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of one pool's events."""

    queue: int = 64
    message_bytes: int = 1_000_000
    replayed: int = 4_096
    """The most messages of a replay that wait; the engine sends all at once, and drops what does not fit."""
    again_s: float = 1.0
    """Pause in seconds after a lost connection or an unexpected error."""
    most_replicas: int = 1_000
    chains: ChainLimits = ChainLimits()
    samples: SampleLimits = SampleLimits()


Port = int | str
"""A port number, or an offset such as `+1000` from the replica's own port, where several engines share a host."""


def port_of(rule: Port, address: int) -> int:
    """Return the port that the rule gives for a replica whose own port is `address`."""
    return rule if isinstance(rule, int) else address + int(rule.removeprefix("+"))


class _Place(NamedTuple):
    """The address of an engine's events and replays."""

    host: str
    port: int
    replay_port: int | None

    @property
    def is_there(self) -> bool:
        return bool(self.host) and max(self.port, self.replay_port or 0) <= _MOST_PORT


class KvEvents:
    """The KV events of one pool. `adopt` and `offer` may be called at any time; `run` subscribes."""

    def __init__(
        self,
        pool: str,
        *,
        port: Port,
        replay_port: Port | None,
        index: PrefixIndex,
        tokenize: Tokenize,
        observer: KvObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        limits: KvLimits = KvLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._pool = pool
        self._port = port
        self._replay_port = replay_port
        self._observer = observer or KvObserver()
        self._sleep = sleep
        self._limits = limits
        self.chains = Chains(index, limits.chains)
        self._sampling = Sampling(
            self.chains, tokenize, counted=self._sampled, limits=limits.samples, clock=clock, sleep=sleep
        )
        self._followers: dict[str, tuple[_Place, Follower]] = {}
        self._passed_over: dict[str, str] = {}
        """Reasons by name, for the replicas without a subscription."""
        self._listening: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._absent = False

    def adopt(self, addresses: Iterable[Address]) -> None:
        """Replace the pool's members. A changed address means another engine."""
        told = tuple(addresses)
        found = {each.name: self._place_of(each) for each in told}
        ranks = {each.name: each.engine_rank for each in told}
        places = dict(sorted(found.items())[: self._limits.most_replicas])
        times = Counter(places.values())
        self._passed_over = {name: _SHARED for name, place in places.items() if times[place] > 1}
        self._passed_over |= {name: _NO_PORT for name, place in places.items() if not place.is_there}
        for name in self._passed_over:
            del places[name]
        for name in [name for name, (place, _) in self._followers.items() if places.get(name) != place]:
            del self._followers[name]
            self.chains.forget(name)
        self.chains.adopt(places)
        for name, place in places.items():
            if name not in self._followers:
                replay = None if place.replay_port is None else _ReplayRequester(self, place.host, place.replay_port)
                follower = Follower(name, self.chains, self._count, replay, rank=ranks[name])
                self._followers[name] = (place, follower)
        self._changed.set()

    def _place_of(self, address: Address) -> _Place:
        parts = urlsplit(address.url)
        own = parts.port or (443 if parts.scheme == "https" else 80)
        # Each data-parallel rank binds ports that lie so much above the configured ones.
        rank = address.engine_rank or 0
        replay = None if self._replay_port is None else port_of(self._replay_port, own) + rank
        return _Place(parts.hostname or "", port_of(self._port, own) + rank, replay)

    def restarted(self, name: str) -> None:
        """Forget the known blocks of a replica whose process was replaced: its cache is empty."""
        self.chains.cleared(name)

    def offer(self, sample: Sample) -> None:
        """Offer a prompt whose first token came for tokenizing; most need none, or are passed over."""
        if not self._absent and sample.replica in self._followers:
            self._sampling.offer(sample)

    def states(self) -> Mapping[str, KvState]:
        """Return the state of each replica's subscription, by name."""
        if self._absent:
            return {name: KvState(state="absent", why=_ABSENT) for name in self._followers}
        told = {name: follower.state for name, (_, follower) in self._followers.items()}
        return told | {name: KvState(state="absent", why=why) for name, why in self._passed_over.items()}

    async def run(self) -> None:
        """Subscribe until it is cancelled; returns at once without pyzmq."""
        try:
            import zmq.asyncio  # noqa: PLC0415 - an extra that need not be there
        except ImportError:
            self._absent = True
            _log.warning("pool %s: %s", self._pool, _ABSENT)
            return
        self._context = zmq.asyncio.Context()
        self._context.set(zmq.MAX_SOCKETS, max(1_023, 4 * self._limits.most_replicas))
        sampling = asyncio.create_task(self._sampling.run(), name=f"kv-samples-{self._pool}")
        try:
            while True:
                self._changed.clear()
                await self._rearrange()
                await self._changed.wait()
        finally:
            await _cancel_all([sampling, *self._listening.values()])
            self._listening.clear()
            self._context.destroy(linger=0)

    async def _rearrange(self) -> None:
        """Start and stop tasks so that each follower has one; a replica that left and came again has another
        follower.
        """
        followers = {id(follower): (place, follower) for place, follower in self._followers.values()}
        await _cancel_all([self._listening.pop(each) for each in self._listening.keys() - followers.keys()])
        for each, (place, follower) in followers.items():
            if each not in self._listening:
                self._listening[each] = asyncio.create_task(
                    self._listen(place, follower), name=f"kv-events-{place.host}:{place.port}"
                )

    async def _listen(self, place: _Place, follower: Follower) -> None:
        while True:
            try:
                await self._listen_once(place, follower)
            except Exception as failure:  # noqa: BLE001 - one engine's nonsense must not end the loop
                if follower.state.why != repr(failure)[:200]:
                    follower.state.why = repr(failure)[:200]
                    _log.exception("pool %s: the KV events of %s:%d", self._pool, place.host, place.port)
            follower.lost()
            await self._sleep(self._limits.again_s)

    async def _listen_once(self, place: _Place, follower: Follower) -> None:
        """Read until the connection is lost. Then the socket is closed with the messages in it, which are the old
        engine's.
        """
        import zmq  # noqa: PLC0415 - see `run`

        with self._socket(zmq.SUB, self._limits.queue) as socket:
            socket.subscribe(b"")
            monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            reading: asyncio.Task[None] | None = None
            try:
                socket.connect(_endpoint(place.host, place.port))
                reading = asyncio.create_task(_pump(socket, follower))
                lost = asyncio.ensure_future(monitor.recv_multipart())
                await asyncio.wait((reading, lost), return_when=asyncio.FIRST_COMPLETED)
                lost.cancel()
                if reading.done():
                    reading.result()
            finally:
                if reading is not None:
                    await _cancel_all([reading])
                socket.disable_monitor()

    @contextlib.contextmanager
    def _socket(self, kind: int, queue: int) -> Iterator["zmq.asyncio.Socket"]:
        import zmq  # noqa: PLC0415 - see `run`

        socket = self._context.socket(kind)
        try:
            for option, value in (
                (zmq.LINGER, 0),
                (zmq.IPV6, 1),
                (zmq.RCVHWM, queue),
                (zmq.MAXMSGSIZE, self._limits.message_bytes),
                (zmq.RECONNECT_IVL, _SECOND_MS // 10),
                (zmq.RECONNECT_IVL_MAX, 5 * _SECOND_MS),
                (zmq.HEARTBEAT_IVL, 5 * _SECOND_MS),
                (zmq.HEARTBEAT_TIMEOUT, 15 * _SECOND_MS),
            ):
                socket.set(option, value)
            yield socket
        finally:
            socket.close(linger=0)

    async def replay(self, host: str, port: int, start: int) -> AsyncGenerator[Sequence[bytes], None]:
        """Yield the messages that the engine remembers, from a number on."""
        import zmq  # noqa: PLC0415 - see `run`

        with self._socket(zmq.DEALER, self._limits.replayed) as socket:
            socket.connect(_endpoint(host, port))
            await socket.send_multipart([b"", start.to_bytes(_SEQUENCE_BYTES, "big")])
            while True:
                frames = await socket.recv_multipart()
                yield frames[1:]

    def _count(self, result: KvResult, count: int = 1) -> None:
        self._observer.count_kv(self._pool, result, count)

    def _sampled(self, result: SampleResult) -> None:
        self._count("busy" if result == "passed_over" else result)


class _ReplayRequester:
    """The requester of replays from one engine."""

    def __init__(self, events: KvEvents, host: str, port: int) -> None:
        self._events = events
        self._host = host
        self._port = port

    def __call__(self, start: int) -> AsyncGenerator[Sequence[bytes], None]:
        return self._events.replay(self._host, self._port, start)


_ABSENT: Final = (
    "KV events are configured, and pyzmq is not installed (pip install 'weighbridge[kv-events]'); what engines have cached "
    "is inferred"
)


_NO_PORT: Final = (
    "`kv_events_port` or `kv_replay_port` is beyond the last port there is, counted from the replica's own"
)
_SHARED: Final = (
    "several replicas would have one address for their KV events; with `kv_events_port: +1000` each has its own, so much "
    "above its port"
)


async def _pump(socket: "zmq.asyncio.Socket", follower: Follower) -> None:
    while True:
        await follower.live(await socket.recv_multipart())
        # A socket with queued messages never suspends, which would starve other tasks.
        await asyncio.sleep(0)


async def _cancel_all(tasks: Iterable["asyncio.Task[None]"]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _endpoint(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
