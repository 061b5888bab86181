"""A tiny worker for the supervisor's tests: says who it is, counts reloads, and can be slow or unable to start."""

import argparse
import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator

from gateway.process.life import Signals, ignore_early_signals, live, until_stopped
from gateway.process.parent_pipe import follow_parent
from gateway.process.start_report import StartReport
from proxy.http.exchange import Exchange
from proxy.http.server import HttpServer


class Tiny:
    """Answers every request with `pid reloads draining under-way`; `/slow` takes its time, `/endless` all time there is.

    `/kept` leaves its connection open.
    """

    def __init__(self) -> None:
        self.reloads = 0
        self.leaving = False
        self.draining = False
        self.under_way = 0
        """Slow and endless ones."""
        self.over = asyncio.Event()

    def reload(self) -> None:
        self.reloads += 1

    def begin_leave(self) -> None:
        self.leaving = True

    def begin_drain(self) -> None:
        self.draining = True

    def cut_off(self) -> None:
        self.over.set()

    async def answer(self, exchange: Exchange) -> None:
        if exchange.path in {"/slow", "/endless"}:
            self.under_way += 1
            await (asyncio.sleep(0.5) if exchange.path == "/slow" else self.over.wait())
            self.under_way -= 1
        body = f"{os.getpid()} {self.reloads} {self.draining} {self.under_way}".encode()
        exchange.respond(200, [] if exchange.path == "/kept" else [(b"connection", b"close")], body)


def run(arguments: list[str]) -> int:
    """Serves on the inherited socket. A `broken` one cannot start, a `fussy` one not once the file FUSSY is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--start")
    parser.add_argument("--kind", default="tiny")
    parser.add_argument("--drain-s", type=float, default=5.0)
    given = parser.parse_args(arguments)
    ignore_early_signals()
    if given.ready_fd is not None:
        follow_parent(lambda: os._exit(0))
    tiny = Tiny()
    report = StartReport(given.ready_fd)

    @contextlib.asynccontextmanager
    async def opening() -> AsyncIterator[HttpServer]:
        if given.kind == "broken" or (given.kind == "fussy" and os.path.exists(os.environ["FUSSY"])):  # noqa: PTH110, ASYNC240 - a file in memory
            raise RuntimeError("nothing works")
        server = HttpServer({}, tiny.answer)
        with socket.socket(fileno=given.fd) as listener:
            await server.listen(listener)
            try:
                yield server
            finally:
                await server.aclose()

    async def serve(server: HttpServer, signals: Signals) -> None:
        report.serves()
        await until_stopped(server, tiny, signals, given.drain_s)

    return report.run(lambda: live(opening(), serve, reload=tiny.reload))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
