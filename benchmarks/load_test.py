"""Parts that load tests have in common: options, a folder, processes that are stopped whatever happens, a file of figures."""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from benchmarks import figures
from benchmarks.processes import Child, Children
from gateway.process.open_files import allow_many_sockets

_LOOK_S: Final = 0.25
_TELL_S: Final = 5.0
T = TypeVar("T")


class Stage:
    """The place in which one load test runs."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.children = Children(folder)
        self.problems: list[str] = []
        """Failures of the run itself; a missed aim is none."""
        self._begun_at = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun_at

    def say(self, text: str) -> None:
        sys.stderr.write(f"[{self.seconds:6.1f} s] {text}\n")
        sys.stderr.flush()

    def python(self, name: str, module: str, *arguments: str, core: int | None = None) -> Child:
        """Start one of our own modules."""
        return self.children.start(name, [sys.executable, "-m", module, *arguments], core=core)

    def drive(
        self,
        name: str,
        module: str,
        plan: msgspec.Struct,
        result: type[T],
        *,
        within_s: float,
        look: Callable[[], None] = lambda: None,
        core: int | None = None,
    ) -> T:
        """Run a driver, which reads a plan and writes its result; `look` is called a few times a second meanwhile."""
        plan_file, result_file = self.folder / f"{name}.plan", self.folder / f"{name}.result"
        plan_file.write_bytes(msgspec.json.encode(plan))
        result_file.unlink(missing_ok=True)
        child = self.python(name, module, "--plan", str(plan_file), "--result", str(result_file), core=core)
        give_up_at = time.monotonic() + within_s
        tell_at, told = time.monotonic() + _TELL_S, ""
        while child.process.poll() is None:
            if time.monotonic() > give_up_at:
                child.stop()
                raise RuntimeError(f"{name} did not end within {within_s:.0f} s\n{child.stderr_tail()}")
            look()
            if time.monotonic() >= tell_at:
                tell_at += _TELL_S
                told = self._tell(name, child, told)
            time.sleep(_LOOK_S)
        if child.process.returncode != 0:
            raise RuntimeError(f"{name} failed\n{child.stderr_tail()}")
        return msgspec.json.decode(result_file.read_bytes(), type=result)

    def _tell(self, name: str, child: Child, told: str) -> str:
        line = (child.stderr_tail().splitlines() or [""])[-1]
        if line and line != told:
            self.say(f"{name}: {line}")
        return line


def plan_of(plan: type[T], doc: str | None) -> tuple[T, Path]:
    """Return a driver's two arguments: its plan, read, and the path of its result."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    return msgspec.json.decode(given.plan.read_bytes(), type=plan), given.result


def run(
    name: str,
    doc: str | None,
    measure: Callable[[Stage], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
) -> int:
    """Run the whole command. Exit status 1 means that the run went wrong, not that an aim was missed."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a rough answer, soon")
    parser.add_argument("--json", type=Path, default=Path(f"build/{name}.json"), help="where the figures are written")
    given = parser.parse_args()
    # A stop must still stop the children: it becomes an exception that passes through `finally`.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    files = allow_many_sockets()
    machine = figures.machine() | {"open_files": files}
    with tempfile.TemporaryDirectory(prefix=f"weighbridge-{name}-") as folder:
        stage = Stage(Path(folder), quick=given.quick)
        stage.say(f"{machine['processor']}, {os.cpu_count()} cores; {files} open files allowed")
        try:
            report = measure(stage)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            return 130
        finally:
            stage.children.stop()
    report |= {
        "size": "quick" if given.quick else "full",
        "problems": stage.problems,
        "machine": machine,
        "seconds": round(stage.seconds, 1),
    }
    figures.write(given.json, report)
    print()
    show(report)
    for problem in stage.problems:
        print(f"WRONG: {problem}")
    print(f"\nwritten to {given.json}")
    return 1 if stage.problems else 0
