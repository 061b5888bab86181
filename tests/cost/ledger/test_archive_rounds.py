"""Months go into files by themselves: one process at a time, an hour for none that failed, and no harm to anybody."""

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.archive_config import ArchiveConfig
from cost.ledger.archive_rounds import EVERY_US, ArchiveFailed, ArchiveRounds, ArchiveRun
from cost.ledger.archiving import months_due
from cost.ledger.shared_turn import Checked
from cost.ledger.store import LedgerStore
from cost.times import DAY_US, HOUR_US
from gateway.ledger_places import FolderPlace
from tests.cost.entries import reserve, settle
from tests.cost.ledger.test_archiving import APRIL, JUNE, MAY, NOW_US, archiving, attempts, sign

RULE = ArchiveConfig(keep_months=1, to="/srv/books")


class Host:
    """A host's rounds, with a child that does as told."""

    def __init__(self, engine: AsyncEngine, rule: ArchiveConfig | None = RULE) -> None:
        self.now_us, self.runs, self.rule = NOW_US, 0, rule
        self.answer: ArchiveRun | ArchiveFailed = ArchiveRun(archived=("2026-04",))
        self.told: list[Checked] = []
        self.rounds = ArchiveRounds(engine, lambda: self.rule, self._run, self.told.append, lambda: self.now_us)

    async def _run(self, rule: ArchiveConfig) -> ArchiveRun:
        assert rule == RULE
        self.runs += 1
        if isinstance(self.answer, ArchiveFailed):
            raise self.answer
        return self.answer


async def test_of_two_hosts_one_archives_and_both_tell(engine: AsyncEngine) -> None:
    """The next turn is six hours later, whoever has it."""
    one, other = Host(engine), Host(engine)
    for host in (one, other, one):
        await host.rounds.look()
    assert (one.runs, other.runs) == (1, 0)
    assert [each.differences for each in (*one.told, *other.told)] == [0, 0, 0]
    one.now_us = other.now_us = NOW_US + EVERY_US - HOUR_US
    await other.rounds.look()
    other.now_us += HOUR_US
    await other.rounds.look()
    assert (one.runs, other.runs) == (1, 1)


@pytest.mark.parametrize(
    "answer",
    [ArchiveFailed("it ended with status -9"), ArchiveRun(left={"2026-04": "`acme` has not signed off 2026-04"})],
)
async def test_a_failure_is_told_and_tried_again(
    engine: AsyncEngine, answer: ArchiveRun | ArchiveFailed, caplog: pytest.LogCaptureFixture
) -> None:
    """The gauge says how many months wait, and the log why; the round goes on, and 0 follows once they are gone."""
    host = Host(engine)
    host.answer = answer
    await host.rounds.look()
    assert host.told[-1].differences == 1
    assert "status -9" in caplog.text or "has not signed off" in caplog.text
    host.answer, host.now_us = ArchiveRun(archived=("2026-04",)), NOW_US + EVERY_US
    await host.rounds.look()
    assert (host.runs, host.told[-1].differences) == (2, 0)


async def test_a_host_that_died_at_it_is_followed_within_half_an_hour(engine: AsyncEngine) -> None:
    """Its child's own lease keeps two from working at a month."""
    dead, other = Host(engine), Host(engine)

    async def die(_: ArchiveConfig) -> ArchiveRun:
        raise KeyboardInterrupt

    dead.rounds._run = die
    with pytest.raises(KeyboardInterrupt):
        await dead.rounds.look()
    other.now_us += HOUR_US // 2
    await other.rounds.look()
    assert other.runs == 1


async def test_without_the_setting_nothing_is_done(engine: AsyncEngine) -> None:
    """Off is the default, and a gauge that stood at something says 0 again."""
    host = Host(engine, rule=None)
    await host.rounds.look()
    assert (host.runs, host.told) == (0, [Checked()])


async def test_months_are_due_by_the_calendar_and_once(engine: AsyncEngine, tmp_path: Path) -> None:
    """Whole months are kept beside the present one; a month without entries is none, one that stays keeps no other, and a
    restored one rests for a month.
    """
    await LedgerStore(engine).insert([*attempts(3), *attempts(3, MAY, JUNE)])
    await LedgerStore(engine).insert(
        [reserve("req_old", at_us=APRIL - 95 * DAY_US), settle("req_old", at_us=APRIL - 95 * DAY_US)]
    )
    december = APRIL - 121 * DAY_US
    assert await months_due(engine, 1, NOW_US) == [december, APRIL]
    assert await months_due(engine, 1, JUNE - 1) == [december]
    assert await months_due(engine, 1_200, NOW_US) == []
    await sign(engine, "default", APRIL)
    await archiving(engine, FolderPlace(tmp_path)).archive(APRIL)
    assert await months_due(engine, 1, NOW_US) == [december]
    await archiving(engine, FolderPlace(tmp_path)).restore(APRIL)
    assert await months_due(engine, 1, NOW_US) == [december]
    assert await months_due(engine, 1, NOW_US + 31 * DAY_US) == [december, APRIL, MAY]
    done = await archiving(engine, FolderPlace(tmp_path / "elsewhere")).archive(APRIL)
    assert done.rows == 6


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"keep_months": 0, "to": "/srv"}, "greater than or equal to 1"),
        ({"keep_months": "30d", "to": "/srv"}, "valid integer"),
        ({"keep_months": 3}, "required"),
        ({"keep_months": 3, "to": "books"}, "write the folder whole"),
        ({"keep_months": 3, "to": "s3://"}, "name a bucket"),
    ],
)
def test_a_setting_that_says_nothing_is_refused(given: dict[str, object], why: str) -> None:
    """Others skip it with a line in the log, and keep everything."""
    with pytest.raises(ValueError, match=why):
        ArchiveConfig.model_validate(given)
