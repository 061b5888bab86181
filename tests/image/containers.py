"""A container of the image, as it should be run: no network, a root that is read, no capability, one volume."""

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

IMAGE: Final = os.environ.get("WB_IMAGE", "")
ROOT: Final = Path(__file__).parents[2]
_READY_S: Final = 180.0
# The hard limits of this machine may be below what Podman would set, and cgroups without systemd are a folder.
_PODMAN: Final = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs")
_LIMITS: Final = ("--ulimit", "nofile=20000:20000", "--ulimit", "nproc=4096:4096", "--memory", "1200m")
CONFINED: Final = (
    *("--network", "none", "--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp"),  # noqa: S108 - in the container
    *("--cap-drop", "all", "--security-opt", "no-new-privileges"),
)


def podman(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command of Podman to its end."""
    return subprocess.run([*_PODMAN, *arguments], capture_output=True, text=True, check=check, timeout=300)


class Container:
    """One that was started, with a configuration of its own or the image's."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command inside. Returns what it printed."""
        done = podman("exec", self.name, *command, check=False)
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout

    def python(self, program: str, *arguments: str) -> str:
        """Run a program by the image's Python."""
        return self.run("python", "-c", program, *arguments)

    def wait_until_ready(self) -> None:
        """Ask as its health check does."""
        until = time.monotonic() + _READY_S
        while podman("healthcheck", "run", self.name, check=False).returncode != 0:
            assert time.monotonic() < until, self.log
            assert podman("inspect", self.name, "--format", "{{.State.Running}}").stdout.strip() == "true", self.log
            time.sleep(0.5)

    @property
    def log(self) -> str:
        done = podman("logs", self.name, check=False)
        return done.stdout + done.stderr


@contextmanager
def volume() -> Iterator[str]:
    """A new volume's name."""
    name = f"weighbridge-test-{uuid.uuid4().hex[:12]}"
    podman("volume", "create", name)
    try:
        yield name
    finally:
        podman("volume", "rm", "--force", name)


@contextmanager
def started(state: str, *options: str, config: Path | None = None) -> Iterator[Container]:
    """A container that serves, with this volume or folder as its state."""
    name = f"weighbridge-test-{uuid.uuid4().hex[:12]}"
    mounts = ["--volume", f"{state}:/var/lib/weighbridge"]
    if config is not None:
        mounts += ["--volume", f"{config}:/etc/weighbridge:ro"]
    podman("run", "--detach", "--name", name, *_LIMITS, *CONFINED, *mounts, *options, IMAGE)
    try:
        yield Container(name)
    finally:
        podman("rm", "--force", "--time", "0", name)
