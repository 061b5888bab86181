"""A kill -9 at any step of archiving and restoring: nothing is lost, nothing counts twice, and the next run ends it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.store import LedgerStore
from cost.times import DAY_US
from tests.cost.entries import settle
from tests.cost.ledger.test_archiving import APRIL, NOW_US, attempts, rolled, rows_of, sign, verified

_LEASE_US: Final = 121_000_000
_REPOSITORY: Final = Path(__file__).parents[3]


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Iterator[Callable[[str, int, int], bool]]:
    """Run until the step, and kill it there; True if it ended before."""
    command = [sys.executable, "-m", "tests.cost.ledger.archiving_child", database_url, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_REPOSITORY, text=True) as forks:
        assert forks.stdin is not None
        assert forks.stdout is not None
        order, told = forks.stdin, forks.stdout

        def until(what: str, step: int, now_us: int) -> bool:
            print(what, step, now_us, file=order, flush=True)
            ended = told.readline().strip()
            assert ended in {"killed", "done"}, f"{what} {ended} on its way to step {step}"
            return ended == "done"

        yield until
        order.close()


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_month_survives_kills(engine: AsyncEngine, run: Callable[[str, int, int], bool]) -> None:
    """Killed again and again, each time a little later: before, within and after each kind of step.

    After each kill an entry is in the ledger or in a file that is noted, and never in both; the roll-ups never move, and the books
    agree. What is booked meanwhile for another month stays.
    """
    await LedgerStore(engine).insert(attempts(12, APRIL, APRIL + DAY_US))
    await sign(engine, "default", APRIL)
    before, sums = await rows_of(engine), await rolled(engine)
    now_us, kills = NOW_US, 0
    for what in ("archive", "restore"):
        # Each run goes on where the last one ended, so all steps come within reach of a few.
        step = 1
        while not run(what, step, now_us):
            kills += 1
            # Its lease is over: whoever comes next does not wait for the dead.
            now_us += _LEASE_US
            step = step % 11 + 1
            found = await verified(engine)
            left = await rows_of(engine)
            assert (found.differences, found.unread, found.damaged) == (0, (), ())
            assert found.archived + len(left) == len(before)
            assert set(left) <= set(before)
            assert await rolled(engine) == sums
        assert await rows_of(engine) == ([] if what == "archive" else before)
    assert kills > 10
    assert (await verified(engine)).archived == 0
    assert await LedgerStore(engine).insert([settle("req_new", at_us=APRIL + DAY_US)]) == 1
