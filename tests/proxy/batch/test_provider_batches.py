"""Lines at a provider's batch API: over real HTTP and a real database, with a clock that the test turns."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.caller import Caller
from cost.ledger.entries import Entry
from providers.batch_apis.anthropic import AnthropicBatches
from providers.batch_apis.batch_api import BatchApi, BatchCall, BatchHttp, HandedBatch
from providers.batch_apis.openai import OpenAiBatches
from providers.errors import AnswerLost, ConnectFailed, UpstreamError, UpstreamRateLimited
from providers.target import Deployment
from proxy.batch.batch import Batch, ClaimedLine
from proxy.batch.batch_config import BatchSection
from proxy.batch.files import Owner
from proxy.batch.line_protocol import LineReply, LineRequest, Offers, OptionName, ProviderBatchLine
from proxy.batch.provider_batch_store import ProviderBatchStore
from proxy.batch.provider_batches import ProviderBatchRunner, set_aside_s
from proxy.batch.scheduler import Slack
from proxy.batch.store import BatchStore
from proxy.shared.database_clock import DatabaseTime
from tests.cost.entries import reserve as reserved
from tests.proxy.batch.made_up import HOLDER, SECOND_US, Clock, a_batch, result, stores
from tests.proxy.contexts import ALICE
from tests.scenarios.conftest import Upstream, scripted_upstream

DAY_S = 86_400.0
EASY = Slack(slack_s=DAY_S, pressure=0.0)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with scripted_upstream() as served:
        yield served


class Killed(BaseException):
    """The end of a process."""


class Line:
    """The request line, which plays one script for each line and books ten nano-dollars."""

    def __init__(self, at: Deployment) -> None:
        self.at = at
        self.script: Callable[[int], str] = lambda _number: "ok"
        self.costs: dict[OptionName, int | None] = {"provider": 5, "calls": 10}
        self.answers_are_of_use = True

    async def offers(self, asked: LineRequest, *, flex: bool) -> Offers:
        assert not flex
        if "provider" not in self.costs:
            return Offers(costs=self.costs)
        number = msgspec.json.decode(asked.body)["number"]
        handing = ProviderBatchLine(
            target_id=self.at.target_id,
            deployment=self.at,
            path="chat/completions",
            body=msgspec.json.encode({"model": self.script(number), "messages": []}),
            reserve=reserved(asked.request_id, cost_nanousd=20, request_nanousd=20),
            most_nanousd=20,
        )
        return Offers(costs=self.costs, handing=handing)

    async def answered(self, asked: LineRequest, reserve: Entry, body: bytes) -> tuple[LineReply, Entry]:
        if not self.answers_are_of_use:
            raise AnswerLost("made up", deployment_id="t/main")
        settled = msgspec.structs.replace(reserve, entry="settle", cost_nanousd=10, request_nanousd=10)
        return LineReply(status=200, body=body, cost_nanousd=10), settled


class Purse:
    """Money that is held by name."""

    def __init__(self) -> None:
        self.held: dict[str, int | None] = {}
        self.has_room = True

    async def hold(self, name: str, reserves: Sequence[tuple[Entry, int | None]]) -> bool:
        if self.has_room:
            self.held[name] = sum(most or 0 for _, most in reserves)
        return self.has_room

    async def free(self, name: str) -> None:
        self.held.pop(name, None)


class House:
    """One process's handing over, and all that it stands on."""

    def __init__(self, engine: AsyncEngine, folder: Path, upstream: Upstream, api: BatchApi) -> None:
        self.engine = engine
        self.clock = Clock()
        self.batches: BatchStore
        self.batches, _ = stores(engine, folder, self.clock)
        self.store = ProviderBatchStore(self.batches, DatabaseTime(engine, self.clock))
        self.api = api
        kind = "openai" if api.names_batches else "anthropic"
        self.at = Deployment(
            deployment_id="t/main",
            target_id="t",
            kind="openai",
            upstream_model="ok",
            base_url=upstream.url,
            batch_api=kind,  # type: ignore[arg-type]
        )
        self.line = Line(self.at)
        self.purse = Purse()
        self.counts: Counter[str] = Counter()
        self.slack = EASY
        self.handover = self.process()

    def process(self) -> ProviderBatchRunner:
        """Another one, on the same database."""

        async def is_blocked(_key_id: str) -> bool:
            return False

        async def caller_of(_key_id: str) -> Caller:
            return ALICE

        async def body_of(_batch: Batch, line: ClaimedLine) -> bytes:
            return msgspec.json.encode({"number": line.number})

        return ProviderBatchRunner(
            section=BatchSection(providers=True, provider_poll_s=60, lease_s=30),
            batches=self.batches,
            store=self.store,
            line=self.line,
            apis={"openai": self.api, "anthropic": self.api},
            deployments=lambda: {self.at.deployment_id: self.at},
            caller_of=caller_of,
            is_blocked=is_blocked,
            body_of=body_of,
            slacks=lambda: dict.fromkeys(self.names, self.slack),
            speed=lambda: 1.0,
            money=self.purse,
            holder=HOLDER,
            clock=lambda: self.clock.now_us / SECOND_US,
            count=lambda what, number: self.counts.update({what: number}),
        )

    names: tuple[str, ...] = ()

    async def batch(self, lines: int, window: str = "background") -> Batch:
        made = await a_batch(self.batches, lines, window=window)
        self.names = (*self.names, made.batch_id)
        return made

    async def rows(self, query: str) -> list[dict[str, Any]]:
        async with self.engine.connect() as connection:
            return [dict(row) for row in (await connection.execute(text(query))).mappings()]

    async def handed(self) -> list[dict[str, Any]]:
        return await self.rows("SELECT * FROM handed_batch ORDER BY created_us, handed_id")

    async def entries(self) -> Counter[str]:
        """The ledger's entries by kind; every reservation is closed at most once."""
        rows = await self.rows("SELECT request_id, entry, cost_nanousd FROM ledger_entry")
        closed = Counter(row["request_id"] for row in rows if row["entry"] != "reserve")
        assert not closed or max(closed.values()) == 1
        assert closed.keys() <= {row["request_id"] for row in rows if row["entry"] == "reserve"}
        return Counter(row["entry"] for row in rows)

    async def states(self) -> Counter[int]:
        return Counter(row["state"] for row in await self.rows("SELECT state FROM batch_line"))

    async def poll(self, after_s: float = 61) -> None:
        self.clock.passes(after_s)
        await self.handover.poll()


@pytest.fixture
async def house(engine: AsyncEngine, tmp_path: Path, upstream: Upstream) -> AsyncIterator[House]:
    """OpenAI's API beside SQLite, Anthropic's beside PostgreSQL: each differs from the other in its own way."""
    async with aiohttp.ClientSession() as session:
        http = BatchHttp(session)
        api: BatchApi = OpenAiBatches(http) if engine.dialect.name == "sqlite" else AnthropicBatches(http)
        yield House(engine, tmp_path, upstream, api)


WAITING, RUNNING, ANSWERED, CANCELLED = 0, 1, 2, 4


async def test_a_group_is_handed_over_answered_and_forgotten(house: House) -> None:
    """Every line is answered once and booked once, the money is free again, and nothing of it is left at the provider."""
    await house.batch(7)
    await house.handover.hand_over()
    (made,) = await house.handed()
    assert (made["state"], made["lines"], made["lines_left"]) == ("running", 7, 7)
    assert house.purse.held == {made["handed_id"]: 140}
    assert await house.entries() == {"reserve": 7}
    assert (await house.store.out())[house.names[0]].tokens == 700
    await house.poll()
    (made,) = await house.handed()
    assert (made["state"], made["outcome"], made["answered"], made["lines_left"]) == ("ended", "completed", 7, 0)
    assert await house.states() == {ANSWERED: 7}
    assert await house.entries() == {"reserve": 7, "settle": 7}
    assert not house.purse.held
    batch = await house.batches.get(house.names[0])
    assert (batch.completed, batch.cost_nanousd, batch.tokens_left) == (7, 70, 0)
    assert +house.counts == {"handed": 7, "answered": 7}
    assert await house.store.turnaround_s("t/main") == pytest.approx(61)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_process_that_dies_while_it_hands_over_loses_and_doubles_nothing(house: House, moment: str) -> None:
    """Its batch is found again, or its lines are, and the provider is asked once."""
    await house.batch(3)
    create = house.api.create

    async def dies(deployment: Deployment, name: str, path: str, calls: list[BatchCall]) -> str:
        if moment == "after":
            await create(deployment, name, path, calls)
        raise Killed

    house.api.create = dies  # type: ignore[method-assign,assignment]
    with pytest.raises(Killed):
        await house.handover.hand_over()
    house.api.create = create  # type: ignore[method-assign]
    other = house.process()
    await other.poll()
    assert [row["state"] for row in await house.handed()] == ["making"], "its lease has not ended"
    house.clock.passes(1_000)
    await other.poll()
    await other.hand_over()
    house.clock.passes(61)
    await other.poll()
    rows = await house.handed()
    assert Counter(row["outcome"] for row in rows) == (
        {"completed": 1} if moment == "after" else {"lost": 1, "completed": 1}
    )
    assert await house.states() == {ANSWERED: 3}
    assert (await house.entries())["settle"] == 3
    assert not house.purse.held


async def test_a_process_that_stood_still_leaves_no_batch_at_the_provider(house: House, upstream: Upstream) -> None:
    """Another one found none and let its lines go other ways; the one that is made after all is cancelled."""
    house.line.script = lambda _number: "hang"
    await house.batch(3)
    create, made = house.api.create, []

    async def stands_still(deployment: Deployment, name: str, path: str, calls: list[BatchCall]) -> str:
        house.clock.passes(1_000)
        await house.process().poll()
        made.append((deployment, await create(deployment, name, path, calls)))
        return made[0][1]

    house.api.create = stands_still  # type: ignore[method-assign,assignment]
    await house.handover.hand_over()
    (row,) = await house.handed()
    assert (row["state"], row["outcome"], row["upstream_id"]) == ("forgetting", "lost", made[0][1])
    assert await house.states() == {WAITING: 3}
    assert await house.entries() == {"reserve": 3, "void": 3}
    assert (await house.api.look(*made[0])).outcome == "cancelled"
    await house.poll()
    assert [row["state"] for row in await house.handed()] == ["ended"]
    assert await left_there(house, upstream) == 0


async def test_a_process_that_dies_while_it_collects_books_nothing_twice(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one goes on with what is not written yet."""
    await house.batch(5)
    monkeypatch.setattr("proxy.batch.provider_batches._RESULTS_AT_A_TIME", 2)
    await house.handover.hand_over()
    collect, seen = house.store.collect, 0

    async def dies(*given: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == 2:
            raise Killed
        return await collect(*given)

    house.store.collect = dies  # type: ignore[method-assign,assignment]
    with pytest.raises(Killed):
        await house.poll()
    house.store.collect = collect  # type: ignore[method-assign]
    assert await house.states() == {ANSWERED: 2, RUNNING: 3}
    await house.poll()
    assert await house.states() == {ANSWERED: 5}
    assert await house.entries() == {"reserve": 5, "settle": 5}
    (made,) = await house.handed()
    assert (made["answered"], made["unneeded"], made["estimated"]) == (5, 0, 0)


async def left_there(house: House, upstream: Upstream) -> int:
    """Files and batches of ours that the provider still has something of."""
    async with aiohttp.ClientSession() as session:
        path = "files" if house.api.names_batches else "messages/batches"
        async with session.get(f"{upstream.url}/{path}") as reply:
            return len((await reply.json())["data"])


async def test_a_process_that_dies_before_the_provider_has_forgotten_leaves_nothing_there(
    house: House, upstream: Upstream
) -> None:
    """The answers are written down by then; another one has the rest deleted, however often that fails before."""
    await house.batch(2)
    await house.handover.hand_over()
    forget, asked = house.api.forget, 0

    async def dies(*_given: Any) -> None:
        raise Killed

    async def fails(deployment: Deployment, batch: HandedBatch) -> None:
        nonlocal asked
        asked += 1
        raise AnswerLost("made up", deployment_id=deployment.deployment_id)

    house.api.forget = dies  # type: ignore[method-assign,assignment]
    with pytest.raises(Killed):
        await house.poll()
    assert [row["state"] for row in await house.handed()] == ["forgetting"]
    assert await house.states() == {ANSWERED: 2}
    assert await house.entries() == {"reserve": 2, "settle": 2}
    house.api.forget = fails  # type: ignore[method-assign]
    house.handover = house.process()
    for _ in range(3):
        await house.poll()
    assert asked == 3
    assert await left_there(house, upstream) > 0
    house.api.forget = forget  # type: ignore[method-assign]
    await house.poll()
    (made,) = await house.handed()
    assert (made["state"], made["outcome"], made["answered"]) == ("ended", "completed", 2)
    assert await left_there(house, upstream) == 0
    assert await house.entries() == {"reserve": 2, "settle": 2}


async def test_a_provider_that_never_forgets_is_told_of_after_a_week(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked ever more seldom meanwhile."""
    await house.batch(1)
    await house.handover.hand_over()
    asked = 0

    async def fails(deployment: Deployment, batch: HandedBatch) -> None:
        nonlocal asked
        asked += 1
        raise AnswerLost("made up", deployment_id=deployment.deployment_id)

    house.api.forget = fails  # type: ignore[method-assign]
    for _ in range(8 * 6):
        await house.poll(after_s=4 * 3_600)
    assert 10 < asked < 30
    (made,) = await house.handed()
    assert (made["state"], made["outcome"]) == ("ended", "completed")
    assert f"has not deleted batch {made['upstream_id']} and its files for a week" in caplog.text


async def test_a_gateway_that_was_away_for_a_month_asks_for_the_deletion_more_than_once(
    house: House, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    """The provider is away for a moment as it comes back: prompts and answers do not stay there for that."""
    await house.batch(1)
    await house.handover.hand_over()
    forget, asked = house.api.forget, 0

    async def fails_once(deployment: Deployment, batch: HandedBatch) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise AnswerLost("made up", deployment_id=deployment.deployment_id)
        await forget(deployment, batch)

    house.api.forget = fails_once  # type: ignore[method-assign]
    await house.poll(after_s=30 * 86_400)
    await house.poll(after_s=5 * 86_400)
    (made,) = await house.handed()
    assert (asked, made["state"], await left_there(house, upstream)) == (2, "ended", 0)
    assert "for a week" not in caplog.text


async def test_what_was_uploaded_for_a_batch_that_was_refused_is_removed(
    house: House, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file was there before the provider could not be reached any more."""
    await house.batch(2)
    create = house.api.create

    async def half(deployment: Deployment, name: str, path: str, calls: list[BatchCall]) -> str:
        if house.api.names_batches:
            real = OpenAiBatches._ask

            async def breaks(self: Any, at: Deployment, method: str, path: str, **more: Any) -> Any:
                if (method, path) == ("POST", "batches"):
                    raise ConnectFailed("made up", deployment_id=at.deployment_id)
                return await real(self, at, method, path, **more)

            with monkeypatch.context() as patched:
                patched.setattr(OpenAiBatches, "_ask", breaks)
                return await create(deployment, name, path, calls)
        raise ConnectFailed("made up", deployment_id=deployment.deployment_id)

    house.api.create = half  # type: ignore[method-assign,assignment]
    await house.handover.hand_over()
    assert [row["outcome"] for row in await house.handed()] == ["refused"]
    assert await left_there(house, upstream) == int(house.api.names_batches)
    await house.poll()
    assert await left_there(house, upstream) == 0
    assert [row["state"] for row in await house.handed()] == ["ended"]
    assert await house.states() == {WAITING: 2}


async def test_what_is_late_goes_another_way_in_time(house: House) -> None:
    """It is cancelled, what was answered by then is given, and the rest waits for calls, and for no provider again."""
    house.line.script = lambda number: "ok" if number == 1 else "hang"
    batch = await house.batch(20, window="24h")
    house.slack = Slack(slack_s=80_000.0, pressure=0.0)
    await house.handover.hand_over()
    (made,) = await house.handed()
    assert made["lines"] == 2, "a tenth is tried of a provider that was never measured"
    assert batch.expires_us is not None
    assert made["give_up_us"] < batch.expires_us
    assert house.handover.bound(batch) == 2, "what may go there when it is measured waits for that"
    await house.poll(after_s=(made["give_up_us"] - house.clock.now_us) / SECOND_US - 500)
    await house.poll()
    (made,) = await house.handed()
    assert (made["outcome"], made["answered"]) == ("late", 1)
    assert await house.states() == {ANSWERED: 1, WAITING: 19}
    assert await house.entries() == {"reserve": 2, "settle": 1, "void": 1}
    assert await house.rows("SELECT number FROM batch_line WHERE failures > 0") == [{"number": 2}]
    house.clock.passes(600)
    house.slack = Slack(slack_s=10.0, pressure=1.0)
    await house.handover.hand_over()
    assert len(await house.handed()) == 1
    assert house.handover.bound(batch) is None


async def test_an_answer_that_nobody_needs_any_more_is_booked_all_the_same(house: House) -> None:
    """A line that was answered by another way meanwhile keeps that answer."""
    house.line.script = lambda _number: "slow-first-token-50ms"
    batch = await house.batch(1)
    await house.handover.hand_over()
    (row,) = await house.handed()
    record = await house.store.take_due(row["look_us"], HOLDER, 0)
    assert record is not None
    assert await house.store.take_back(record) == 1
    (line,) = await house.batches.claim(batch.batch_id, 1, HOLDER, 60 * SECOND_US)
    assert len(await house.batches.answer([result(line)])) == 1
    for _ in range(100):
        await house.poll()
        if (await house.handed())[0]["state"] == "ended":
            break
    (made,) = await house.handed()
    assert (made["answered"], made["unneeded"]) == (0, 1)
    assert await house.entries() == {"reserve": 1, "settle": 1}
    assert (await house.batches.get(batch.batch_id)).cost_nanousd == 7
    assert house.counts["unneeded"] == 1


async def test_calls_that_fail_there_are_asked_again_elsewhere(house: House) -> None:
    """They cost nothing; a batch that is refused as a whole is no failure of its lines, and the provider is left alone."""
    house.line.script = lambda number: "error-500" if number == 1 else "ok"
    await house.batch(3)
    await house.handover.hand_over()
    await house.poll()
    assert await house.states() == {ANSWERED: 2, WAITING: 1}
    assert await house.entries() == {"reserve": 3, "settle": 2, "void": 1}
    house.at = msgspec.structs.replace(house.at, base_url="http://127.0.0.1:1")
    house.line.at = house.at
    house.line.script = lambda _number: "ok"
    await house.batch(2)
    await house.handover.hand_over()
    assert [row["outcome"] for row in await house.handed()] == ["completed", "refused"]
    await house.handover.hand_over()
    assert len(await house.handed()) == 2
    assert await house.rows("SELECT sum(failures) AS n FROM batch_line") == [{"n": 1}]
    assert not house.purse.held


async def test_what_was_paid_for_without_an_answer_is_booked_at_the_most(house: House) -> None:
    """Whether the answer is of no use, or is never heard of again; both are counted."""
    await house.batch(2)
    house.line.answers_are_of_use = False
    await house.handover.hand_over()
    await house.poll()
    (made,) = await house.handed()
    assert (made["answered"], made["unneeded"], made["estimated"]) == (0, 0, 2)
    house.line.script = lambda _number: "hang"
    await house.batch(3)
    await house.handover.hand_over()
    house.at = msgspec.structs.replace(house.at, base_url="http://127.0.0.1:1")
    await house.poll(after_s=100_001)
    assert [row["outcome"] for row in await house.handed()] == ["completed", "lost"]
    assert await house.entries() == {"reserve": 5, "settle": 5}
    spent = await house.rows("SELECT sum(cost_nanousd) AS n FROM ledger_entry WHERE entry = 'settle'")
    assert spent == [{"n": 100}]
    assert house.counts["estimated"] == 5
    assert await house.states() == {WAITING: 5}


async def test_a_batch_that_its_team_cancels_is_cancelled_there(house: House) -> None:
    """What was answered is given and paid for, the rest costs nothing."""
    house.line.script = lambda number: "ok" if number == 1 else "hang"
    batch = await house.batch(2)
    await house.handover.hand_over()
    owner = Owner(organisation_id=batch.organisation_id, team_id=batch.team_id)
    await house.batches.cancel(owner, batch.batch_id)
    await house.poll()
    await house.poll()
    assert await house.states() == {ANSWERED: 1, CANCELLED: 1}
    assert await house.entries() == {"reserve": 2, "settle": 1, "void": 1}


@pytest.mark.parametrize(
    ("costs", "bound"),
    [({"provider": 5, "own": 0}, 4), ({"calls": 10}, 4), ({"provider": 5, "calls": 10}, 4)],
    ids=["own engines are cheaper", "nobody has a batch API", "no money is left"],
)
async def test_what_no_provider_gets_goes_other_ways_at_once(
    house: House, costs: dict[OptionName, int | None], bound: int
) -> None:
    house.line.costs = costs
    house.purse.has_room = False
    batch = await house.batch(4)
    assert house.handover.bound(batch) == -1
    await house.handover.hand_over()
    assert await house.handed() == []
    assert await house.states() == {WAITING: 4}
    assert house.handover.bound(batch) == bound


@pytest.mark.parametrize(
    ("kind", "told_s", "aside_s"),
    [
        (UpstreamRateLimited, 5.0, 5.0),
        (UpstreamRateLimited, 1_800.0, 1_800.0),
        (UpstreamRateLimited, 86_400.0, 3_600.0),
        (UpstreamRateLimited, None, 60.0),
        (ConnectFailed, None, 600.0),
        (ConnectFailed, 30.0, 30.0),
    ],
)
def test_a_deployment_is_set_aside_for_as_long_as_its_refusal_says(
    kind: type[UpstreamError], told_s: float | None, aside_s: float
) -> None:
    """Within bounds; a pace without a time is shorter than a key or an address that is wrong."""
    assert set_aside_s(kind("made up", deployment_id="t/main", retry_after_s=told_s)) == aside_s
