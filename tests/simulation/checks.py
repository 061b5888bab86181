"""What must hold after a seed, whatever happened in it.

Figures are compared with what the providers counted and the callers got, never with what the product says of itself; the one exception is
`cost.ledger.verify`, which is asked beside our own sums.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.segments import journals
from cost.ledger.verify import check
from cost.times import DAY_US, month_of
from tests.simulation.callers import Asked
from tests.simulation.gateways import Installation, Serving
from tests.simulation.plan import INPUT_NANOUSD, OUTPUT_NANOUSD, Plan
from tests.simulation.story import Story
from tests.simulation.upstream import Call

Rows = Sequence[Mapping[str, Any]]
_CLOSED: Final = {"settle", "void", "expire"}


async def ledger_rows(engine: AsyncEngine) -> Rows:
    """Return all entries of attempts, oldest first."""
    async with engine.connect() as connection:
        found = await connection.execute(text("SELECT * FROM ledger_entry ORDER BY rowid"))
        return [dict(row) for row in found.mappings()]


async def books_agree(engine: AsyncEngine, story: Story, rows: Rows) -> None:
    """Roll-ups are the sums of the entries, by the product's own check and by ours."""
    times = [row["at_us"] for row in rows] or [0]
    found = await check(engine, min(times) - DAY_US, max(times) + DAY_US, now_us=max(times))
    if found.differences:
        story.violate("the roll-ups are the sum of the entries", differences=found.differences, first=found.told[0])
    total = sum(row["cost_nanousd"] or 0 for row in rows if row["entry"] != "reserve")
    for table in ("rollup_hour", "rollup_day"):
        async with engine.connect() as connection:
            summed = (await connection.execute(text(f"SELECT SUM(cost_nanousd) FROM {table}"))).scalar()  # noqa: S608
        if (summed or 0) != total:
            story.violate("a roll-up's sum is the ledger's", table=table, ledger=total, rolled_up=summed)


def attempts_are_closed_once(story: Story, rows: Rows) -> None:
    """Each attempt has one reserve and one end."""
    reserves = Counter((row["request_id"], row["attempt"]) for row in rows if row["entry"] == "reserve")
    ends = Counter((row["request_id"], row["attempt"]) for row in rows if row["entry"] in _CLOSED)
    for key in reserves.keys() | ends.keys():
        if (reserves[key], ends[key]) != (1, 1):
            story.violate(
                "each attempt has one reserve and one end", attempt=key, reserves=reserves[key], ends=ends[key]
            )


def calls_are_booked(story: Story, plan: Plan, rows: Rows, calls: Iterable[Call]) -> None:
    """Nothing is asked of a provider that is not in the books, and refusals cost nothing.

    Where usage was told and the answer came whole, the books say what the provider counted.
    """
    ends: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["entry"] in _CLOSED:
            ends[row["request_id"]].append(row)
    asked: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        asked[call.request_id].append(call)
    for request_id, made in asked.items():
        sent = [row for row in ends[request_id] if row["entry"] != "void"]
        if len(sent) < sum(not call.refused for call in made):
            story.violate(
                "what a provider was asked is in the books", request=request_id, calls=len(made), booked=len(sent)
            )
        _usage_is_believed(story, request_id, made, ends[request_id])
    for request_id, booked in ends.items():
        paid = [row for row in booked if row["cost_nanousd"] and "orphaned" not in (row["flags"] or "")]
        # A connection that is cut may take a refusal with it; nobody waits for one whose caller has gone; and a process that stood still
        # sees that the time is over before it reads. What came of it is estimated then.
        flags = " ".join(row["flags"] or "" for row in paid)
        is_unheard = plan.weather.cut or "caller_gone" in flags or "timeout" in flags
        worth = [call for call in asked[request_id] if is_unheard or not call.refused]
        if plan.weather.cut:
            # What was sent on a connection that is cut has perhaps not come there, and is estimated all the same.
            paid = [row for row in paid if row["usage_source"] != "estimated"]
        if not asked[request_id]:
            # Whose caller leaves while it is on its way is estimated, too: nobody waits for what comes of it.
            paid = [row for row in paid if "caller_gone" not in row["flags"] or row["usage_source"] != "estimated"]
        if len(paid) > len(worth):
            story.violate("nobody pays for what no provider did", request=request_id, paid=len(paid), worth=len(worth))


def _usage_is_believed(story: Story, request_id: str, made: Sequence[Call], ends: Rows) -> None:
    told = Counter((call.input_tokens, call.output_tokens) for call in made if call.told_usage)
    booked = Counter(
        (row["input_tokens"], row["output_tokens"])
        for row in ends
        if row["entry"] == "settle" and row["usage_source"] == "upstream"
    )
    if booked - told:
        story.violate("a usage in the books was told by a provider", request=request_id, booked=booked, told=told)
    for row in ends:
        if row["usage_source"] == "upstream":
            cost = row["input_tokens"] * INPUT_NANOUSD + row["output_tokens"] * OUTPUT_NANOUSD
            if "provider_batch" in (row["flags"] or ""):
                cost //= 2
            if cost != row["cost_nanousd"]:
                story.violate(
                    "a cost is its tokens at their price", request=request_id, cost=row["cost_nanousd"], due=cost
                )


def callers_got_ends(story: Story, plan: Plan, rows: Rows, asked: Iterable[Asked], calls: Sequence[Call]) -> None:
    """Each caller has an end, the words of one call alone, and, with a whole answer, one entry for it."""
    # Where the disk took no entry, and the process was killed before it did, it is the estimate that is booked.
    is_lost = any(event.trouble.startswith("disk") for event in plan.events)
    served = Counter(
        row["request_id"]
        for row in rows
        if row["entry"] == "settle" and (row["served"] or (is_lost and "orphaned" in row["flags"]))
    )
    last: dict[str, float] = {}
    for call in calls:
        last[call.request_id] = max(last.get(call.request_id, 0.0), call.began_at)
    for each in asked:
        if each.ended_at is None or (each.end == "gave_up" and each.manner != "hangs_up"):
            story.violate("each caller gets an end", nonce=each.nonce, end=each.end)
        if each.first_word_at is not None and last.get(each.request_id, 0.0) > each.first_word_at:
            story.violate("nothing is retried after the first word", nonce=each.nonce, request=each.request_id)
        if each.words:
            _words_are_of_one_call(story, each, calls, served)


def _words_are_of_one_call(story: Story, asked: Asked, calls: Sequence[Call], served: Mapping[str, int]) -> None:
    words = "".join(asked.words)
    numbers = {word.partition("w")[0][1:] for word in asked.words}
    call = calls[int(min(numbers))]
    if len(numbers) > 1:
        story.violate("nothing is retried after the first word", nonce=asked.nonce, calls=sorted(numbers))
    elif not call.text.startswith(words):
        story.violate("the answer is what the provider said", nonce=asked.nonce, got=words)
    is_given_again = call.request_id != asked.request_id and asked.idempotency_key
    if not asked.answered or is_given_again:
        return
    if words != call.text:
        story.violate("a whole answer is whole", nonce=asked.nonce, call=call.number)
    if served[asked.request_id] != 1:
        times = served[asked.request_id]
        story.violate("an answer is booked once", nonce=asked.nonce, request=asked.request_id, served=times)


def nothing_is_held(story: Story, worker: Serving) -> None:
    """A worker that nobody waits for has given everything back."""
    line, gate, holds = worker.pipeline.line, worker.pipeline.gate, worker.books.holds
    held: dict[str, object] = {
        "requests": line.in_flight,
        "tasks": worker.tasks,
        "concurrency": dict(gate.limiter._local.in_flight),
        "money": len(holds._open),
        "waiting for money": len(holds._waiting),
    }
    for name in worker.installation.config.queues:
        state = gate.queues.snapshot(name).state
        held[f"queue {name}"] = (state.waiting, state.in_flight_tokens, state.in_flight)
    for what, left in held.items():
        if left not in (0, {}, (0, 0, 0)):
            story.violate("everything is given back", worker=worker.name, what=what, left=left)


def redis_counts_nothing(story: Story, workers: Iterable[Serving], held: Mapping[str, int]) -> None:
    """Redis is used again, and knows of nothing that nobody does."""
    for worker in workers:
        link = worker.pipeline.gate.link
        if link is None or not link.healthy:
            problem = "it has no link" if link is None else link.problem
            story.violate("a process uses Redis again", worker=worker.name, problem=problem)
    for name, left in held.items():
        if left:
            story.violate("nothing is counted in Redis that does not run", what=name, left=left)


def workers_are_linked(story: Story, workers: Sequence[Serving]) -> None:
    """Each worker is connected with the control plane again, and knows how many they are."""
    for worker in workers:
        if worker.link is None or not worker.link.is_up:
            story.violate("a worker is linked again", worker=worker.name)
        elif worker.processes.live != len(workers):
            story.violate("a worker knows how many they are", worker=worker.name, told=worker.processes.live)


def budget_holds(story: Story, plan: Plan, rows: Rows) -> None:
    """A hard budget is overrun by what providers told beyond their bound, and by nothing else."""
    if plan.budget_nanousd is None:
        return
    reserved = {
        (row["request_id"], row["attempt"]): row["cost_nanousd"] or 0 for row in rows if row["entry"] == "reserve"
    }
    spent: Counter[int] = Counter()
    beyond: Counter[int] = Counter()
    for row in rows:
        if row["team_id"] == "team_a" and row["entry"] in _CLOSED:
            month = _month_of(row["at_us"])
            spent[month] += row["cost_nanousd"] or 0
            beyond[month] += max(0, (row["cost_nanousd"] or 0) - reserved.get((row["request_id"], row["attempt"]), 0))
    for month, amount in spent.items():
        if amount > plan.budget_nanousd + beyond[month]:
            story.violate("a hard budget is not overrun", month=month, spent=amount, limit=plan.budget_nanousd)


def _month_of(at_us: int) -> int:
    return hash(month_of(at_us))


def journals_are_empty(story: Story, installation: Installation) -> None:
    """After the last process ended in order nothing is left to bring into the database."""
    left = {boot_id: numbers for boot_id, numbers in journals(installation.journals).items() if numbers}
    if left:
        story.violate("no journal is left", journals=left)
