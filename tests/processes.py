"""`weighbridge serve` and the scripted upstream as the processes that they are, for the stories that kill and signal them."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import yaml
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore
from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from gateway.database import make_engine
from testing.scripted.log import LogLine, read_log
from tests.children import children_of
from tests.nursery import Child, nursery
from tests.running_gateway import PEPPER
from tests.sqlite import newest_sqlite

ROOT: Final = Path(__file__).parents[1]
WAIT_S: Final = 60.0
READY_WITHIN_S: Final = float(os.environ.get("WB_READY_S", "150"))
"""A start compiles nothing, but a busy machine may have eight gateways at it at once; long runs wait longer still."""
ONE_LOOK: Final = aiohttp.ClientTimeout(total=15)
_POLL_S: Final = 0.01
_STARTING: Final = re.compile(rb"starting at (http://[^\s\"]+)")
# What the person who runs the tests has set must not reach the gateways under test.
_FOREIGN: Final = re.compile(r"WEIGHBRIDGE_.*|DATABASE_URL|OTEL_.*|PROMETHEUS_.*|[A-Z]+_API_KEY|COV_.*")


class Site(msgspec.Struct, frozen=True):
    """Where gateways run that belong together: their configuration, database and journal. `key` belongs to `team_a`."""

    folder: Path
    database_url: str
    key: str
    variables: Mapping[str, str]

    @property
    def config_path(self) -> Path:
        return self.folder / "gateway.yaml"

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def configure(self, models: list[dict[str, Any]], **sections: Any) -> None:
        """Writes the configuration file, whole, as an editor does."""
        written = self.config_path.with_suffix(".new")
        written.write_text(yaml.safe_dump(_configuration(self.folder, models, sections)))
        written.replace(self.config_path)

    def environ(self) -> dict[str, str]:
        """The environment of every process here."""
        ours = {name: value for name, value in os.environ.items() if not _FOREIGN.fullmatch(name)}
        return ours | {
            "WEIGHBRIDGE_CONFIG": str(self.config_path),
            "WEIGHBRIDGE_DATABASE_URL": self.database_url,
            "WEIGHBRIDGE_DATA_DIR": str(self.folder),
            "WEIGHBRIDGE_PEPPER": PEPPER,
            "WEIGHBRIDGE_PORT": "0",
            # A supervisor that is killed leaves its folder of metrics behind.
            "TMPDIR": str(self.folder),
            **self.variables,
        }

    async def run(self, *arguments: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
        """One command of the command line, to its end. A variable that is None is taken away."""
        environ = {name: value for name, value in (self.environ() | variables).items() if value is not None}
        return await asyncio.to_thread(nursery().run, list(arguments), environ=environ, cwd=ROOT, timeout_s=WAIT_S)

    async def rows(self, where: str = "1 = 1") -> list[dict[str, Any]]:
        """Ledger rows as the database has them now, oldest first."""
        return await self.select(f"SELECT * FROM ledger_entry WHERE {where} ORDER BY at_us, attempt")  # noqa: S608

    async def select(self, statement: str) -> list[dict[str, Any]]:
        """What the database answers now."""
        async with _engine(self.database_url) as engine, engine.connect() as connection:
            return [dict(row) for row in (await connection.execute(text(statement))).mappings()]


async def make_site(
    folder: Path,
    models: list[dict[str, Any]],
    *,
    database_url: str | None = None,
    variables: Mapping[str, str] | None = None,
    **sections: Any,
) -> Site:
    """A configuration, a team and its key. A database that is given has the newest schema already."""
    url = database_url or newest_sqlite(folder / "weighbridge.sqlite")
    config_path = folder / "gateway.yaml"
    config_path.write_text(yaml.safe_dump(_configuration(folder, models, sections)))
    environment = Environment(data_dir=folder, pepper=SecretStr(PEPPER))
    config = load(config_path, environment, secrets_from=None)
    async with _engine(url) as engine:
        accounts = AccountStore(engine)
        await accounts.create_team("team_a", name="Team A")
        minted = await accounts.create_key("team_a", "tests", peppers(config, environment)[0])
    return Site(folder, url, minted.plaintext, dict(variables or {}))


def _configuration(folder: Path, models: list[dict[str, Any]], sections: dict[str, Any]) -> dict[str, Any]:
    cost = {"journal_dir": str(folder / "journal"), "drain_interval_s": 0.05, **sections.get("cost", {})}
    telemetry = {"metrics_local": True, **sections.get("telemetry", {})}
    providers = {"models": models, **sections.get("providers", {})}
    return {**sections, "providers": providers, "cost": cost, "telemetry": telemetry}


@contextlib.asynccontextmanager
async def _engine(url: str) -> AsyncIterator[AsyncEngine]:
    engine = make_engine(url)
    try:
        yield engine
    finally:
        await engine.dispose()


class Server:
    """A running `weighbridge serve`, whose log goes to a file."""

    def __init__(self, process: Child, log: Path) -> None:
        self.process = process
        self.log_path = log
        self.url = ""

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def log(self) -> str:
        """Everything that it has written so far."""
        return self.log_path.read_text(errors="replace")

    async def listening(self) -> None:
        """Returns once connections are accepted, or at least queued."""
        while not self.url:
            found = _STARTING.search(self.log_path.read_bytes())
            if found is not None:
                self.url = found[1].decode()
                return
            self._still_there()
            await asyncio.sleep(_POLL_S)

    async def ready(self) -> None:
        """Returns once it wants traffic; else says what it answered last, and what it wrote."""
        last = "nothing"
        try:
            async with asyncio.timeout(READY_WITHIN_S), aiohttp.ClientSession(timeout=ONE_LOOK) as session:
                await self.listening()
                while True:
                    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                        async with session.get(f"{self.url}/readyz") as reply:
                            last = f"{reply.status} {await reply.text()}"
                            if reply.status == 200:
                                return
                    self._still_there()
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise AssertionError(
                f"not ready in {READY_WITHIN_S} s; /readyz said {last}; its log:\n{self.log}"
            ) from None

    def _still_there(self) -> None:
        status = self.process.poll()
        assert status is None, f"the gateway ended with {status}:\n{self.log}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """The exit status, once there is one."""
        await until(lambda: self.process.poll() is not None)
        return self.process.wait()

    async def stop(self) -> int:
        """Asks it to end, and waits for that."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    def workers(self) -> list[int]:
        """Those of its processes that serve callers."""
        return [pid for pid in self.children() if _runs(pid, "worker")]

    def control(self) -> int | None:
        """Its control plane; None while there is none."""
        return next((pid for pid in self.children() if _runs(pid, "control")), None)

    def children(self) -> list[int]:
        """The processes that it has started and that live."""
        return children_of(self.process.pid)

    def kill(self) -> None:
        """Kill -9 of it, and of its processes."""
        children = self.children()
        self.process.kill()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def start(site: Site, name: str = "gateway", *arguments: str) -> Server:
    """Starts `weighbridge serve`; its log is a file of that name."""
    log = site.folder / f"{name}.log"
    # It is there before the child is, for those who look for its first words at once.
    log.touch()
    return Server(nursery().start(["serve", *arguments], environ=site.environ(), cwd=ROOT, log=log), log)


@contextlib.asynccontextmanager
async def serving(site: Site, name: str = "gateway", *arguments: str) -> AsyncIterator[Server]:
    """A gateway that is ready; it is gone at the end of the block, whatever happens in it."""
    server = start(site, name, *arguments)
    try:
        await server.ready()
        yield server
    finally:
        server.kill()


def _runs(pid: int, name: str) -> bool:
    """Whether the process is a plane's, started anew or forked (and named) by the nursery."""
    try:
        folder = Path(f"/proc/{pid}")
        is_named = (folder / "comm").read_text().strip() == name
        return is_named or f"gateway.process.{name}".encode() in (folder / "cmdline").read_bytes()
    except OSError:
        return False


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Waits for something that must happen, mostly in another process."""
    async with asyncio.timeout(WAIT_S):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(_POLL_S)


class Oracle(msgspec.Struct, frozen=True):
    """The scripted upstream as a process of its own, which no gateway's death touches, and what it saw."""

    url: str
    log_path: Path

    def deployment(self, script: str, name: str = "main", **fields: Any) -> dict[str, Any]:
        """A deployment whose model name is the script that it plays."""
        return {"name": name, "kind": "openai", "base_url": self.url, "upstream_model": script, **fields}

    def seen(self) -> list[LogLine]:
        return read_log(self.log_path)


@contextlib.contextmanager
def oracle(folder: Path) -> Iterator[Oracle]:
    """Serves scripts until the block ends."""
    log = folder / "upstream.jsonl"
    log.touch()
    command = [sys.executable, "-m", "testing.scripted.server", "--log", str(log)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        yield Oracle(process.stdout.readline().decode().strip(), log)
    finally:
        process.kill()
        process.communicate()
