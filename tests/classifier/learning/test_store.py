"""What was weighed and how it turned out, on SQLite and on PostgreSQL."""

import asyncio

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.learning.store import LearningStore, UnknownTuning, UnreadableTuning
from classifier.tuning import Ability, Group, Tuning
from tests.classifier.learning.kept import NOON_US, a_verdict, a_weighing

HOUR_US = 3_600_000_000


@pytest.fixture
def store(engine: AsyncEngine) -> LearningStore:
    return LearningStore(engine, now_us=lambda: NOON_US)


def a_tuning(artifact: str = "model-1") -> Tuning:
    return Tuning(
        version=77,
        artifact=artifact,
        abilities={"small": Ability(weights=[0.1 + 0.2, -1.0], bias=0.5, verdicts=12)},
        groups={"team_a": [Group(group_id="g1", centre=[0.0] * 64, shift={"small": -0.25}, verdicts=9)]},
    )


async def test_a_weighing_comes_back_as_it_was(store: LearningStore) -> None:
    """Every field survives, also what is unknown, large or strange."""
    odd = a_weighing(
        "req_odd",
        vector=bytes(range(256)),
        complexity=0.1 + 0.2,
        group_id=None,
        cost_nanousd=None,
        input_tokens=2**40,
        prompt='{"text": "\' ; -- é \\u0000"}',
    )
    await store.add([a_weighing(), odd], ())
    assert await store.find_weighing("team_a", "req_1") == a_weighing()
    assert await store.find_weighing("team_a", "req_odd") == odd


async def test_writing_a_weighing_again_changes_nothing(store: LearningStore) -> None:
    """A batch may be written any number of times, also with the same request twice in it."""
    await store.add([a_weighing()], ())
    await store.add([a_weighing(target_id="large"), a_weighing("req_2"), a_weighing("req_2")], ())
    first = await store.find_weighing("team_a", "req_1")
    assert first == a_weighing()
    assert await store.find_weighing("team_a", "req_2") is not None
    await store.add([], ())


async def test_concurrent_writers_of_the_same_rows(store: LearningStore) -> None:
    """Several processes with overlapping batches in different orders neither fail nor wait for each other for ever."""
    requests = [f"req_{number:03}" for number in range(60)]
    turns = [requests[start:] + requests[:start] for start in (0, 20, 40)]
    await asyncio.gather(
        *(store.add([a_weighing(each) for each in turn], [a_verdict(each) for each in turn]) for turn in turns)
    )
    assert len(await store.outcomes("model-1")) == 60


async def test_a_team_sees_only_its_own(store: LearningStore) -> None:
    """The same request id of two teams is two requests, and each team reads its own."""
    await store.add([a_weighing(), a_weighing(team_id="team_b", target_id="large")], ())
    await store.add_verdicts([a_verdict(), a_verdict(team_id="team_b", adequate=0.0)])
    mine, theirs = [await store.find_weighing(team, "req_1") for team in ("team_a", "team_b")]
    assert mine is not None
    assert theirs is not None
    assert (mine.target_id, theirs.target_id) == ("small", "large")
    assert await store.find_weighing("team_c", "req_1") is None
    assert [(row.team_id, row.adequate) for row in await store.outcomes("model-1", team_id="team_b")] == [
        ("team_b", 0.0)
    ]
    assert [row.team_id for row in await store.counts("team_a")] == ["team_a"]
    assert {row.team_id for row in await store.counts()} == {"team_a", "team_b"}


async def test_a_verdict_said_again_replaces_the_first(store: LearningStore) -> None:
    """Of one source and signal about one answer the last word counts; another signal stands beside it."""
    await store.add([a_weighing()], ())
    await store.add_verdicts([a_verdict(adequate=0.0), a_verdict(adequate=0.25)])
    await store.add_verdicts([a_verdict(adequate=1.0, better_target="large", at_us=NOON_US + 5)])
    await store.add_verdicts([a_verdict(source="implicit", signal="regenerated", adequate=0.0, weight=0.25)])
    newest, older = await store.outcomes("model-1")
    assert (newest.adequate, newest.better_target, newest.signal) == (1.0, "large", "rating")
    assert (older.source, older.signal, older.weight) == ("implicit", "regenerated", 0.25)


async def test_outcomes_are_joined_bounded_and_newest_first(store: LearningStore) -> None:
    """A row has the prompt's numbers; other models' prompts and verdicts without a weighing are left out."""
    await store.add([a_weighing(f"req_{number}", group_id=f"g{number}") for number in range(4)], ())
    await store.add([a_weighing("req_other", artifact="model-0")], ())
    verdicts = [a_verdict(f"req_{number}", at_us=NOON_US + number, target_id="large") for number in range(4)]
    await store.add_verdicts([*verdicts, a_verdict("req_other"), a_verdict("req_gone")])
    rows = await store.outcomes("model-1", 3)
    assert [row.request_id for row in rows] == ["req_3", "req_2", "req_1"]
    assert (rows[0].group_id, rows[0].target_id, rows[0].vector) == ("g3", "large", a_weighing().vector)
    assert [row.request_id for row in await store.outcomes("model-0")] == ["req_other"]


async def test_a_busy_team_does_not_crowd_out_a_quiet_one(store: LearningStore) -> None:
    """With a limit for each team its newest rows are taken, and the quiet team's old one is still there."""
    busy = [f"req_{number}" for number in range(5)]
    await store.add([*(a_weighing(each) for each in busy), a_weighing("req_q", team_id="team_q")], ())
    await store.add_verdicts([a_verdict(each, at_us=NOON_US + 10 + place) for place, each in enumerate(busy)])
    await store.add_verdicts([a_verdict("req_q", team_id="team_q", at_us=NOON_US)])
    rows = await store.outcomes("model-1", 3, per_team=2)
    assert [(row.team_id, row.request_id) for row in rows] == [
        ("team_a", "req_4"),
        ("team_a", "req_3"),
        ("team_q", "req_q"),
    ]


async def test_counts_by_kind(store: LearningStore) -> None:
    """Each target, source and signal has its number and its mean."""
    await store.add_verdicts([a_verdict("req_1", adequate=1.0), a_verdict("req_2", adequate=0.0)])
    await store.add_verdicts([a_verdict("req_1", source="implicit", signal="refused", adequate=0.0)])
    assert [(row.source, row.signal, row.verdicts, row.adequate) for row in await store.counts("team_a")] == [
        ("feedback", "rating", 2, 0.5),
        ("implicit", "refused", 1, 0.0),
    ]
    assert await store.counts("team_b") == []


async def test_old_rows_are_forgotten_in_batches(store: LearningStore, engine: AsyncEngine) -> None:
    """More than one batch goes in one call; what is young enough stays."""
    old = [f"req_{number:04}" for number in range(1_100)]
    await store.add([*(a_weighing(each) for each in old), a_weighing("req_new", at_us=NOON_US + HOUR_US)], ())
    await store.add_verdicts([a_verdict("req_0001"), a_verdict("req_new", at_us=NOON_US + HOUR_US)])
    assert await store.forget(NOON_US + HOUR_US) == 1_101
    async with engine.connect() as connection:
        for table in ("weighing", "verdict"):
            rows = (await connection.execute(text(f"SELECT request_id FROM {table}"))).scalars().all()  # noqa: S608
            assert rows == ["req_new"]
    assert await store.forget(NOON_US + HOUR_US) == 0


async def test_the_pass_rate_counts_answers_that_somebody_judged(store: LearningStore) -> None:
    """Of the target that answered, by people and comparisons; several verdicts on one answer are weighed together."""
    await store.add([a_weighing(f"req_{number}") for number in range(1, 6)], ())
    await store.add(
        [a_weighing("req_9", team_id="team_b"), a_weighing("req_1", at_us=NOON_US + HOUR_US, team_id="team_c")], ()
    )
    weighed = a_weighing().target_id
    await store.add_verdicts(
        [
            a_verdict("req_1", target_id=weighed, source="feedback", adequate=1.0),
            a_verdict("req_2", target_id=weighed, source="feedback", adequate=0.0),
            # A person's word outweighs a comparison.
            a_verdict("req_3", target_id=weighed, source="feedback", adequate=1.0, weight=1.0),
            a_verdict("req_3", target_id=weighed, source="shadow", adequate=0.0, weight=0.5),
            # What requests tell by themselves only ever speaks against an answer; and this is another target's.
            a_verdict("req_4", target_id=weighed, source="implicit", adequate=0.0),
            a_verdict("req_5", target_id="another", source="shadow", adequate=1.0),
            a_verdict("req_9", target_id=weighed, team_id="team_b", source="shadow", adequate=1.0),
            a_verdict("req_1", target_id=weighed, team_id="team_c", source="shadow", adequate=1.0),
        ]
    )
    organisation, end_us = a_weighing().organisation_id, NOON_US + HOUR_US
    assert await store.adequacy(organisation, None, NOON_US, end_us) == (3, 4)
    assert await store.adequacy(organisation, "team_a", NOON_US, end_us) == (2, 3)
    assert await store.adequacy(organisation, None, NOON_US, end_us + 1) == (4, 5)
    assert await store.adequacy("other", None, NOON_US, end_us) == (0, 0)


async def test_a_teams_prompts_can_be_forgotten_alone(store: LearningStore) -> None:
    """The texts of one team go, its numbers and other teams' texts stay."""
    kept = [a_weighing("req_1", prompt="secret"), a_weighing("req_2"), a_weighing(team_id="team_b", prompt="theirs")]
    await store.add(kept, ())
    assert await store.forget_prompts("team_a") == 1
    assert await store.find_weighing("team_a", "req_1") == msgspec.structs.replace(kept[0], prompt=None)
    theirs = await store.find_weighing("team_b", "req_1")
    assert theirs is not None
    assert theirs.prompt == "theirs"


async def test_a_team_can_be_forgotten(store: LearningStore) -> None:
    """Everything of one team goes and nothing of another."""
    await store.add([a_weighing(), a_weighing(team_id="team_b")], ())
    await store.add_verdicts([a_verdict(), a_verdict(team_id="team_b")])
    assert await store.forget_team("team_a") == 2
    assert await store.find_weighing("team_a", "req_1") is None
    assert [row.team_id for row in await store.outcomes("model-1")] == ["team_b"]


async def test_tunings_are_numbered_kept_and_switched(store: LearningStore) -> None:
    """A new version is not in use until it is activated; going back deletes none."""
    assert (await store.active_tuning(), await store.active_version(), await store.tunings()) == (None, None, [])
    assert await store.add_tuning(a_tuning(), metrics={"brier": [0.2, 0.1]}, note="first") == 1
    assert await store.add_tuning(a_tuning("model-2")) == 2
    assert await store.active_tuning() is None
    await store.activate(1)
    assert await store.active_tuning() == msgspec.structs.replace(a_tuning(), version=1)
    await store.activate(2)
    assert [(row.version, row.active, row.artifact) for row in await store.tunings()] == [
        (2, True, "model-2"),
        (1, False, "model-1"),
    ]
    assert (await store.tunings())[1].metrics == {"brier": [0.2, 0.1]}
    await store.activate(None)
    assert (await store.active_version(), len(await store.tunings())) == (None, 2)
    assert (await store.tuning(2)).version == 2


async def test_unknown_and_broken_tunings_are_named(store: LearningStore, engine: AsyncEngine) -> None:
    """Activating what is not there changes nothing; a body that cannot be read has an error of its own."""
    await store.activate(await store.add_tuning(a_tuning()))
    with pytest.raises(UnknownTuning, match="no tuning 9"):
        await store.activate(9)
    with pytest.raises(UnknownTuning, match="no tuning 9"):
        await store.tuning(9)
    assert await store.active_version() == 1
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE tuning SET body = '{}'"))
    with pytest.raises(UnreadableTuning):
        await store.active_tuning()


async def test_of_many_activations_at_once_one_wins(store: LearningStore) -> None:
    """However they meet, exactly one version is in use afterwards; versions added at once have their own numbers."""
    versions = await asyncio.gather(*(store.add_tuning(a_tuning()) for _ in range(3)))
    assert sorted(versions) == [1, 2, 3]
    await asyncio.gather(*(store.activate(version) for version in versions))
    assert sum(row.active for row in await store.tunings()) == 1
