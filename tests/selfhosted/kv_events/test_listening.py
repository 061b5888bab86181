"""A real publisher over ZeroMQ: events in order, gaps, replays, restarts, nonsense, and what becomes of the index."""

import asyncio
import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from selfhosted.balance.index import PrefixIndex
from selfhosted.kv_events.listening import KvEvents, KvLimits, port_of
from selfhosted.kv_events.sampling import Sample, SampleLimits, TokenizeFailed
from selfhosted.kv_events.subscriber import KvObserver, KvResult
from selfhosted.replica import Address
from tests.selfhosted.kv_events.engine import Cache, Publisher, payload, publishing

PROMPT = list(range(64))
TEXTS = tuple(range(1_000, 1_016))
"""Of four tokens each, as the engine's blocks."""


class Observer(KvObserver):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count_kv(self, pool: str, result: KvResult, count: int = 1) -> None:
        self.counts[result] += count


async def no_tokens(url: str, body: bytes) -> Sequence[int]:
    raise TokenizeFailed


async def the_prompt(url: str, body: bytes) -> Sequence[int]:
    return PROMPT


class Listening:
    """One replica that is listened to."""

    def __init__(self, publisher: Publisher, events: KvEvents, index: PrefixIndex, observer: Observer) -> None:
        self.publisher = publisher
        self.events = events
        self.index = index
        self.counts = observer.counts
        self.cache = Cache(32)

    async def serve(self, tokens: Sequence[int], *, is_lost: bool = False) -> None:
        self.cache.serve(tokens)
        await self.publisher.publish(self.cache.take(), is_lost=is_lost)

    async def connected(self) -> None:
        """What is published before a subscriber is there goes nowhere: until one hears something."""
        before = self.counts["batch"]
        await self.until(lambda: self.counts["batch"] > before, lambda: self.publisher.publish([]))

    async def until(
        self, is_so: Callable[[], bool], act: Callable[[], Awaitable[None]] | None = None, times: int = 1_000
    ) -> None:
        for _ in range(times):
            if is_so():
                return
            if act is not None:
                await act()
            await asyncio.sleep(0.01)
        raise AssertionError(f"it never came: {dict(self.counts)} {self.events.states()}")

    def credited(self) -> int:
        return len(self.events.chains.credited("r"))

    async def learned(self) -> None:
        """PROMPT is served, and its tokens are known."""
        await self.serve(PROMPT)
        await self.until(lambda: self.events.chains.held("r") >= 16)
        assert self.events.chains.learn("r", PROMPT, TEXTS, [4.0 * at for at in range(1, 17)]) == 16
        assert self.credited() == 16


@contextlib.asynccontextmanager
async def listening(
    *, has_replay: bool = False, is_old: bool = False, message_bytes: int = 100_000, tokenize: object = no_tokens
) -> AsyncIterator[Listening]:
    async with publishing(is_old=is_old) as publisher:
        index, observer = PrefixIndex(10_000), Observer()
        events = KvEvents(
            "pool",
            port=publisher.port,
            replay_port=publisher.replay_port if has_replay else None,
            index=index,
            tokenize=tokenize,  # type: ignore[arg-type]
            observer=observer,
            limits=KvLimits(
                message_bytes=message_bytes, again_s=0.01, samples=SampleLimits(settle_s=0.0, per_s=1_000.0)
            ),
        )
        events.adopt([address("r")])
        running = asyncio.create_task(events.run())
        try:
            yield Listening(publisher, events, index, observer)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def address(name: str, url: str = "http://127.0.0.1:8101") -> Address:
    return Address(pool="pool", name=name, url=url, kind="vllm", source="configured")


async def test_events_move_the_index() -> None:
    """What is stored is credited, what is removed is not any more, and a cleared cache holds nothing."""
    async with listening() as found:
        await found.connected()
        await found.learned()
        assert found.index.depths(TEXTS) == {"r": 16}
        await found.serve(list(range(500, 600)))
        await found.until(lambda: found.credited() == 7)
        assert found.index.depths(TEXTS) == {"r": 7}
        found.cache.clear()
        await found.publisher.publish(found.cache.take())
        await found.until(lambda: found.index.held("r") == 0)
        assert found.counts["removed"] == 9
        assert found.events.states()["r"].state == "live"


async def test_a_gap_without_a_replay() -> None:
    """Something was missed: of what the engine told nothing is believed any more, and what comes next is."""
    async with listening() as found:
        await found.connected()
        await found.learned()
        await found.serve(list(range(500, 532)), is_lost=True)
        await found.serve(list(range(600, 608)))
        await found.until(lambda: found.counts["dropped"] == 1)
        assert (found.credited(), found.index.held("r"), found.events.states()["r"].gaps) == (0, 0, 1)
        await found.until(lambda: found.events.chains.held("r") == 2)


@pytest.mark.parametrize("is_old", [False, True])
async def test_a_gap_with_a_replay(is_old: bool) -> None:
    """What was missed is asked for, and told live meanwhile counts once: nothing is forgotten. The older form too."""
    async with listening(has_replay=True, is_old=is_old) as found:
        await found.connected()
        await found.learned()
        await found.serve(list(range(500, 600)), is_lost=True)
        await found.serve(list(range(600, 608)))
        await found.serve(list(range(700, 708)))
        # Of 32 blocks this one's 16 were used longest ago: 9 went for the lost prompt, the rest for the others.
        await found.until(lambda: found.counts["gap"] == 1 and found.credited() == 3)
        assert found.counts["dropped"] == 0
        assert found.events.chains.held("r") == len(found.cache.held) == 32
        await found.connected()
        assert found.counts["gap"] == 1


async def test_what_came_before_we_listened() -> None:
    """A replay tells it; without one only what begins later is known."""
    async with listening(has_replay=True) as found:
        found.cache.serve(PROMPT)
        await found.publisher.publish(found.cache.take(), is_lost=True)
        await found.connected()
        assert found.events.chains.held("r") == 16
        assert found.counts["gap"] == 0
    async with listening() as found:
        found.cache.serve(PROMPT)
        await found.publisher.publish(found.cache.take(), is_lost=True)
        await found.connected()
        assert (found.events.chains.held("r"), found.counts["gap"]) == (0, 0)


@pytest.mark.parametrize("has_replay", [False, True])
async def test_an_engine_that_is_restarted(has_replay: bool) -> None:
    """Another process at the same address holds nothing, and is followed from its beginning."""
    async with listening(has_replay=has_replay) as found:
        await found.connected()
        await found.learned()
        port, replay_port = found.publisher.port, found.publisher.replay_port
        await found.publisher.stop()
        await found.until(lambda: found.credited() == 0)
        assert found.events.states()["r"].state == "waiting"
        found.publisher._sequence, found.publisher.buffer = 0, []
        await found.publisher.start(port, replay_port)
        found.cache = Cache(32)
        await found.connected()
        await found.serve(PROMPT)
        await found.until(lambda: found.credited() == 16)
        assert found.events.states()["r"].restarts == 1


async def test_a_number_that_begins_again() -> None:
    """A publisher that counts from 0 again over the same connection is another engine: also what was inferred goes."""
    async with listening() as found:
        await found.connected()
        await found.learned()
        found.index.store("r", (1, 2, 3))
        found.publisher._sequence = 0
        await found.publisher.publish([])
        await found.until(lambda: found.counts["restart"] == 1)
        assert found.index.held("r") == 0


async def test_nonsense() -> None:
    """Messages that cannot be read are counted; one in the sequence may have told of anything, so nothing is believed."""
    async with listening() as found:
        await found.connected()
        await found.learned()
        for frames in ([b"kv"], [b"kv", b"1", b"x"], [b"a", b"b", b"c", b"d", b"e"]):
            await found.publisher.send(frames)
        await found.until(lambda: found.counts["garbage"] == 3)
        assert found.credited() == 16
        await found.publisher.publish_raw(b"\xc1\xff nonsense")
        await found.until(lambda: found.counts["garbage"] == 4)
        await found.until(lambda: found.credited() == 0)
        await found.connected()


async def test_a_huge_message() -> None:
    """A message beyond the limit is not taken into memory: its connection goes, and the next one is listened to."""
    async with listening(message_bytes=20_000) as found:
        await found.connected()
        await found.learned()
        await found.publisher.publish_raw(b"\x00" * 200_000)
        await found.until(lambda: found.credited() == 0)
        await found.connected()
        await found.serve(list(range(900, 932)))
        await found.until(lambda: found.events.chains.held("r") >= 8)


async def test_samples_are_asked_for_and_learned() -> None:
    """A prompt whose first token came is asked for, once, and then both replicas' events say who has it."""
    async with listening(tokenize=the_prompt) as found:
        await found.connected()
        await found.serve(PROMPT)
        await found.until(lambda: found.events.chains.held("r") == 16)
        sample = Sample(
            replica="r",
            url="http://127.0.0.1:8101",
            blocks=TEXTS,
            block_bytes=16,
            rendered_bytes=256,
            body=lambda: b"{}",
        )
        found.events.offer(sample)
        await found.until(lambda: found.counts["learned"] == 1)
        assert found.index.depths(TEXTS) == {"r": 16}
        found.events.offer(sample)
        assert found.counts["known"] == 1


async def test_replicas_come_and_go() -> None:
    """Who left is not listened to; two that would have one address for their events are not told apart, and told so."""
    async with listening() as found:
        await found.connected()
        await found.learned()
        found.events.adopt([address("r"), address("s", "http://127.0.0.1:8102")])
        states = found.events.states()
        assert {each.state for each in states.values()} == {"absent"}
        assert "+1000" in states["s"].why
        assert found.index.held("r") == 0
        found.events.adopt([address("s", "http://127.0.0.1:8102")])
        await found.connected()
        assert list(found.events.states()) == ["s"]
        found.events.adopt([])
        assert found.events.states() == {}


@pytest.mark.parametrize(
    ("rule", "own", "port"), [(5557, 8101, 5557), ("+1000", 8101, 9101), ("+1", 443, 444), (1, 8101, 1)]
)
def test_ports(rule: int | str, own: int, port: int) -> None:
    """A port is one, or stands so much above the replica's own."""
    assert port_of(rule, own) == port


async def test_a_port_that_cannot_be() -> None:
    """A replica whose port would be beyond all ports is not listened to, and told so."""
    events = KvEvents("pool", port="+60000", replay_port=None, index=PrefixIndex(1_000), tokenize=no_tokens)
    events.adopt([address("r", "http://127.0.0.1:9000"), address("s", "http://127.0.0.1:5000")])
    assert {name: each.state for name, each in events.states().items()} == {"r": "absent", "s": "waiting"}
    assert "beyond the last port" in events.states()["r"].why


def test_without_pyzmq() -> None:
    """Where the extra is not installed a pool is served all the same: one warning, and a state that says what to do."""
    program = """
import asyncio, logging, sys
sys.modules["zmq"] = None
logging.basicConfig()
from selfhosted.balance.index import PrefixIndex
from selfhosted.kv_events.listening import KvEvents
from selfhosted.replica import Address
events = KvEvents("h100", port=5557, replay_port=None, index=PrefixIndex(1_000), tokenize=None)
events.adopt([Address(pool="h100", name="r", url="http://h:1", kind="vllm", source="configured")])
asyncio.run(events.run())
print(events.states()["r"].state)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == "absent"
    assert ended.stderr.count("weighbridge[kv-events]") == 1


def test_payloads_are_as_vllm_packs_them() -> None:
    """The test's own batches are small arrays that begin with a time, as vLLM's are."""
    assert payload([])[:2] == b"\x93\xcb"
