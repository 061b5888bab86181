"""The database at the start: what has to be done there is done as soon as it is there, and health is told while it is away."""

import asyncio
import contextlib
import logging
import math
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from gateway.configuration.gateway_config import ServerConfig
from gateway.expected_errors import expected, mends_itself
from gateway.process.start_gate import StartGate, connection_limits
from proxy.admin.health import Starting
from proxy.http.server import HttpServer, tls_context

_log: Final = logging.getLogger("weighbridge.serve")
_AGAIN_S: Final = 1.0
_SAY_EVERY: Final = 30
"""Tries from one line of the log to the next."""

Work = Callable[[], Awaitable[None]]


async def prepare_database(listener: socket.socket, server: ServerConfig, work: Work) -> None:
    """Do the work on the database. While that is away, whoever asks on the socket is told. Raises what waiting does not mend."""
    try:
        await work()
    except Exception as error:
        if not mends_itself(error):
            raise
    else:
        return
    async with _telling(listener, server):
        await once_it_is_there(work)


async def once_it_is_there(
    work: Work, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, *, within_s: float = math.inf
) -> None:
    """Do the work, again and again while the database is away, and say so now and then. After `within_s` raises what it met."""
    tries = 0
    begun = time.monotonic()
    while True:
        try:
            await work()
        except Exception as error:
            if not mends_itself(error) or time.monotonic() - begun >= within_s:
                raise
            if tries % _SAY_EVERY == 0:
                _log.warning("%s; trying again until it is there", expected(error))
        else:
            return
        tries += 1
        await sleep(_AGAIN_S)


@contextlib.asynccontextmanager
async def _telling(listener: socket.socket, config: ServerConfig) -> AsyncIterator[None]:
    async def look() -> Starting:
        return Starting.of(database=False, control_plane=False)

    gate = StartGate(look, hold_s=0.0)
    server = HttpServer(gate.health, gate.hold, connection_limits(config), cors_origins=config.cors_origins)
    tls = None if config.tls is None else tls_context(config.tls.certificate, config.tls.key)
    try:
        # The workers accept from the socket itself, after this.
        await server.listen(listener.dup(), tls=tls)
        yield
    finally:
        await server.aclose()
