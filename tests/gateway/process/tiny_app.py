"""A tiny ASGI app for the supervisor's tests: says who it is, counts reloads, and can be slow or unable to start."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send


class _State:
    reloads = 0
    draining = False
    over = asyncio.Event()


def _count_reload() -> None:
    _State.reloads += 1


class Tiny:
    """Answers every request with `pid reloads draining`; `/slow` takes its time, `/endless` all time there is.

    `/kept` leaves its connection open.
    """

    class state:  # noqa: N801 - an app's attribute of this name
        @staticmethod
        def begin_drain() -> None:
            _State.draining = True

        @staticmethod
        def cut_off() -> None:
            _State.over.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["path"] == "/slow":
            await asyncio.sleep(0.5)
        if scope["path"] == "/endless":
            await _State.over.wait()
        body = f"{os.getpid()} {_State.reloads} {_State.draining}".encode()
        headers = [(b"content-length", str(len(body)).encode())]
        if scope["path"] != "/kept":
            headers.append((b"connection", b"close"))
        start: Any = {"type": "http.response.start", "status": 200, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Receive, send: Send) -> None:
    await receive()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _count_reload)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


async def broken(scope: Scope, receive: Receive, send: Send) -> None:
    """An app whose start-up fails."""
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "nothing works"})


def _may_not_start() -> bool:
    return Path(os.environ["FUSSY"]).exists()


async def fussy(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that cannot start any more once the file that FUSSY names is there."""
    await (broken if scope["type"] == "lifespan" and _may_not_start() else tiny)(scope, receive, send)


tiny = Tiny()
