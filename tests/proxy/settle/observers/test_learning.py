"""Keeping what can be learned from traffic, on a real database that sometimes does not answer."""

import asyncio
import itertools
import logging
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.caller import TeamSettings
from accounts.store import AccountStore
from classifier.learning.store import ClassifiedRequest, LearningStore, Verdict
from classifier.prediction import Prediction, Prompt
from gateway.database import make_engine
from proxy.dispatch.outcome import RequestOutcome
from proxy.learning.retention import forget_what_may_not_stay
from proxy.settle.observers.learning import MAX_PROMPT_CHARS, LearningLog, LearningObserver, kept_text
from tests.classifier.learning.kept import NOON_US, a_verdict, a_weighing
from tests.proxy.settle.observers.outcomes import an_outcome
from tests.sqlite import newest_sqlite

PROMPT = Prompt(text="my secret question", system="be kind", turns=1)
PREDICTION = Prediction(
    complexity=0.25, source="onnx", expected_output_tokens=100, vector=b"\x00\x3c" * 70, artifact="model-1", group="g1"
)
DAY_US = 86_400_000_000


class Told(LearningObserver):
    """Remembers what was counted."""

    def __init__(self) -> None:
        self.verdicts: Counter[tuple[str, str]] = Counter()
        self.dropped = 0

    def count_verdict(self, source: str, signal: str) -> None:
        self.verdicts[source, signal] += 1

    def count_learning_dropped(self, requests: int) -> None:
        self.dropped += requests


def an_answer(request_id: str = "req_1", **changes: Any) -> RequestOutcome:
    values = {
        "request_id": request_id,
        "team_id": "team_a",
        "prediction": PREDICTION,
        "settings": TeamSettings(),
        "prompt": PROMPT,
        "conversation": "a session id that tells something",
        "request_digest": 123456789,
        **changes,
    }
    return an_outcome(**values)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """SQLite alone: what differs between databases is tested where the SQL is."""
    made = make_engine(newest_sqlite(tmp_path / "weighbridge.sqlite"))
    yield made
    await made.dispose()


@pytest.fixture
async def accounts(engine: AsyncEngine) -> AccountStore:
    made = AccountStore(engine)
    for team_id in ("team_a", "team_b"):
        await made.create_team(team_id)
    return made


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def store(engine: AsyncEngine) -> LearningStore:
    return LearningStore(engine)


@pytest.fixture
def log(store: LearningStore, accounts: AccountStore, told: Told) -> LearningLog:
    return LearningLog(store, accounts.learning_of, observer=told, now_us=lambda: NOON_US)


async def arrival(store: LearningStore, request_id: str) -> None:
    """Waits until a loop that runs by itself has written this request."""
    async with asyncio.timeout(10):
        while await store.find_weighing("team_a", request_id) is None:  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.01)


async def test_an_answered_auto_request_is_kept_in_numbers(log: LearningLog, store: LearningStore) -> None:
    """Its numbers are there; neither its text, nor its session id, nor a digest that a guess could be checked by."""
    log.finished(an_answer())
    assert await log.flush()
    kept = await store.find_weighing("team_a", "req_1")
    assert kept is not None
    assert (kept.target_id, kept.artifact, kept.vector) == ("llama-3-70b", "model-1", PREDICTION.vector)
    assert (kept.complexity, kept.group_id, kept.at_us) == (0.25, "g1", NOON_US)
    assert (kept.input_tokens, kept.output_tokens, kept.cost_nanousd) == (800, 200, 1_500_000)
    assert kept.prompt is None
    stored = msgspec.json.encode(kept)
    assert b"secret" not in stored
    assert b"session" not in stored
    assert str(123456789) != kept.request_digest != ""


async def test_its_time_is_that_of_its_end(log: LearningLog, store: LearningStore) -> None:
    """However long ago that was: by it is told who asked again."""
    log.finished(an_answer(told_after_s=0.02))
    assert await log.flush()
    kept = await store.find_weighing("team_a", "req_1")
    assert kept is not None
    assert kept.at_us == NOON_US - 20_000


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": TeamSettings(learning="off")},
        {"settings": None},
        {"prediction": None},
        {"target_id": None},
        {"error_code": "upstream_stream_cut"},
        {"status": 499},
    ],
)
def test_what_is_not_kept(log: LearningLog, changes: dict[str, Any]) -> None:
    """Nothing of a team that allows nothing, of a model that the caller named, and of what was not answered."""
    log.finished(an_answer(**changes))
    assert log._waiting == 0


async def test_prompts_are_kept_only_when_the_team_opted_in(
    log: LearningLog, store: LearningStore, accounts: AccountStore
) -> None:
    """The text of a team that allows it, whole; and of one that has changed its mind since, nothing."""
    await accounts.update_team("team_a", learning="prompts")
    await accounts.update_team("team_b", learning="numbers")
    for team_id in ("team_a", "team_b"):
        log.finished(an_answer(team_id=team_id, settings=TeamSettings(learning="prompts")))
    await log.flush()
    mine, theirs = [await store.find_weighing(team_id, "req_1") for team_id in ("team_a", "team_b")]
    assert mine is not None
    assert theirs is not None
    assert msgspec.json.decode(mine.prompt or "", type=Prompt) == PROMPT
    assert "secret" not in repr(mine)
    assert theirs.prompt is None
    await accounts.update_team("team_b", learning="off")
    log.finished(an_answer("req_2", team_id="team_b", weakness="refused"))
    await log.flush()
    assert await store.find_weighing("team_b", "req_2") is None
    assert await store.counts("team_b") == []


def test_a_kept_text_is_bounded() -> None:
    """The beginning of the question and of the system's part, and the end of the talk between."""
    huge = Prompt(text="t" * 10**6, system="s" * 10**6, history="x" * 10**6 + "end", turns=9)
    kept = msgspec.json.decode(kept_text(huge), type=Prompt)
    assert (len(kept.text), kept.history[-3:], kept.turns) == (MAX_PROMPT_CHARS, "end", 9)
    assert len(kept_text(huge)) < 2 * MAX_PROMPT_CHARS + 200


async def test_signals_become_verdicts_and_are_counted(log: LearningLog, store: LearningStore, told: Told) -> None:
    """A weak answer and a repeated request are booked against the targets that gave the answers."""
    log.finished(an_answer("req_1", weakness="refused", escalated_from="tiny"))
    log.finished(an_answer("req_2", duration_s=0.0))
    await log.flush()
    found = {(row.target_id, row.signal, row.request_id) for row in await store.outcomes("model-1")}
    assert found == {("tiny", "refused", "req_1"), ("llama-3-70b", "regenerated", "req_1")}
    assert told.verdicts["implicit", "refused"] == 1


async def test_a_full_queue_drops_and_counts(store: LearningStore, accounts: AccountStore, told: Told) -> None:
    """The request is not held up; what was queued before is kept."""
    log = LearningLog(store, accounts.learning_of, observer=told, max_waiting=2)
    for number in range(5):
        log.finished(an_answer(f"req_{number}"))
    assert told.dropped == 3
    await log.aclose()
    assert [await store.find_weighing("team_a", f"req_{number}") is not None for number in range(3)] == [
        True,
        True,
        False,
    ]


async def test_the_loop_writes_and_closing_writes_the_rest(
    store: LearningStore, accounts: AccountStore, told: Told
) -> None:
    """What waits is written without anybody asking, in batches; what came last is written at the end."""
    log = LearningLog(store, accounts.learning_of, observer=told, interval_s=0.01)
    log.start()
    for number in range(450):
        log.finished(an_answer(f"req_{number:03}", request_digest=None))
    await arrival(store, "req_449")
    log.finished(an_answer("req_last"))
    await log.aclose()
    assert await store.find_weighing("team_a", "req_last") is not None
    assert told.dropped == 0


class Stubborn(LearningStore):
    """A database that does not answer the first times."""

    def __init__(self, engine: AsyncEngine, failures: int) -> None:
        super().__init__(engine)
        self.failures = failures

    async def add(self, weighings: Sequence[ClassifiedRequest], verdicts: Sequence[Verdict]) -> None:
        if self.failures:
            self.failures -= 1
            raise OperationalError("INSERT a secret", None, sqlite3.OperationalError("database is locked"))
        await super().add(weighings, verdicts)


async def test_a_database_that_comes_back_has_lost_nothing(
    engine: AsyncEngine, accounts: AccountStore, told: Told
) -> None:
    """A batch is tried again, in its turn, and its signals are told once."""
    store = Stubborn(engine, failures=2)
    log = LearningLog(store, accounts.learning_of, observer=told)
    log.finished(an_answer("req_1", weakness="refused"))
    assert [await log.flush() for _ in range(3)] == [False, False, True]
    assert await store.find_weighing("team_a", "req_1") is not None
    assert told.verdicts["implicit", "refused"] == 1


async def test_a_batch_that_cannot_be_written_is_given_up(
    engine: AsyncEngine, accounts: AccountStore, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """After its last try it is dropped, counted and logged without a value of it, and the next one goes through."""
    store = Stubborn(engine, failures=5)
    log = LearningLog(store, accounts.learning_of, observer=told, max_tries=5)
    log.finished(an_answer("req_1"))
    with caplog.at_level(logging.WARNING):
        assert [await log.flush() for _ in range(5)] == [False, False, False, False, True]
    assert "secret" not in caplog.text
    assert told.dropped == 1
    log.finished(an_answer("req_2"))
    assert await log.flush()
    assert await store.find_weighing("team_a", "req_2") is not None


class Answering(LearningStore):
    """While it writes, the next answer is given."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine)
        self.batches: list[list[str]] = []
        self.meanwhile: Callable[[], None] = lambda: None

    async def add(self, weighings: Sequence[ClassifiedRequest], verdicts: Sequence[Verdict]) -> None:
        self.batches.append([each.request_id for each in weighings])
        self.meanwhile()
        await super().add(weighings, verdicts)


async def test_what_comes_meanwhile_is_of_the_next_batch(engine: AsyncEngine, accounts: AccountStore) -> None:
    """One caller who asks again at once must not make a transaction of each answer."""
    store = Answering(engine)
    log = LearningLog(store, accounts.learning_of)
    numbers = itertools.count(2)
    store.meanwhile = lambda: log.finished(an_answer(f"req_{next(numbers)}"))
    log.finished(an_answer("req_1"))
    assert await log.flush()
    assert await log.flush()
    assert store.batches == [["req_1"], ["req_2"]]


async def test_a_batch_that_is_not_full_waits_where_another_is(engine: AsyncEngine, accounts: AccountStore) -> None:
    """A batch costs about the same whatever is in it, so a few rows do not follow each full one."""
    store = Answering(engine)
    log = LearningLog(store, accounts.learning_of)
    for number in range(501):
        log.finished(an_answer(f"req_{number}"))
    assert await log.flush(full_only=True)
    assert [len(batch) for batch in store.batches] == [500]
    assert await log.flush()
    assert [len(batch) for batch in store.batches] == [500, 1]


async def test_closing_counts_what_is_lost(engine: AsyncEngine, accounts: AccountStore, told: Told) -> None:
    """With a database that never answers, the end comes all the same."""
    log = LearningLog(Stubborn(engine, failures=99), accounts.learning_of, observer=told)
    for number in range(3):
        log.finished(an_answer(f"req_{number}"))
    await log.aclose()
    assert told.dropped == 3


async def test_an_unexpected_failure_does_not_end_the_loop(
    store: LearningStore, accounts: AccountStore, told: Told
) -> None:
    """A batch that breaks in a way nobody thought of is given up like any other."""
    failures = 5

    async def learning_of(team_ids: Iterable[str]) -> dict[str, str]:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("nobody thought of this")
        return await accounts.learning_of(team_ids)

    log = LearningLog(store, learning_of, observer=told, interval_s=0.001, max_tries=5)
    log.start()
    log.finished(an_answer("req_1"))
    async with asyncio.timeout(10):
        while failures:  # noqa: ASYNC110 - the loop under test tells nobody that it gave up
            await asyncio.sleep(0.005)
    log.finished(an_answer("req_2"))
    await arrival(store, "req_2")
    await log.aclose()


async def test_retention_deletes_what_may_not_stay(store: LearningStore, accounts: AccountStore) -> None:
    """The old, the texts of a team that allows numbers, and everything of a team that allows nothing."""
    await accounts.create_team("team_c")
    await accounts.update_team("team_a", learning="prompts")
    await accounts.update_team("team_c", learning="off")
    await store.add(
        [
            a_weighing("req_old", at_us=NOON_US - 31 * DAY_US, prompt="old"),
            a_weighing("req_new", prompt="mine"),
            a_weighing("req_b", team_id="team_b", prompt="theirs"),
            a_weighing("req_c", team_id="team_c"),
        ],
        (),
    )
    await store.add_verdicts([a_verdict("req_c", team_id="team_c")])
    await forget_what_may_not_stay(store, accounts, keep_days=30, now_us=NOON_US)
    assert await store.find_weighing("team_a", "req_old") is None
    mine, theirs = await store.find_weighing("team_a", "req_new"), await store.find_weighing("team_b", "req_b")
    assert mine is not None
    assert theirs is not None
    assert (mine.prompt, theirs.prompt) == ("mine", None)
    assert await store.find_weighing("team_c", "req_c") is None
    assert await store.counts() == []
