"""An hour of batch work beside interactive work on a simulated engine in real time, through a whole gateway.

    make bench-batch-hour, or: python -m benchmarks.batch_hour [--load 0.8] [--piece-tokens 192] [--slower 4]; WB_MINUTES says
how long (60)

The engine is that of the simulated day (`benchmarks.simulated_engine`), the gateway is whole: a worker, a control plane with the batch
tier, a queue before a pool. Interactive streams come by a day's course, pressed into each part. For an eighth of the time they are alone,
then a batch due within the hour is beside them, then they are alone again. Told are first tokens at the 95th percentile, from the
moment at which each request was due; the part of the idle time that was used while lines waited; and when the batch had ended. A run
of less than an hour has less to do, and as long a time for it. Exit status 1 means that a request failed, or a promise was broken.
See docs/batch.md.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.batch_day import (
    CALLERS_ROOM,
    INTERACTIVE_SHARE,
    MEAN_ANSWER,
    MEAN_PROMPT,
    PIECE_TOKENS,
    QUEUE_SHARE,
    Plan,
    callers,
    carried_per_s,
    size,
)
from benchmarks.figures import percentile
from benchmarks.processes import Children, free_port
from benchmarks.simulated_engine import NAME, Done, paced_machine, text_of
from benchmarks.sites import Site, Team, start_site

MINUTES: Final = float(os.environ.get("WB_MINUTES", "60"))
_ALONE: Final = 1 / 8
_TIMEOUT_S: Final = 120.0
_LOOK_S: Final = 1.0
_TELL_S: Final = 60.0
_LAST_LINES: Final = 64
"""With fewer left than run at once, none waits."""
_LATE_S: Final = 600.0
"""Seconds after its part that a batch is waited for."""
_DONE: Final = frozenset({"completed", "failed", "expired", "cancelled"})


class Part(msgspec.Struct):
    """The outcome of one part."""

    first_tokens_s: list[float] = []
    late_s: list[float] = []
    """Lateness of this process itself in sending, in seconds."""
    failed: int = 0
    idle: float = 0.0
    used: float = 0.0


class House:
    """The gateway under load."""

    def __init__(self, session: aiohttp.ClientSession, site: Site, engine_url: str, per_s: float, load: float) -> None:
        self._session = session
        self._site = site
        self._engine_url = engine_url
        self._per_s = per_s
        self._load = load
        self._number = 0
        self.batch: dict[str, Any] | None = None

    def plan(self, minutes: float) -> Plan:
        return Plan(hours=minutes / 60, load=self._load)

    async def part(self, minutes: float) -> Part:
        """Drive interactive work for this many minutes."""
        part, began = Part(), time.monotonic()
        counting = asyncio.create_task(self._count(part))
        async with asyncio.TaskGroup() as asking:
            for at_s, prompt, answer in callers(self.plan(minutes), self._per_s):
                await asyncio.sleep(max(0.0, began + at_s - time.monotonic()))
                asking.create_task(self._ask(part, began + at_s, prompt, answer))
            await asyncio.sleep(max(0.0, began + minutes * 60 - time.monotonic()))
        counting.cancel()
        return part

    async def submit(self, minutes: float) -> None:
        """Submit a batch of what interactive work leaves of the load in so many minutes, due within the hour."""
        plan, draws = self.plan(minutes), random.Random("batch")
        count = round((plan.load - plan.interactive) * self._per_s * minutes * 60)
        sizes = [size(draws) for _ in range(count)]
        lines = [
            {"custom_id": f"q{number}", "method": "POST", "url": "/v1/chat/completions", "body": self._body(*each)}
            for number, each in enumerate(sizes)
        ]
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", b"".join(msgspec.json.encode(each) + b"\n" for each in lines), filename="hour.jsonl")
        file = await self._json(self._session.post(f"{self._site.url}/v1/files", data=form))
        asked = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "1h"}
        self.batch = await self._json(self._session.post(f"{self._site.url}/v1/batches", json=asked))

    async def look(self) -> dict[str, Any]:
        """Return the batch as it is now."""
        assert self.batch is not None
        self.batch = await self._json(self._session.get(f"{self._site.url}/v1/batches/{self.batch['id']}"))
        return self.batch

    def _body(self, prompt: int, answer: int, **more: Any) -> dict[str, Any]:
        self._number += 1
        message = {"role": "user", "content": text_of(self._number, prompt, answer)}
        return {"model": NAME, "max_tokens": MEAN_ANSWER, "messages": [message], **more}

    async def _ask(self, part: Part, due_at: float, prompt: int, answer: int) -> None:
        part.late_s.append(time.monotonic() - due_at)
        body = self._body(prompt, answer, stream=True)
        try:
            async with self._session.post(f"{self._site.url}/v1/chat/completions", json=body) as reply:
                first = 0.0
                async for line in reply.content:
                    if not first and b'"content"' in line:
                        first = time.monotonic()
                if reply.status != 200 or not first:
                    part.failed += 1
                else:
                    part.first_tokens_s.append(first - due_at)
        except (aiohttp.ClientError, TimeoutError):
            part.failed += 1

    async def _count(self, part: Part) -> None:
        """Count second by second the engine's capacity that batches could have used while lines waited, and their
        actual use.
        """
        before, at = await self._done(), time.monotonic()
        began = tell_at = at
        while True:
            await asyncio.sleep(_LOOK_S)
            done, now = await self._done(), time.monotonic()
            if self.batch is not None and self.batch["status"] == "in_progress":
                counts = (await self.look())["request_counts"]
                if counts["total"] - counts["completed"] - counts["failed"] > _LAST_LINES:
                    interactive_done = done.interactive - before.interactive
                    part.idle += max(0.0, (1 - INTERACTIVE_SHARE) * self._per_s * (now - at) - interactive_done)
                    part.used += done.batch - before.batch
                if now >= tell_at:
                    tell_at = now + _TELL_S
                    p95 = percentile(sorted(part.first_tokens_s), 0.95) if part.first_tokens_s else 0.0
                    say(
                        f"{now - began:5.0f} s: {counts['completed']:,} of {counts['total']:,} lines, p95 {p95 * 1000:.0f} ms"
                    )
            elif self.batch is not None and self.batch["status"] == "validating":
                await self.look()
            before, at = done, now

    async def _done(self) -> Done:
        return msgspec.convert(await self._json(self._session.get(f"{self._engine_url}/done")), Done)

    async def _json(self, asking: Any) -> dict[str, Any]:
        async with asking as reply:
            found: dict[str, Any] = await reply.json()
            if reply.status != 200:
                raise RuntimeError(f"{reply.status}: {found}")
            return found


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


async def measured(site: Site, engine_url: str, minutes: float, load: float, slower: float) -> int:
    """Run all parts and print the figures; return the exit status."""
    per_s = carried_per_s(paced_machine(slower))
    say(f"the engine carries {per_s:.1f} requests a second")
    headers = {"authorization": f"Bearer {site.keys['bench']}"}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
        house = House(session, site, engine_url, per_s, load)
        alone = [await house.part(minutes * _ALONE)]
        say("the batch begins")
        await house.submit(minutes)
        began = time.monotonic()
        beside = await house.part(minutes)
        while True:
            batch = await house.look()
            if batch["status"] in _DONE or time.monotonic() - began > minutes * 60 + _LATE_S:
                break
            await asyncio.sleep(1.0)
        alone.append(await house.part(minutes * _ALONE))
    return _told(alone, beside, batch)


def _told(alone: list[Part], beside: Part, batch: dict[str, Any]) -> int:
    quiet = sorted(each for part in alone for each in part.first_tokens_s)
    busy = sorted(beside.first_tokens_s)
    failed = sum(part.failed for part in (*alone, beside))
    p95_s, beside_s = percentile(quiet, 0.95), percentile(busy, 0.95)
    late_s = sorted(each for part in (*alone, beside) for each in part.late_s)
    took_s = (batch["completed_at"] or 0) - batch["created_at"]
    counts = batch["request_counts"]
    print(f"interactive: {len(quiet):,} requests alone, {len(busy):,} beside, {failed} failed")
    print(
        f"first token at the 95th percentile: {p95_s * 1000:.0f} ms alone, {beside_s * 1000:.0f} ms beside: {beside_s / p95_s:.2f}"
    )
    print(f"sent late by this process at the 99th percentile: {percentile(late_s, 0.99) * 1000:.0f} ms")
    used = f"{beside.used / beside.idle:.0%}" if beside.idle else "nothing was idle"
    print(f"idle time used while lines waited: {used} ({beside.used:,.0f} lines)")
    print(
        f"batch: {batch['status']} after {took_s / 60:.1f} minutes, {counts['completed']:,} of {counts['total']:,} lines answered"
    )
    kept = batch["status"] == "completed" and counts["completed"] == counts["total"]
    return 0 if kept and not failed else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--piece-tokens", type=int, default=PIECE_TOKENS)
    parser.add_argument("--slower", type=float, default=1.0, help="steps take so many times as long, on a busy machine")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weighbridge-hour-") as folder:
        children = Children(Path(folder))
        try:
            port = free_port()
            engine = children.start(
                "engine",
                [
                    sys.executable,
                    "-m",
                    "benchmarks.simulated_engine",
                    "--port",
                    str(port),
                    "--slower",
                    str(asked.slower),
                ],
                core=None,
            )
            engine.wait_ready(f"http://127.0.0.1:{port}/health")
            site = start_site(
                children, Path(folder), "gateway", _sections(port, asked.piece_tokens), [Team("bench")], workers=1
            )
            sys.exit(asyncio.run(measured(site, f"http://127.0.0.1:{port}", MINUTES, asked.load, asked.slower)))
        finally:
            children.stop()


def _sections(port: int, piece_tokens: int) -> dict[str, Any]:
    seqs = paced_machine().engine.max_num_seqs
    own = {
        "model_id": NAME,
        "provider": "bench",
        "tier_eligibility": ["interactive", "batch"],
        "prices": {"input": 0.5, "output": 0.5},
        "max_context_tokens": 16_000,
        "capability": 1.0,
    }
    replica = {"name": "one", "url": f"http://127.0.0.1:{port}"}
    pool = {
        "name": "own",
        "targets": [NAME],
        "replicas": [replica],
        "priority_scheduling": True,
        "read_ahead_tokens": piece_tokens,
        "max_num_seqs": seqs,
    }
    queue = {
        "targets": [NAME],
        "tokens_in_flight": round(CALLERS_ROOM * seqs * (MEAN_PROMPT + MEAN_ANSWER)),
        "interactive_share": round(QUEUE_SHARE, 2),
    }
    no_limit = {"requests_per_minute": 100_000_000, "tokens_per_minute": 100_000_000_000}
    return {
        "providers": {"models": [own]},
        "selfhosted": {"pools": [pool]},
        "queues": {"own": queue},
        "limits": {"key": no_limit},
        "classifier": {"enabled": False},
        "batch": {"at_once": seqs},
    }


if __name__ == "__main__":
    main()
