"""Mixed load for a long time on one worker, and whether any of its processes grows.

    make soak-steady, or: python -m benchmarks.steady [--quick] [--json build/steady.json]

WB_MINUTES says how long (60), and WB_PAUSE_S how long each loop rests between two requests (0.01): 0.1 leaves others on the machine some of it.

Callers ask whole answers, streams, responses and messages, name models that are not there, send what is no JSON, and hang up in the
middle of streams, each kind by a few loops of its own. Resident memory and open files of each process are looked at every five
seconds. A process is flat when the median of the last quarter is within 3 % of that of the second; the first quarter fills
caches. Exit status 1 means that a reply was wrong, or a process grew. See docs/benchmarks.md.
"""

import asyncio
import itertools
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks import figures, load_test
from benchmarks.load_test import Stage
from benchmarks.processes import choose_cores, family, rss_bytes
from benchmarks.run import chat_body, start_legs

MINUTES: Final = float(os.environ.get("WB_MINUTES", "60"))
_QUICK_MINUTES: Final = 1.0
_LOOK_S: Final = 5.0
_GROWTH: Final = 1.03
_FILES_MORE: Final = 8
"""Open files that may come and go with connections."""
_LOOPS_EACH: Final = 3
_QUARTERS: Final = 4
_PAUSE_S: Final = float(os.environ.get("WB_PAUSE_S", "0.01"))
_TIMEOUT_S: Final = 30.0


class Look(msgspec.Struct, frozen=True):
    """One process at one moment."""

    at_s: float
    rss_bytes: int
    files: int


class Seen:
    """The gateway's processes as they were seen, by name."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._begun_at = time.monotonic()
        self.looks: dict[str, list[Look]] = {}

    def look(self) -> None:
        now = time.monotonic() - self._begun_at
        for pid in family(self._root):
            name = _name_of(pid)
            if name is not None:
                self.looks.setdefault(name, []).append(Look(now, rss_bytes(pid), _open_files(pid)))


def _name_of(pid: int) -> str | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    for name in ("worker", "control"):
        if f"gateway.process.{name}".encode() in command:
            return name
    return "supervisor"


def _open_files(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0


class Callers:
    """The loops that ask, and what came of it."""

    def __init__(self, session: aiohttp.ClientSession, url: str, until: float) -> None:
        self._session = session
        self._url = url
        self._until = until
        self._number = itertools.count()
        self.done: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()

    async def run(self) -> None:
        kinds = (self.whole, self.stream, self.hung_up, self.responses, self.messages, self.unknown, self.broken)
        await asyncio.gather(*(self._loop(kind) for kind in kinds for _ in range(_LOOPS_EACH)))

    async def _loop(self, kind: Callable[[], Awaitable[bool]]) -> None:
        name = getattr(kind, "__name__", "?")
        while time.monotonic() < self._until:
            try:
                good = await kind()
            except (aiohttp.ClientError, TimeoutError) as error:
                self.wrong[f"{name}: {type(error).__name__}"] += 1
            else:
                self.done[name] += 1
                if not good:
                    self.wrong[name] += 1
            await asyncio.sleep(_PAUSE_S)

    async def whole(self) -> bool:
        return await self._status("/v1/chat/completions", self._body(stream=False)) == 200

    async def stream(self) -> bool:
        async with self._session.post(f"{self._url}/v1/chat/completions", data=self._body(stream=True)) as reply:
            return (await reply.read()).rstrip().endswith(b"data: [DONE]")

    async def hung_up(self) -> bool:
        async with self._session.post(
            f"{self._url}/v1/chat/completions", data=self._body(stream=True, pace=50)
        ) as reply:
            await reply.content.readany()
            reply.close()
            return reply.status == 200

    async def responses(self) -> bool:
        asked = {"model": "auto", "input": f"{next(self._number)}: when does the ferry leave?", "store": True}
        return await self._status("/v1/responses", msgspec.json.encode(asked)) == 200

    async def messages(self) -> bool:
        said = [{"role": "user", "content": f"{next(self._number)}: when does the ferry leave?"}]
        asked = {"model": "auto", "max_tokens": 100, "messages": said}
        return await self._status("/v1/messages", msgspec.json.encode(asked)) == 200

    async def unknown(self) -> bool:
        asked = {"model": f"nobody-{next(self._number)}", "messages": [{"role": "user", "content": "hello"}]}
        return await self._status("/v1/chat/completions", msgspec.json.encode(asked)) == 404

    async def broken(self) -> bool:
        return await self._status("/v1/chat/completions", b'{"model": "auto", "messages": [') == 400

    async def _status(self, path: str, body: bytes) -> int:
        async with self._session.post(f"{self._url}{path}", data=body) as reply:
            await reply.read()
            return reply.status

    def _body(self, *, stream: bool, pace: int = 0) -> bytes:
        body = chat_body(stream=stream, tokens=100 if stream else None, pace=pace)
        return body.replace(b"########", b"%08d" % next(self._number))


def measure(stage: Stage) -> dict[str, Any]:
    """Return the figures of each process, and the number of requests of each kind."""
    minutes = _QUICK_MINUTES if stage.quick else MINUTES
    _, _, gateway = start_legs(stage.children, stage.folder, choose_cores(), relay_only=False)
    if gateway is None or gateway.child is None or gateway.key is None:
        raise RuntimeError("the gateway did not start")
    seen = Seen(gateway.child.process.pid)
    callers = asyncio.run(_drive(stage, seen, gateway.url, gateway.key, minutes))
    stage.problems += [f"{kind} ({count} times)" for kind, count in callers.wrong.items()]
    told = {name: figures_of(looks) for name, looks in seen.looks.items()}
    if not stage.quick:
        stage.problems += [f"the {name} grew: {each}" for name, each in told.items() if not each["flat"]]
    return {"minutes": minutes, "asked": dict(callers.done), "processes": told}


async def _drive(stage: Stage, seen: Seen, url: str, key: str, minutes: float) -> Callers:
    until = time.monotonic() + minutes * 60
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json", "anthropic-version": "2023-06-01"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        callers = Callers(session, url, until)
        asking = asyncio.ensure_future(callers.run())
        while not asking.done():
            seen.look()
            stage.say(f"{sum(callers.done.values()):,} asked; {_now(seen)}")
            await asyncio.wait({asking}, timeout=_LOOK_S)
        await asking
    return callers


def _now(seen: Seen) -> str:
    return ", ".join(f"{name} {looks[-1].rss_bytes / 1e6:.0f} MB" for name, looks in seen.looks.items())


def figures_of(looks: Sequence[Look]) -> dict[str, Any]:
    """Return the medians of the second and of the last quarter, and whether the process stayed as it was."""
    size = max(1, len(looks) // _QUARTERS)
    early, late = looks[size : 2 * size] or looks, looks[-size:]
    early_rss, late_rss = (statistics.median(each.rss_bytes for each in part) for part in (early, late))
    early_files, late_files = (statistics.median(each.files for each in part) for part in (early, late))
    return {
        "early_mb": early_rss / 1e6,
        "late_mb": late_rss / 1e6,
        "most_mb": max(each.rss_bytes for each in looks) / 1e6,
        "early_files": early_files,
        "late_files": late_files,
        "flat": late_rss <= early_rss * _GROWTH and late_files <= early_files + _FILES_MORE,
    }


def show(report: dict[str, Any]) -> None:
    heads = ["process", "second quarter, MB", "last quarter, MB", "most, MB", "files", "files at the end", "flat"]
    rows = [
        [
            name,
            *(f"{each[field]:.1f}" for field in ("early_mb", "late_mb", "most_mb")),
            *(f"{each[field]:.0f}" for field in ("early_files", "late_files")),
            "yes" if each["flat"] else "NO",
        ]
        for name, each in report["processes"].items()
    ]
    print(f"{report['minutes']:g} minutes; {sum(report['asked'].values()):,} requests: {report['asked']}\n")
    print(figures.table(heads, rows))


def main() -> int:
    return load_test.run("steady", __doc__, measure, show)


if __name__ == "__main__":
    sys.exit(main())
