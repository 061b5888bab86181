"""A gateway for several teams, each with a key, and its workers as the system shows them."""

import asyncio
import contextlib
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from pydantic import SecretStr

from accounts.store import AccountStore
from benchmarks import processes
from benchmarks.processes import Child, Children, free_port
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from gateway.database import make_engine, migrate

_DRAIN_S: Final = 2
_QUIET_WITHIN_S: Final = 60.0
_QUIET_LOOK_S: Final = 0.5
_QUIET_SHARE: Final = 0.2
"""Part of a processor below which a worker counts as quiet."""
_ESTABLISHED: Final = "01"
_COMMAND: Final = (sys.executable, "-c", "from gateway.cli import app; app()", "serve")


class Team(msgspec.Struct, frozen=True):
    team_id: str
    weight: float = 1.0
    spill_over: bool | None = None
    """Setting of the team; None leaves that of a new team."""


class Site(msgspec.Struct, frozen=True):
    """A gateway that answers."""

    child: Child
    url: str
    keys: Mapping[str, str]
    """Keys by team."""

    def stop(self) -> None:
        self.child.stop()


def model(model_id: str, upstream: str, *, input_price: float, output_price: float, **fields: Any) -> dict[str, Any]:
    """Return a catalog entry with one deployment that an engine of our own or a mock of it serves."""
    return {
        "model_id": model_id,
        "provider": "bench",
        "prices": {"input": input_price, "output": output_price},
        "max_context_tokens": 128_000,
        "capability": 1.0,
        "deployments": [{"name": "mock", "kind": "vllm", "base_url": f"{upstream}/v1"}],
        **fields,
    }


def start_site(
    children: Children,
    folder: Path,
    name: str,
    sections: Mapping[str, Any],
    teams: Sequence[Team],
    *,
    core: int | None = None,
    **server: Any,
) -> Site:
    """Write a configuration, make the teams and a key for each, and start `weighbridge serve`. Raises RuntimeError."""
    home = folder / name
    home.mkdir()
    port = free_port()
    config = home / "gateway.yaml"
    cost = {"journal_dir": str(home / "journal"), **sections.get("cost", {})}
    settings = {"host": "127.0.0.1", "port": port, "drain_s": _DRAIN_S, **server}
    telemetry = {"metrics_local": True, **sections.get("telemetry", {})}
    written = {**sections, "server": settings, "cost": cost, "telemetry": telemetry}
    config.write_text(yaml.safe_dump(written, sort_keys=False))
    pepper = secrets.token_hex(32)
    keys = asyncio.run(_keys(config, Environment(data_dir=home, pepper=SecretStr(pepper)), teams))
    environ = {"WEIGHBRIDGE_PEPPER": pepper, "WEIGHBRIDGE_DATA_DIR": str(home), "TMPDIR": str(home)}
    child = children.start(name, [*_COMMAND, "--config", str(config)], core=core, environ=environ)
    site = Site(child, f"http://127.0.0.1:{port}", keys)
    child.wait_ready(f"{site.url}/readyz")
    return site


async def _keys(config: Path, environment: Environment, teams: Sequence[Team]) -> dict[str, str]:
    pepper = peppers(load(config, environment), environment)[0]
    engine = make_engine(environment.database())
    try:
        await migrate(engine)
        accounts = AccountStore(engine)
        keys = {}
        for team in teams:
            await accounts.create_team(team.team_id)
            spill_over = msgspec.UNSET if team.spill_over is None else team.spill_over
            await accounts.update_team(team.team_id, weight=team.weight, spill_over=spill_over)
            keys[team.team_id] = (await accounts.create_key(team.team_id, "bench", pepper)).plaintext
        return keys
    finally:
        await engine.dispose()


class Seen(msgspec.Struct, frozen=True):
    """One worker at a moment."""

    rss_bytes: int
    cpu_s: float


_WORKER: Final = b"gateway.process.worker"


def _command_of(pid: int) -> bytes:
    """Return the command line of a process; empty for one that has ended, and where there is no /proc."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


class Workers:
    """The processes of a gateway that answer models; its supervisor and its control plane do not."""

    def __init__(self, gateway: Child) -> None:
        self.pids = [pid for pid in processes.family(gateway.process.pid) if _WORKER in _command_of(pid)]

    def now(self) -> tuple[Seen, ...]:
        return tuple(Seen(processes.rss_bytes(pid), processes.cpu_s(pid)) for pid in self.pids)

    def wait_quiet(self) -> None:
        """Wait until no worker has much to do: each has started, and what an earlier load left behind is done. Raises
        RuntimeError.
        """
        _, is_quiet = processes.until_rest(
            lambda: [each.cpu_s for each in self.now()],
            look_s=_QUIET_LOOK_S,
            share=_QUIET_SHARE,
            looks=round(_QUIET_WITHIN_S / _QUIET_LOOK_S),
        )
        if not is_quiet:
            raise RuntimeError("the gateway does not come to rest")

    def connections(self, port: int) -> list[int]:
        """Return the number of callers of each worker, as the system lists them; zeros where there is no /proc. Takes a while."""
        theirs = _sockets_at(port)
        return [len(theirs & _sockets_of(pid)) for pid in self.pids]


def _sockets_at(port: int) -> set[str]:
    """Return the inodes of established IPv4 connections to a local port."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _ESTABLISHED and int(local.rpartition(":")[2], 16) == port:
                found.add(inode)
    return found


def _sockets_of(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - thousands of names, no paths needed
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}").removeprefix("socket:[").removesuffix("]"))  # noqa: PTH115
    return found


def wait_workers(gateway: Child, count: int) -> Workers:
    """Wait until that many workers run. Raises RuntimeError."""
    give_up_at = time.monotonic() + 30
    while len(found := Workers(gateway).pids) != count:
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"{len(found)} workers run rather than {count}")
        time.sleep(0.1)
    return Workers(gateway)
