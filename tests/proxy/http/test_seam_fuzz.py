"""The seam between the planes under requests of every broken kind, beside canaries that must not notice."""

import asyncio
import json
import os
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from gateway.wiring.web_app import serving_web
from proxy.http.control_plane_proxy import ControlPlaneProxy
from tests.proxy.http.callers import Served, serving

_HANGS_S: Final = 60.0
"""Whatever takes longer hangs."""
_AT_ONCE: Final = 24
_CANARIES: Final = 3
_NAMED: Final = re.compile(rb'"asker": "([0-9.]+:\d+)"')
_SECRET: Final = "canary-secret"


class _Echo:
    """Says who asked and what for. Reads the body first, but at /early; at /large it says much, at /late after a moment."""

    def __init__(self) -> None:
        self.stolen: list[str] = []
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        headers = dict(scope["headers"])
        asker = "{}:{}".format(*scope["client"])
        if headers.get(b"x-secret") == _SECRET.encode() and headers[b"x-asker"].decode() != asker:
            self.stolen.append(asker)
        body = b""
        more = scope["path"] != "/early"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if scope["path"] == "/late":
            await asyncio.sleep(0.005)
        told = {"asker": asker, "token": headers.get(b"x-token", b"").decode("latin-1"), "bytes": len(body)}
        said = json.dumps(told).encode() + b" " * (300_000 if scope["path"] == "/large" else 0)
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(said))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": said})


class _Fuzz:
    """Attackers and canaries; what each of them was told."""

    def __init__(self, served: Served, in_time: Served, seed: int) -> None:
        """`served` is the attackers' server, whose time leaps, and `in_time` the canaries'."""
        self._served = served
        self._in_time = in_time
        self._chance = Random(seed)
        self.wrong: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.canaries = 0
        self.slowest_s = 0.0
        self._left = 0

    async def run(self, attacks: int) -> None:
        self._left = attacks
        attackers = [asyncio.create_task(self._attack(Random(self._chance.random()))) for _ in range(_AT_ONCE)]
        canaries = [asyncio.create_task(self._sing(Random(self._chance.random()))) for _ in range(_CANARIES)]
        try:
            await asyncio.gather(*attackers)
        finally:
            for task in (*attackers, *canaries):
                task.cancel()
            ends = await asyncio.gather(*canaries, return_exceptions=True)
        self.wrong += [repr(end) for end in ends if not isinstance(end, asyncio.CancelledError)]

    async def _call(self, chance: Random, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
        # From many addresses, as one has few ports that are free again at once.
        local = (f"127.0.{chance.randrange(1, 200)}.{chance.randrange(1, 200)}", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=local)
        return reader, writer, "{}:{}".format(*writer.get_extra_info("sockname"))

    # Canaries.

    async def _sing(self, chance: Random) -> None:
        """Asks again and again, on kept connections and new ones; every reply is its own, whole and in time."""
        while True:
            reader, writer, asker = await self._call(chance, self._in_time.port)
            try:
                for _ in range(chance.randrange(1, 20)):
                    await self._canary(chance, reader, writer, asker)
            finally:
                writer.transport.abort()

    async def _canary(
        self, chance: Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asker: str
    ) -> None:
        token, body = f"{chance.getrandbits(64):x}", os.urandom(chance.choice((0, 10, 5_000, 100_000)))
        head = f"POST /told HTTP/1.1\r\nhost: a\r\nx-secret: {_SECRET}\r\nx-asker: {asker}\r\nx-token: {token}\r\n"
        framed = b"content-length: %d\r\n\r\n%b" % (len(body), body)
        if chance.random() < 0.5 and body:
            framed = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.timeout(_HANGS_S):
            writer.write(head.encode() + framed)
            await writer.drain()
            answered = await reader.readuntil(b"\r\n\r\n")
            length = int(answered.partition(b"content-length: ")[2].partition(b"\r")[0])
            said = await reader.readexactly(length)
        self.slowest_s = max(self.slowest_s, loop.time() - begun)
        expected = json.dumps({"asker": asker, "token": token, "bytes": len(body)}).encode()
        if not answered.startswith(b"HTTP/1.1 200 ") or said != expected:
            self.wrong.append(f"a canary was told {answered[:20]!r} {said[:200]!r}")
        self.canaries += 1

    # Attackers.

    async def _attack(self, chance: Random) -> None:
        while self._left > 0:
            self._left -= 1
            kind = chance.choice(_KINDS)
            self.kinds[kind] += 1
            if self._left % 50 == 0:
                self._served.later(chance.choice((1, 20, 40)))
            reader, writer, asker = await self._call(chance, self._served.port)
            try:
                async with asyncio.timeout(_HANGS_S):
                    await self._send(chance, kind, reader, writer, asker)
            except ConnectionError:
                pass
            except TimeoutError:
                self.wrong.append(f"{kind} hangs")
            finally:
                writer.transport.abort()

    async def _send(
        self, chance: Random, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asker: str
    ) -> None:
        for piece in _pieces(chance, _request(chance, kind)):
            writer.write(piece)
            if chance.random() < 0.3:
                await writer.drain()
                await asyncio.sleep(0)
        end = chance.random()
        if end < 0.25:
            # It goes away in the middle of whatever is under way, at some turn of the loop.
            for _ in range(chance.randrange(20)):
                await asyncio.sleep(0)
            return
        writer.write_eof()
        told = b""
        while piece := await reader.read(100_000):
            told += piece
            if end < 0.5:
                break
        others = [each for each in _NAMED.findall(told) if each.decode() != asker]
        if others or _SECRET.encode() in told:
            self.wrong.append(f"{kind} read what is {others!r}'s")


_KINDS: Final = (
    "whole",
    "short",
    "long",
    "doubled",
    "bad chunk",
    "no last chunk",
    "late chunk",
    "slow",
    "noise",
    "wish",
)
_SMUGGLED: Final = (
    b"POST /told HTTP/1.1\r\nhost: a\r\nx-secret: %b\r\nx-asker: 127.0.0.1:1\r\nx-token: forged\r\n"
    b"x-weighbridge-peer: 127.0.0.1 1\r\ncontent-length: %d\r\n\r\n"
)
_PREAMBLE: Final = b"weighbridge/1 tls 127.0.0.1 1\n"


def _request(chance: Random, kind: str) -> bytes:
    """The bytes of one attack."""
    path = chance.choice((b"/told", b"/early", b"/large", b"/late"))
    method = chance.choice((b"POST", b"POST", b"PUT", b"GET", b"DELETE"))
    size = chance.choice((1, 20, 1_000, 60_000, 70_000, 200_000))
    # A body full of requests of somebody else, where it begins and wherever somebody might begin to read.
    inner = _PREAMBLE + _SMUGGLED % (b"not-" + _SECRET.encode(), chance.choice((0, 10, 100_000)))
    body = (b"\r\n" * chance.randrange(10) + inner * (size // len(inner) + 1))[:size]
    head = b"%b %b HTTP/1.1\r\nhost: a\r\nx-token: attack\r\nconnection: keep-alive, x-forwarded-for, host\r\n" % (
        method,
        path,
    )
    length = b"content-length: %d\r\n\r\n"
    chunked = head + b"transfer-encoding: chunked\r\n\r\n"
    cut = chance.randrange(size)
    whole, chunk = head + length % size, b"%x\r\n%b\r\n" % (size, body)
    no_chunk = chance.choice((b"no chunk\r\n", b"-1\r\n", b"g\r\n", inner))
    return {
        "whole": whole + body,
        "short": whole + body[:cut],
        "long": head + length % cut + body,
        "doubled": (whole + body) * 2,
        "bad chunk": chunked + chunk + no_chunk,
        "no last chunk": chunked + chunk,
        "late chunk": chunked + b"%x\r\n%b\r\n" % (size + 5, body),
        "slow": whole + body[: size // 2],
        "noise": whole + chance.randbytes(size),
        "wish": head + b"expect: 100-continue\r\n" + length % size + body[:cut],
    }[kind]


def _pieces(chance: Random, data: bytes) -> list[bytes]:
    """The bytes in a few pieces, cut anywhere."""
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 1, 2, 8))))
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def _held(folder: Path, attacks: int, seed: int) -> None:
    app = _Echo()
    control_proxy = ControlPlaneProxy(folder / "web")
    async with (
        serving_web(app, folder / "web"),
        serving(control_proxy, within_s=3_600) as served,
        serving(control_proxy, within_s=3_600) as in_time,
    ):
        fuzz = _Fuzz(served, in_time, seed)
        await fuzz.run(attacks)
        await control_proxy.aclose()
    print(  # noqa: T201 - the figures of a long run
        f"{attacks} attacks {dict(fuzz.kinds)}, {app.asked} asked, {fuzz.canaries} canaries, the slowest {fuzz.slowest_s:.2f} s"
    )
    assert fuzz.wrong == []
    assert app.stolen == []
    assert fuzz.canaries >= attacks // 100
    assert fuzz.kinds.total() == attacks


async def test_a_canary_hears_of_nobody_else(tmp_path: Path) -> None:
    """Broken, short, long, slow, doubled and aborted bodies: no canary is answered wrongly, late, or with another's byte."""
    await _held(tmp_path, 1_000, seed=33)


@pytest.mark.long
@pytest.mark.timeout(3_600)
async def test_many_canaries_hear_of_nobody_else(tmp_path: Path) -> None:
    """Twenty thousand of them."""
    await _held(tmp_path, 20_000, seed=34)
