"""The database at the start of the control plane: waited for while it is away, then brought to the newest schema."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.configuration.environment import Environment
from gateway.database import make_engine, migrate
from gateway.expected_errors import expected, mends_itself
from proxy.settle.observers.logs import configure_logging
from settings.private import private_folder

_log: Final = logging.getLogger("weighbridge.serve")
_AGAIN_S: Final = 1.0
_SAY_EVERY: Final = 30
"""Tries from one line of the log to the next."""


async def prepare_database(environment: Environment) -> None:
    """Bring the schema to its newest version. Raises what waiting does not mend."""
    private_folder(environment.data_dir)
    # What a migration does is told when it fails; its progress is noise in a server's log.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with contextlib.closing(configure_logging()):
        async with _engine(environment.database()) as engine:
            await once_it_is_there(lambda: migrate(engine))


@contextlib.asynccontextmanager
async def _engine(url: str) -> AsyncIterator[AsyncEngine]:
    engine = make_engine(url)
    try:
        yield engine
    finally:
        await engine.dispose()


async def once_it_is_there(
    work: Callable[[], Awaitable[None]], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Do the work, again and again while the database is away, and say so now and then."""
    tries = 0
    while True:
        try:
            await work()
        except Exception as error:
            if not mends_itself(error):
                raise
            if tries % _SAY_EVERY == 0:
                _log.warning("%s; trying again until it is there", expected(error))
        else:
            return
        tries += 1
        await sleep(_AGAIN_S)
