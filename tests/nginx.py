"""A real nginx with the configuration that is shipped."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.redis_server import quiet_port

SHIPPED: Final = Path(__file__).parents[1] / "deploy" / "nginx.conf"
_ANSWERS_WITHIN_S: Final = 20.0
_TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def nginx_binary() -> str:
    """The program. A test is skipped without it."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        assert not os.environ.get("CI"), "nginx is missing: .ci/packages installs it"
        pytest.skip("nginx is not there; Debian's package is nginx-light")
    return found


def written(folder: Path, port: int, hosts: Sequence[int]) -> Path:
    """The shipped file with addresses of this machine and folders of the test; nothing else is changed."""
    own = "".join(f"    {each}_temp_path {folder}/{each};\n" for each in _TEMPORARY)
    changes = {
        "listen 8080;": f"listen 127.0.0.1:{port};",
        "    server_tokens off;\n": f"    server_tokens off;\n    access_log off;\n{own}",
        "worker_processes auto;\n": "worker_processes 1;\n",
        "worker_rlimit_nofile 65536;\n": "",
        "worker_connections 20000;": "worker_connections 500;",
    }
    changes |= {f"10.0.0.1{number}:8080": f"127.0.0.1:{host}" for number, host in enumerate(hosts, 1)}
    text = SHIPPED.read_text()
    for theirs, ours in changes.items():
        assert theirs in text, theirs
        text = text.replace(theirs, ours)
    path = folder / "nginx.conf"
    path.write_text(text)
    return path


@contextlib.contextmanager
def running_nginx(folder: Path, hosts: Sequence[int]) -> Iterator[str]:
    """Before gateways on these ports of this machine; yield its address."""
    port = quiet_port()
    own = f"daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;"
    command = [nginx_binary(), "-p", str(folder), "-c", str(written(folder, port, hosts)), "-e", "stderr", "-g", own]
    with (folder / "nginx.out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + _ANSWERS_WITHIN_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, (folder / "nginx.out").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(_ANSWERS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
