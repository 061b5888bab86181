"""Tries a reader with bytes near to sound ones, keeps those that reach new lines, and makes what breaks it small.

python -m tests.fuzz.fuzzing MINUTES [SEED] [ONLY]     all readers in turn, with a fresh seed
python -m tests.fuzz.fuzzing replay NAME FILE          one reader on the bytes that broke it
"""

import hashlib
import random
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS, Target

_ROOT: Final = str(Path(__file__).parents[2])
_FOUND: Final = Path("build/fuzz")
_SLOW_S: Final = 5.0
"""No reader takes so long over 64 kB; one that does can be kept busy by whoever sends it."""
_TURN_S: Final = 6.0
_MOST_KEPT: Final = 400
_MOST_CUTS: Final = 2_000


def broken_by(target: Target, data: bytes) -> BaseException | None:
    """Return what a reader raises and may not; None where all is well."""
    begun = time.process_time()
    try:
        target.read(data)
    except target.refuses:
        pass
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - each of them is a finding
        return error
    taken = time.process_time() - begun
    return TimeoutError(f"it took {taken:.1f} s") if taken > _SLOW_S else None


def smallest(target: Target, data: bytes, like: BaseException) -> bytes:
    """Return as few bytes as are seen to break a reader in the same way."""
    size, tries = max(1, len(data) // 2), 0
    while size and tries < _MOST_CUTS:
        at = 0
        while at < len(data) and tries < _MOST_CUTS:
            tries += 1
            less = data[:at] + data[at + size :]
            if type(broken_by(target, less)) is type(like):
                data = less
            else:
                at += size
        size //= 2
    return data


class Reached:
    """The lines of the product that anything reached so far."""

    def __init__(self) -> None:
        self._seen: set[tuple[CodeType, int]] = set()
        self._ours: dict[CodeType, bool] = {}

    def grows_by(self, run: Callable[[], BaseException | None]) -> tuple[BaseException | None, bool]:
        """Run, and return its result and True where a line was reached that none had reached before."""
        before = len(self._seen)
        sys.settrace(self._call)
        try:
            error = run()
        finally:
            sys.settrace(None)
        return error, len(self._seen) > before

    def _call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            name = code.co_filename
            ours = self._ours[code] = name.startswith(_ROOT) and "/tests/" not in name and "/.venv" not in name
        return self._line if ours else None

    def _line(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            self._seen.add((frame.f_code, frame.f_lineno))
        return self._line


class Fuzzed:
    """One reader with what has reached something in it."""

    def __init__(self, target: Target, chance: random.Random) -> None:
        self.target = target
        self._chance = chance
        self._kept = list(target.seeds)
        self._reached = Reached()
        self.tried = 0
        for seed in target.seeds:
            self._reached.grows_by(partial(broken_by, target, seed))

    def turn(self, until: float) -> tuple[bytes, BaseException] | None:
        """Try until a moment. Returns the first bytes that break the reader."""
        while time.monotonic() < until:
            data = mutated(self._chance, self._kept, self.target.form)
            self.tried += 1
            error, is_new = self._reached.grows_by(partial(broken_by, self.target, data))
            if is_new:
                self._kept.append(data)
                if len(self._kept) > _MOST_KEPT:
                    del self._kept[len(self.target.seeds)]
            if error is not None:
                return data, error
        return None


def _tell(target: Target, data: bytes, error: BaseException) -> None:
    small = smallest(target, data, error)
    last = broken_by(target, small) or error
    print(f"\n{target.name} is broken by {small[:300]!r} ({len(small)} bytes):")
    traceback.print_exception(last, limit=-6)
    kept = _FOUND / hashlib.sha256(small).hexdigest()[:16]
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(small)
    print(f'replay: .venv/bin/python -m tests.fuzz.fuzzing replay "{target.name}" {kept}\n', flush=True)


def fuzz(minutes: float, seed: int, only: str = "") -> int:
    """Give each reader its turns. Returns how many were broken; each is told once."""
    print(f"seed {seed}, {minutes:g} minutes", flush=True)
    chance = random.Random(seed)
    left = [Fuzzed(each, random.Random(chance.random())) for each in TARGETS if only in each.name]
    every, broken = list(left), 0
    end = time.monotonic() + minutes * 60
    while left and time.monotonic() < end:
        for each in list(left):
            found = each.turn(min(end, time.monotonic() + _TURN_S))
            if found is not None:
                _tell(each.target, *found)
                left.remove(each)
                broken += 1
    print(f"{sum(each.tried for each in every):,} tries over {len(every)} readers; {broken} broken")
    return broken


def main(arguments: list[str]) -> int:
    """Fuzz, or replay."""
    if arguments[:1] == ["replay"]:
        target = next(each for each in TARGETS if each.name == arguments[1])
        error = broken_by(target, Path(arguments[2]).read_bytes())
        if error is not None:
            traceback.print_exception(error)
        return int(error is not None)
    seed = int(arguments[1]) if len(arguments) > 1 and arguments[1] else random.SystemRandom().randrange(10**9)
    return int(fuzz(float(arguments[0]), seed, *arguments[2:3]) > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
