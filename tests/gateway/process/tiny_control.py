"""A tiny control plane for the supervisor's tests: writes down what happens to it."""

import os
import signal
import sys
from pathlib import Path

from tests.children import children_of


def main(log: Path, ready_fd: int) -> None:
    """Says that it serves, and waits for signals. Fails where the log cannot be written."""
    stopping: list[int] = []

    def write(event: str) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()} {event}\n")

    signal.signal(signal.SIGHUP, lambda *_: write("reloaded"))
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    write("serving")
    os.write(ready_fd, b"\n")
    while not stopping:
        signal.pause()
    living = " ".join(str(pid) for pid in children_of(os.getppid()) if pid != os.getpid())
    write(f"stopping {living}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[3]))
