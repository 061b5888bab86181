"""What the gateway keeps is for its own account alone, whatever the process's mask."""

import os
import stat
from pathlib import Path

import pytest

from gateway.database import make_engine, migrate
from settings.private import private_file, private_folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def _open_mask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


def test_folders_on_the_way_are_made_private(tmp_path: Path) -> None:
    """All that were missing, and none that was there."""
    tmp_path.chmod(0o755)
    private_folder(tmp_path / "a" / "b")
    assert (mode(tmp_path), mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o755, 0o700, 0o700)
    private_folder(tmp_path / "a" / "b")


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    """One that is new as well, and its content stays."""
    old = tmp_path / "old"
    old.write_text("kept")
    old.chmod(0o644)
    private_file(old)
    private_file(tmp_path / "new")
    assert (mode(old), mode(tmp_path / "new"), old.read_text()) == (0o600, 0o600, "kept")


async def test_another_local_user_reads_nothing_of_the_database(tmp_path: Path) -> None:
    """Neither SQLite's file nor its journal, in a folder that is ours alone."""
    engine = make_engine(f"sqlite:///{tmp_path}/var/weighbridge.sqlite")
    try:
        await migrate(engine)
        async with engine.connect() as connection:
            await connection.exec_driver_sql("SELECT 1")
            found = {path.name: mode(path) for path in (tmp_path / "var").iterdir()}
    finally:
        await engine.dispose()
    assert mode(tmp_path / "var") == 0o700
    assert set(found.values()) == {0o600}
    assert "weighbridge.sqlite-wal" in found
