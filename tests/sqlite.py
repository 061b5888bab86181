"""SQLite databases with the newest schema, made once in a process and copied from then on.

Migrating takes a tenth of a second each time, and nearly every test wants what it leaves behind. Tests of the migrations
themselves run them.
"""

import asyncio
import atexit
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from gateway.database import make_engine, migrate


def newest_sqlite(path: Path) -> str:
    """The address of a new file with the newest schema and no rows; the folder is made."""
    assert not path.exists(), f"{path} would be overwritten"
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_template(), path)
    return f"sqlite:///{path}"


@cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="weighbridge-sqlite-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "template.sqlite"
    # In a thread of its own: who asks may be in a loop that runs.
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, _make(path)).result()
    # The last connection has written everything back; a file beside this one would be missing in the copies.
    assert [each.name for each in folder.iterdir()] == [path.name]
    return path


async def _make(path: Path) -> None:
    engine = make_engine(f"sqlite:///{path}")
    try:
        await migrate(engine)
    finally:
        await engine.dispose()
