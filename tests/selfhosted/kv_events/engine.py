"""An engine's prefix cache as vLLM has it, and the events that it would publish; with a real publisher's sockets."""

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
import zmq
import zmq.asyncio

END: Final = (-1).to_bytes(8, "big", signed=True)


class Cache:
    """Blocks by hashes that are chained, the least recently used going first, of one prompt its end before its beginning."""

    def __init__(self, blocks: int, block_size: int = 4, *, seed: bytes = b"", is_array: bool = False) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.events: list[Any] = []
        self.held: OrderedDict[bytes, None] = OrderedDict()
        self._seed = seed
        self._is_array = is_array

    def hashes(self, tokens: Sequence[int], salt: str | None = None) -> list[bytes]:
        """Of the prompt's whole blocks."""
        found: list[bytes] = []
        parent = self._seed + (salt or "").encode()
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            parent = hashlib.sha256(parent + repr(tokens[start : start + self.block_size]).encode()).digest()
            found.append(parent)
        return found

    def serve(self, tokens: Sequence[int], salt: str | None = None) -> int:
        """A prompt is computed; returns how many of its tokens were found."""
        hashes = self.hashes(tokens, salt)[: self.blocks]
        hit = next((at for at, each in enumerate(hashes) if each not in self.held), len(hashes))
        for each in reversed(hashes):
            if each in self.held:
                self.held.move_to_end(each)
        fresh = [at for at in range(hit, len(hashes)) if hashes[at] not in self.held]
        while len(self.held) + len(fresh) > self.blocks:
            gone, _ = self.held.popitem(last=False)
            self.tell("BlockRemoved", block_hashes=[gone], medium="GPU", group_idx=0)
        # What was evicted to make room may have been this prompt's own.
        new = [at for at in range(len(hashes)) if hashes[at] not in self.held]
        for at in reversed(new):
            self.held[hashes[at]] = None
        for run in _runs(new):
            self._tell_stored(hashes, tokens, run, salt)
        return hit * self.block_size

    def clear(self) -> None:
        """`/reset_prefix_cache`."""
        self.held.clear()
        self.tell("AllBlocksCleared")

    def take(self) -> list[Any]:
        """The events since the last time."""
        taken, self.events = self.events, []
        return taken

    def tell(self, kind: str, **fields: Any) -> None:
        """One event, in the form of this version."""
        self.events.append([kind, *fields.values()] if self._is_array else {"type": kind, **fields})

    def _tell_stored(self, hashes: list[bytes], tokens: Sequence[int], run: range, salt: str | None) -> None:
        size = self.block_size
        self.tell(
            "BlockStored",
            block_hashes=[hashes[at] for at in run],
            parent_block_hash=hashes[run.start - 1] if run.start else None,
            token_ids=list(tokens[run.start * size : run.stop * size]),
            block_size=size,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            extra_keys=[[salt] if salt and at == 0 else None for at in run],
            group_idx=0,
        )


def _runs(places: Sequence[int]) -> list[range]:
    found: list[range] = []
    for at in places:
        if found and found[-1].stop == at:
            found[-1] = range(found[-1].start, at + 1)
        else:
            found.append(range(at, at + 1))
    return found


def payload(events: list[Any], ts: float = 1.0, *, rank: int = 0) -> bytes:
    """A batch as msgpack."""
    return msgspec.msgpack.encode([ts, events, rank])


class Publisher:
    """vLLM's ZmqEventPublisher: PUB for what happens, ROUTER for what was missed."""

    def __init__(self, context: zmq.asyncio.Context, *, is_old: bool = False) -> None:
        self._context = context
        self._is_old = is_old
        self._sequence = 0
        self.buffer: list[tuple[int, bytes]] = []
        self.port = self.replay_port = 0

    async def start(self, port: int = 0, replay_port: int = 0) -> None:
        """On ports of the system's choice, or on those it had before."""
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        self.port = await _bound(self._pub, port)
        self.replay_port = await _bound(self._router, replay_port)
        self._serving = asyncio.create_task(self._serve())

    async def stop(self) -> None:
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        for socket in (self._pub, self._router):
            socket.close(linger=0)

    async def publish(self, events: list[Any], *, is_lost: bool = False) -> None:
        """A batch; `is_lost`: ZeroMQ dropped it on the way."""
        await self.publish_raw(payload(events), is_lost=is_lost)

    async def publish_raw(self, data: bytes, *, is_lost: bool = False) -> None:
        sequence, self._sequence = self._sequence, self._sequence + 1
        self.buffer.append((sequence, data))
        if not is_lost:
            await self.send([b"kv", sequence.to_bytes(8, "big"), data])

    async def send(self, frames: list[bytes]) -> None:
        await self._pub.send_multipart(frames)

    async def _serve(self) -> None:
        while True:
            who, _, start = await self._router.recv_multipart()
            topic = [] if self._is_old else [b"kv"]
            for sequence, data in self.buffer:
                if sequence >= int.from_bytes(start, "big"):
                    await self._router.send_multipart([who, b"", *topic, sequence.to_bytes(8, "big"), data])
            await self._router.send_multipart([who, b"", *([] if self._is_old else [b""]), END, b""])


async def _bound(socket: "zmq.asyncio.Socket", port: int) -> int:
    if not port:
        found: int = socket.bind_to_random_port("tcp://127.0.0.1")
        return found
    for _ in range(200):
        # The socket that had it goes a moment after it was closed.
        with contextlib.suppress(zmq.ZMQError):
            socket.bind(f"tcp://127.0.0.1:{port}")
            return port
        await asyncio.sleep(0.02)
    raise OSError(f"port {port} is not free")


@contextlib.asynccontextmanager
async def publishing(*, is_old: bool = False) -> AsyncIterator[Publisher]:
    """A publisher, and nothing of it afterwards."""
    context = zmq.asyncio.Context()
    publisher = Publisher(context, is_old=is_old)
    await publisher.start()
    try:
        yield publisher
    finally:
        await publisher.stop()
        context.destroy(linger=0)
