"""A gateway over the sample's history as a process of its own, for browsers, pictures and benchmarks."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from cost.times import DAY_US, day_of, wall_us
from gateway.demo.children import Child
from gateway.demo.history import DAYS
from gateway.demo.sample_config import Addresses, write_sample_config
from tests.browser.site import PASSWORD, WEBHOOK_SECRET, Site

_PATIENCE_S = 90.0


def write_history(folder: Path, requests: int) -> None:
    """`sample.sqlite` in this folder, with what belongs beside it."""
    command = ["-m", "gateway.demo.history", "sample.sqlite", "--requests", str(requests), "--password", PASSWORD]
    environ = {**environ_of(folder), "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]


def copied(history: Path, folder: Path) -> Path:
    """The history in a folder of its own."""
    folder.mkdir(exist_ok=True)
    for name in ("sample.sqlite", "pepper", "keys.json"):
        shutil.copy(history / name, folder / name)
    return folder


@contextlib.contextmanager
def serving(
    folder: Path, database_url: str | None = None, changed: Callable[[Path], None] = lambda config: None
) -> Iterator[Site]:
    """`weighbridge serve` as a process of its own, over the folder's database or another one, with stand-ins for what it
    calls. `changed` may change the configuration before.
    """
    with _stand_ins(folder) as addresses:
        changed(write_sample_config(folder, addresses, day_of(wall_us() - DAYS * DAY_US)))
        with _gateway(folder, database_url) as found:
            yield found


@contextlib.contextmanager
def _stand_ins(folder: Path) -> Iterator[Addresses]:
    child = Child("the stand-ins", ["-m", "gateway.demo.stand_ins"], log=folder / "stand-ins.log", environ=os.environ)
    try:
        yield msgspec.convert(child.read_announcement(), Addresses)
    finally:
        child.stop()


@contextlib.contextmanager
def _gateway(folder: Path, database_url: str | None) -> Iterator[Site]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = folder / "gateway.log"
    command = [
        sys.executable,
        "-m",
        "gateway.cli",
        "serve",
        "--config",
        str(folder / "sample.yaml"),
        "--port",
        str(port),
    ]
    with log.open("wb") as written:
        process = subprocess.Popen(command, env=environ_of(folder, database_url), stdout=written, stderr=written)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url, process, log)
        yield Site(url, json.loads((folder / "keys.json").read_text()))
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def environ_of(folder: Path, database_url: str | None = None) -> dict[str, str]:
    """The environment without another gateway's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WEIGHBRIDGE_")}
    kept.pop("DATABASE_URL", None)
    return {
        **kept,
        "WEIGHBRIDGE_DATABASE_URL": database_url or f"sqlite:///{folder}/sample.sqlite",
        "WEIGHBRIDGE_DATA_DIR": str(folder),
        "SAMPLE_WEBHOOK_SECRET": WEBHOOK_SECRET,
    }


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/readyz", timeout=5):  # noqa: S310 - our own child
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(log.read_text(errors="replace")[-3_000:])
        time.sleep(0.1)
