"""A server that speaks S3, as a process of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import boto3
import pytest

from proxy.batch.batch_config import S3Section

BUCKET: Final = "batches"
KEY_ID: Final = "made-up"
SECRET: Final = "made-up-too"
_START_S: Final = 60.0


class ObjectStore:
    """It, with one bucket."""

    def __init__(self, port: int, process: "subprocess.Popen[bytes]") -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._process = process

    def client(self) -> Any:
        """AWS's own client of it."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
        )

    def unfinished(self, prefix: str) -> list[str]:
        """Names of objects whose uploads were begun and neither finished nor given up."""
        found = self.client().list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)
        return [each["Key"] for each in found.get("Uploads", ())]

    def pause(self) -> None:
        """From now on it does not answer."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on as it was."""
        self._process.send_signal(signal.SIGCONT)


def section(store: ObjectStore, **fields: Any) -> S3Section:
    """The configuration that leads to it."""
    return S3Section.model_validate({"bucket": BUCKET, "endpoint": store.endpoint, **fields})


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "NO_PROXY": "127.0.0.1"}
    )
    try:
        _wait(port, process)
        store = ObjectStore(port, process)
        store.client().create_bucket(Bucket=BUCKET)
        yield store
    finally:
        process.kill()
        process.wait()


def _wait(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the object store did not start")
