"""Child processes of a benchmark: started on a chosen core, waited for, measured, and stopped by their ids."""

import contextlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

_READY_WITHIN_S: Final = 120.0
_STOP_WITHIN_S: Final = 10.0
_STDERR_CHARS: Final = 2_000
_LOOK_S: Final = 0.8
"""Longer than the drain gathers between two rounds, so that a pause is not taken for the end."""
_RESTING_SHARE: Final = 0.06
"""Part of a processor that a server may take at rest: its polls."""
_LOOKS: Final = 20
"""The most looks at a server that never rests."""


class Cores(msgspec.Struct, frozen=True):
    """The core of each process; None where a process cannot be pinned."""

    server: int | None
    mock: int | None
    driver: int | None

    def describe(self) -> str:
        if self.server is None:
            return "processes are not pinned here"
        return f"server under test on core {self.server}, mock upstream on {self.mock}, load driver on {self.driver}"


def choose_cores() -> Cores:
    """Choose the server alone on a core. On two cores the mock and the driver share the other; on more each has its own."""
    if not hasattr(os, "sched_getaffinity"):
        return Cores(None, None, None)
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) == 1:
        return Cores(None, None, None)
    return Cores(server=usable[0], mock=usable[1], driver=usable[min(2, len(usable) - 1)])


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Pin this process to a core; children started inside inherit it."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Child:
    """One started process and where its standard error went."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", stderr: Path) -> None:
        self.name = name
        self.process = process
        self._stderr = stderr

    def wait_ready(self, url: str, within_s: float = _READY_WITHIN_S) -> None:
        """Wait until `url` answers 200; raises RuntimeError with the end of its standard error when it never does."""
        give_up_at = time.monotonic() + within_s
        while time.monotonic() < give_up_at and self.process.poll() is None:
            with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=2) as reply:  # noqa: S310 - our own address
                if reply.status == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} did not become ready\n{self.stderr_tail()}")

    def stderr_tail(self) -> str:
        return self._stderr.read_text(errors="replace")[-_STDERR_CHARS:]

    def rss_bytes(self) -> int:
        """Return the resident memory of the process and its children; 0 where /proc is missing."""
        return sum(rss_bytes(pid) for pid in family(self.process.pid))

    def cpu_s(self) -> float:
        """Return the processor seconds used so far by the process and its children."""
        return sum(cpu_s(pid) for pid in family(self.process.pid))

    def cpu_s_at_rest(self) -> float:
        """Return the processor seconds used once next to nothing is left to do, which is waited for, but not for ever."""
        return used_at_rest(self.cpu_s)

    def stop(self) -> None:
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Children:
    """Started processes, every one of them stopped at the end, the last first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Child] = []

    def start(
        self, name: str, command: Sequence[str], *, core: int | None, environ: Mapping[str, str] | None = None
    ) -> Child:
        stderr = self._folder / f"{name}.err"
        with stderr.open("wb") as err, on_core(core):
            process = subprocess.Popen(
                list(command), stdout=err, stderr=err, stdin=subprocess.DEVNULL, env={**os.environ, **(environ or {})}
            )
        child = Child(name, process, stderr)
        self._started.append(child)
        return child

    def stop(self) -> None:
        for child in reversed(self._started):
            child.stop()
        self._started.clear()


def until_rest(
    used_s: Callable[[], Sequence[float]],
    *,
    look_s: float,
    share: float,
    looks: int,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Sequence[float], bool]:
    """Wait until none of the processor times that `used_s` tells grows by `share` of a processor between two looks. Returns the
    last ones, and True if it came to that.
    """
    now = used_s()
    for _ in range(looks):
        sleep(look_s)
        before, now = now, used_s()
        if all(each - was < look_s * share for was, each in zip(before, now, strict=True)):
            return now, True
    return now, False


def used_at_rest(used_s: Callable[[], float], sleep: Callable[[float], None] = time.sleep) -> float:
    """Return the times that `used_s` tells once they grow no more than by polls."""
    last, _ = until_rest(lambda: (used_s(),), look_s=_LOOK_S, share=_RESTING_SHARE, looks=_LOOKS, sleep=sleep)
    return last[0]


def machine_cpu_s() -> float | None:
    """Return the processor seconds that everybody on this machine has used, those included that its host took away;
    None where /proc/stat is missing.
    """
    try:
        user, nice, system, _idle, _wait, irq, soft_irq, stolen = map(
            int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        )
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + soft_irq + stolen) / os.sysconf("SC_CLK_TCK")


def own_cpu_s() -> float:
    """Return the processor seconds of this process, of those that it waited for, and of those that it runs now."""
    used = os.times()
    waited_s = used.children_user + used.children_system
    return waited_s + sum(cpu_s(pid) for pid in family(os.getpid()))


def family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def rss_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    try:
        # The second field, the command, may hold blanks; the rest begins after its closing bracket.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
