"""Callers of batches, and what must hold of batches in the end."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.caller import Caller
from api.batches.submitting import Submission, submitted
from api.batches.tier import asking, owner_of
from gateway.wiring.batch import open_batch_tier
from proxy.batch.batch import ENDED, LineState
from proxy.batch.batch_errors import BatchUnavailable
from proxy.batch.lines import request_id
from proxy.errors import Refused
from tests.simulation.gateways import Installation, Lines
from tests.simulation.plan import Order
from tests.simulation.story import Story
from tests.simulation.upstream import WORD, Call

Rows = Sequence[Mapping[str, Any]]
_FIRST_NONCE: Final = 10_000
"""Of a line's request; callers' have smaller ones."""
_MOST_LINES: Final = 100
_MOST_LINE_BYTES: Final = 100_000
_CANCELS: Final = 5
_SLACK_US: Final = 300_000_000
"""After its deadline, in which a batch has to end: its last lines' answers, and a look or two."""


class Ordered(msgspec.Struct):
    """A batch that a caller was told of."""

    order: Order
    number: int
    batch_id: str = ""
    cancelled: bool = False


def nonce_of(order: int, line: int) -> int:
    """Return what tells a line of an order; lines count from 1."""
    return _FIRST_NONCE + order * _MOST_LINES + line


async def order(made: Ordered, lines: Lines, caller: Caller, story: Story) -> None:
    """Make a batch, as the route does."""
    body = b"".join(
        json.dumps(
            {
                "custom_id": f"line-{made.number}-{at}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": model,
                    "max_tokens": most,
                    "messages": [{"role": "user", "content": f"n{nonce_of(made.number, at)}q please answer"}],
                },
            }
        ).encode()
        + b"\n"
        for at, (model, most) in enumerate(made.order.lines, start=1)
    )
    submission = Submission(endpoint="/v1/chat/completions", completion_window=made.order.window)
    try:
        batch, _ = await submitted(lines.tier, caller, submission, body, max_line_bytes=_MOST_LINE_BYTES)
    except Refused as error:
        story.tell("batches", "refused", order=made.number, code=type(error).__name__)
        return
    made.batch_id = batch.batch_id
    story.tell("batches", "made", order=made.number, batch=batch.batch_id, lines=len(made.order.lines))


async def cancel(made: Ordered, lines: Lines, caller: Caller, story: Story) -> None:
    """Cancel a batch, as the route does, until it is known what became of it."""
    for _ in range(_CANCELS):
        try:
            async with asking():
                found = await lines.tier.batches.cancel(owner_of(caller), made.batch_id)
        except BatchUnavailable:
            await asyncio.sleep(1.0)
            continue
        except Refused as error:
            story.tell("batches", "not cancelled", batch=made.batch_id, code=type(error).__name__)
            return
        made.cancelled = True
        story.tell("batches", "cancelled", batch=made.batch_id, status=found.status)
        return


async def left(engine: AsyncEngine) -> int:
    """Return the number of batches that have not ended, here and at providers."""
    query = (
        "SELECT (SELECT count(*) FROM batch WHERE status NOT IN ('failed', 'completed', 'expired', 'cancelled'))"
        " + (SELECT count(*) FROM handed_batch WHERE state != 'ended')"
    )
    async with engine.connect() as connection:
        return int(await connection.scalar(text(query)) or 0)


async def _rows(engine: AsyncEngine, table: str) -> list[dict[str, Any]]:
    async with engine.connect() as connection:
        found = await connection.execute(text(f"SELECT * FROM {table} ORDER BY rowid"))  # noqa: S608
        return [dict(row) for row in found.mappings()]


async def name_calls(engine: AsyncEngine, calls: Iterable[Call]) -> None:
    """Name the calls of providers' batches by the ids under which the ledger has them."""
    batches = {row["batch_id"]: row for row in await _rows(engine, "batch")}
    of = {row["handed_id"]: batches[row["batch_id"]] for row in await _rows(engine, "handed_batch")}
    for call in calls:
        if call.batch:
            _, number, generation = call.custom_id.split("-")
            line = SimpleNamespace(number=int(number), generation=int(generation))
            call.request_id = request_id(SimpleNamespace(**of[call.batch]), line)  # type: ignore[arg-type]


class Checks:
    """What must hold of a seed's batches."""

    def __init__(
        self, installation: Installation, engine: AsyncEngine, story: Story, rows: Rows, calls: Sequence[Call]
    ) -> None:
        tier = open_batch_tier(engine, installation.config, installation.environment.places, lambda: None)  # type: ignore[arg-type,return-value]  # Nothing is planned.
        assert tier is not None
        self._files = tier.files
        self._engine = engine
        self._story = story
        self._calls = calls
        self._costs: Counter[str] = Counter()
        self._unknown: set[str] = set()
        self._asks_later = False
        for row in rows:
            if row["entry"] != "reserve":
                self._costs[row["request_id"]] += row["cost_nanousd"] or 0
                if "orphaned" in (row["flags"] or ""):
                    self._unknown.add(row["request_id"])

    async def check(self, ordered: Iterable[Ordered], calm_us: int, stepped_until_us: int) -> None:
        """Check all of them; troubles ended at `calm_us`. It is `stepped_until_us` now by a clock that was stepped, and 0 by one that was not."""
        batches = {row["batch_id"]: row for row in await _rows(self._engine, "batch")}
        lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in await _rows(self._engine, "batch_line"):
            lines[row["batch_id"]].append(row)
        self._callers_were_told_right(ordered, batches)
        for row in await _rows(self._engine, "handed_batch"):
            if row["state"] == "forgetting" and 0 < stepped_until_us < row["look_us"]:
                # It asks again after a part of its batch's age, which a clock that went ahead has made longer.
                self._asks_later = True
            elif row["state"] != "ended":
                self._broken("a batch at a provider comes to its end", handed=row["handed_id"], state=row["state"])
        for batch in batches.values():
            self._story.tell("batches", batch["status"], batch=batch["batch_id"], completed=batch["completed"])
            self._ends_in_time(batch, calm_us)
            if batch["status"] not in ENDED:
                self._broken("a batch comes to its end", batch=batch["batch_id"], status=batch["status"])
            elif batch["status"] == "failed":
                if any(line["generation"] for line in lines[batch["batch_id"]]):
                    self._broken("of a batch that failed nothing is asked", batch=batch["batch_id"])
            else:
                await self._lines_have_one_result(batch, lines[batch["batch_id"]])

    def _callers_were_told_right(self, ordered: Iterable[Ordered], batches: Mapping[str, Mapping[str, Any]]) -> None:
        for each in ordered:
            if each.batch_id and each.batch_id not in batches:
                self._broken("what a caller was told of is there", batch=each.batch_id)
            elif each.cancelled and batches[each.batch_id]["status"] != "cancelled":
                self._broken("what was cancelled is", batch=each.batch_id, status=batches[each.batch_id]["status"])

    def nothing_stays(self, provider: str, files: Sequence[str]) -> None:
        """Prompts and answers belong to callers."""
        if files and not self._asks_later:
            self._broken("nothing of a batch stays at a provider", provider=provider, files=list(files))

    def _broken(self, invariant: str, **facts: Any) -> None:
        self._story.violate(invariant, **facts)

    def _ends_in_time(self, batch: Mapping[str, Any], calm_us: int) -> None:
        ended_us = max(batch[f"{name}_us"] or 0 for name in ENDED)
        if batch["expires_us"] is not None and ended_us > max(batch["expires_us"], calm_us) + _SLACK_US:
            late_s = (ended_us - batch["expires_us"]) / 1_000_000
            self._broken("a batch ends in its time", batch=batch["batch_id"], late_s=late_s)

    async def _lines_have_one_result(self, batch: Mapping[str, Any], lines: Rows) -> None:
        batch_id = batch["batch_id"]
        output = [each async for each in self._read(batch["output_file_id"])]
        errors = [each async for each in self._read(batch["error_file_id"])]
        told = Counter(each["custom_id"] for each in (*output, *errors))
        wanted = Counter(line["custom_id"] for line in lines)
        # One that was cancelled while it was validated has perhaps some, and says that it has none.
        if (batch["total"] or told) and (told != wanted or len(lines) != batch["total"]):
            self._broken("each line has one result", batch=batch_id, lines=len(lines), told=told)
        answered = [each for each in (*output, *errors) if each["response"] is not None]
        counted = (batch["completed"], batch["failed"])
        if counted != (len(output), len(answered) - len(output)):
            self._broken("a batch counts its results", batch=batch_id, counted=counted, output=len(output))
        for line in lines:
            if line["state"] in {LineState.WAITING, LineState.RUNNING} and batch["total"]:
                self._broken("a line comes to its end", batch=batch_id, line=line["number"], state=line["state"])
        for each in output:
            self._is_its_own_answer(batch_id, each)
        self._sums_are_right(batch, output, [each["response"]["request_id"] for each in answered])

    def _sums_are_right(self, batch: Mapping[str, Any], output: Rows, ids: Sequence[str]) -> None:
        batch_id = batch["batch_id"]
        for name in ("tokens_left", "reserved_nanousd"):
            if batch[name]:
                self._broken("an ended batch holds nothing", batch=batch_id, what=name, left=batch[name])
        for name, theirs in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
            summed = sum((each["response"]["body"].get("usage") or {}).get(theirs, 0) for each in output)
            # Where a provider tells none, they are estimated, and the answer stays as it was given.
            if batch[name] != summed and all(each["response"]["body"].get("usage") for each in output):
                self._broken("a batch's tokens are its answers'", batch=batch_id, told=batch[name], summed=summed)
        booked = sum(self._costs[each] for each in ids)
        if batch["cost_nanousd"] != booked and not self._unknown.intersection(ids):
            self._broken("a batch costs what is booked", batch=batch_id, told=batch["cost_nanousd"], booked=booked)

    def _is_its_own_answer(self, batch_id: str, told: Mapping[str, Any]) -> None:
        said = told["response"]["body"]["choices"][0]["message"]["content"]
        call = self._calls[int(WORD.findall(said)[0].partition("w")[0][1:])]
        number, line = (int(part) for part in told["custom_id"].split("-")[1:])
        if call.nonce != nonce_of(number, line) or call.text.strip() != said.strip():
            self._broken("a line has its own answer", batch=batch_id, line=told["custom_id"], call=call.number)
        if call.request_id != told["response"]["request_id"]:
            self._broken("an answer is booked as it is told", batch=batch_id, line=told["custom_id"], call=call.number)

    async def _read(self, file_id: str | None) -> AsyncIterator[dict[str, Any]]:
        if file_id is not None:
            whole = b"".join([piece async for piece in self._files.blobs.reading(file_id)])
            for line in whole.splitlines():
                yield json.loads(line)
