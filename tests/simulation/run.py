"""Seeds on the command line: each in a child of its own, which begins exactly as every other one did."""

import argparse
import gc
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.simulation import redis_server
from tests.simulation.planted import FAULTS
from tests.simulation.seed import Result, live
from tests.sqlite import newest_sqlite

_MOST_S = 60
"""Seconds of the processor for a seed."""
_MOST_WAITED_S = 1_500
"""Real seconds: a seed that takes longer waits for something that is not simulated."""
_FIRST_SEED = 5
"""Lived through by the parent, for what is loaded and compiled at the first use. In it nobody is killed."""
_COMMAND = "python -m tests.simulation --seed"


def in_child(seed: int, *, tells: bool = False, fault: str = "") -> Result:
    """Live through a seed in a child of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _in_this(seed, writing, tells=tells, fault=fault)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        answer = told.read()
    os.waitpid(child, 0)
    if not answer:
        return Result(seed, "", ["the child ended without a word"], 0, 0, 0, 0.0)
    return msgspec.json.decode(answer, type=Result)


def _in_this(seed: int, writing: int, *, tells: bool, fault: str) -> None:
    """Never returns: what dead processes left must not be cleaned up by an orderly end."""
    gc.disable()
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, _MOST_S)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_MOST_WAITED_S)
    try:
        if fault:
            FAULTS[fault]()
        result = live(seed, print if tells else None)
    except BaseException:  # noqa: BLE001 - the parent is told
        result = Result(seed, "", [traceback.format_exc()], 0, 0, 0, 0.0)
    sys.stdout.flush()
    os.write(writing, msgspec.json.encode(result))
    _remove_folder()
    os._exit(0)


def _remove_folder() -> None:
    folder = Path.cwd()
    os.chdir("/")
    if folder.name.startswith("wb-sim-"):
        shutil.rmtree(folder, ignore_errors=True)


def _too_long(*_: object) -> None:
    raise TooLong("".join(traceback.format_stack()[-12:-1]))


class TooLong(KeyboardInterrupt):
    """A seed that did not come to its end. Nothing of the product takes it for an error of its own."""


def warm() -> None:
    """Make what all seeds have in common, so that they are as fast and as equal as can be."""
    with tempfile.TemporaryDirectory() as folder:
        # With real threads, before any seed begins.
        newest_sqlite(Path(folder) / "a" / "first.sqlite")
    live(_FIRST_SEED)
    _remove_folder()
    gc.collect()
    gc.freeze()


def _seeds(said: str) -> list[int]:
    """Read `0-999`, or several such with commas between."""
    found: list[int] = []
    for part in said.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the command; 1 where an invariant did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("--seed", type=int, help="tell the story of one seed")
    one.add_argument("--seeds", type=_seeds, help="live through these, as in 0-999, and tell what did not hold")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each seed")
    parser.add_argument("--first", action="store_true", help="end with the first that breaks something")
    parser.add_argument("--fault", choices=FAULTS, default="", help="with a fault planted in the product")
    said = parser.parse_args(arguments)
    redis_server.start()
    try:
        return _run(said)
    finally:
        redis_server.stop()


def _run(said: argparse.Namespace) -> int:
    warm()
    if said.seed is not None:
        results = [in_child(said.seed, tells=True, fault=said.fault)]
        print(f"digest {results[0].digest}")  # noqa: T201
    else:
        results = []
        for seed in said.seeds:
            result = in_child(seed, fault=said.fault)
            results.append(result)
            if said.json:
                print(msgspec.json.encode(result).decode())  # noqa: T201
            elif result.broken:
                print(f"seed {seed} breaks {len(result.broken)}; again: {_COMMAND} {seed}\n  {result.broken[0]}")  # noqa: T201
            if said.first and result.broken:
                break
    broken = [each for each in results if each.broken]
    for result in broken if said.seed is not None else ():
        print(*result.broken, sep="\n")  # noqa: T201
    if not said.json:
        print(f"{len(results)} seeds, {len(broken)} broken, {sum(each.calls for each in results)} calls of providers")  # noqa: T201
    return 1 if broken else 0
