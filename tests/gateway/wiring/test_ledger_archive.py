"""The child that archives: what it came to, how it ended, and that it goes with its parent."""

import asyncio
import os
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.archive_config import ArchiveConfig
from cost.ledger.archive_rounds import ArchiveFailed, ArchiveRun
from cost.ledger.store import LedgerStore
from cost.times import DAY_US
from gateway.database import make_engine
from gateway.wiring import ledger_archive
from gateway.wiring.ledger_archive import run_archive
from tests.cost.ledger.test_archiving import APRIL, attempts, files_in, rows_of, sign
from tests.processes import until
from tests.sqlite import newest_sqlite


async def test_a_child_archives_what_is_due_and_says_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the very command that operators have, with the database that the gateway has."""
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))
    for name in ("WEIGHBRIDGE_CONFIG", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    engine: AsyncEngine = make_engine(newest_sqlite(tmp_path / "weighbridge.sqlite"))
    await LedgerStore(engine).insert(attempts(4, APRIL, APRIL + DAY_US))
    rule = ArchiveConfig(keep_months=1, to=str(tmp_path / "kept"))
    refused = await run_archive(rule, None)
    assert refused.archived == ()
    assert "has not signed off 2026-04" in refused.left["2026-04"]
    await sign(engine, "default", APRIL)
    assert await run_archive(rule, None) == ArchiveRun(archived=("2026-04",))
    assert (len(files_in(tmp_path / "kept")), await rows_of(engine)) == (1, [])
    await engine.dispose()
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(ArchiveFailed, match="database"):
        await run_archive(rule, None)


async def test_a_child_has_the_lowest_priority_and_ends_with_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it at a stop; one that dies by itself is told by its status."""
    monkeypatch.setattr(ledger_archive, "module", lambda _: ("-c", _WAITS, str(tmp_path / "pid")))
    round_ = asyncio.create_task(run_archive(ArchiveConfig(keep_months=1, to="/x"), None))
    await until((tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19)
    round_.cancel()
    with pytest.raises(asyncio.CancelledError):
        await round_
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    monkeypatch.setattr(ledger_archive, "module", lambda _: ("-c", "import os; os.kill(os.getpid(), 9)"))
    with pytest.raises(ArchiveFailed, match="status -9"):
        await run_archive(ArchiveConfig(keep_months=1, to="/x"), None)


_WAITS = """
import os, pathlib, sys, time
made = pathlib.Path(sys.argv[1] + ".part")
made.write_text(str(os.getpid()))
made.rename(sys.argv[1])
time.sleep(600)
"""
