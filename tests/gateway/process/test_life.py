"""The life of a process: signals, a start that is ended, and the end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

_SCRIPT: Final = """
import asyncio, contextlib, os, sys
from gateway.process.life import ignore_early_signals, live

@contextlib.asynccontextmanager
async def opening():
    say("opening")
    try:
        if "slow" in sys.argv:
            await asyncio.sleep(60)
        yield "opened"
    finally:
        if "slow-end" in sys.argv:
            say("closing")
            await asyncio.sleep(60)
        say("closed")

def say(text):
    print(text, flush=True)

async def serve(opened, signals):
    signals.when_replaced = lambda: say("replaced")
    say(opened)
    await signals.stopped.wait()
    say("stopped")

ignore_early_signals()
sys.exit(live(opening(), serve, reload=lambda: say("reloaded")))
"""


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as made:
        try:
            yield made
        finally:
            made.kill()


def line(made: subprocess.Popen[str]) -> str:
    assert made.stdout is not None
    return made.stdout.readline().strip()


def test_it_opens_serves_and_closes() -> None:
    """A reload and a replacement reach it while it serves; a stop ends it with status 0."""
    with process() as made:
        assert [line(made), line(made)] == ["opening", "opened"]
        made.send_signal(signal.SIGHUP)
        assert line(made) == "reloaded"
        made.send_signal(signal.SIGUSR2)
        assert line(made) == "replaced"
        made.send_signal(signal.SIGTERM)
        assert [line(made), line(made)] == ["stopped", "closed"]
        assert made.wait(30) == 0


def test_a_stop_during_the_start_ends_the_start() -> None:
    """Nothing is served, what was opened is closed, and the status is 0; an early reload changes nothing."""
    with process("slow") as made:
        assert line(made) == "opening"
        made.send_signal(signal.SIGHUP)
        made.send_signal(signal.SIGTERM)
        assert line(made) == "closed"
        assert made.wait(30) == 0


def test_a_second_signal_is_obeyed_at_once() -> None:
    """However long the end would take."""
    with process("slow-end") as made:
        assert [line(made), line(made)] == ["opening", "opened"]
        made.send_signal(signal.SIGTERM)
        assert [line(made), line(made)] == ["stopped", "closing"]
        began = time.monotonic()
        os.kill(made.pid, signal.SIGINT)
        assert made.wait(30) == 1
        assert time.monotonic() - began < 30
