"""An administrator's month by commands alone: an earlier version's data are upgraded, backed up under load, restored elsewhere and moved to
PostgreSQL. The key of the first day works all along.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml

from tests.postgres import Postgres
from tests.processes import ROOT, Oracle, oracle, until

pytestmark = pytest.mark.long
_COMMAND: Final = "import sys; from {module} import app; sys.argv[0] = 'weighbridge'; app()"
_LIMIT_S: Final = 180


class _Place:
    """A folder with a configuration, and the version whose commands run there."""

    def __init__(self, folder: Path, upstream: Oracle, database_url: str | None = None) -> None:
        folder.mkdir()
        self.folder = folder
        self.key = ""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        model: dict[str, Any] = {"model_id": "m", "provider": "openai", "max_context_tokens": 8000}
        model |= {"prices": {"input": 1, "output": 2}, "deployments": [upstream.deployment("ok")]}
        config = {
            "accounts": {"pepper_file": "var/pepper"},
            "server": {"port": self.port},
            "providers": {"models": [model]},
        }
        (folder / "gateway.yaml").write_text(yaml.safe_dump(config))
        self._database_url = database_url
        self.runs(ROOT, "gateway.cli")

    def runs(self, tree: Path, module: str) -> None:
        """From now on the commands are this version's."""
        self._program = [sys.executable, "-c", _COMMAND.format(module=module)]
        self._environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self._environ |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        self._environ |= {"WEIGHBRIDGE_CONFIG": str(self.folder / "gateway.yaml")}
        if self._database_url is not None:
            self._environ["WEIGHBRIDGE_DATABASE_URL"] = self._database_url

    async def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """One command to its end."""
        return await asyncio.to_thread(
            subprocess.run,
            [*self._program, *arguments],
            env=self._environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )

    async def done(self, *arguments: str) -> str:
        """What a command that must succeed printed."""
        ended = await self.run(*arguments)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout.strip()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """A gateway, which ends cleanly."""
        with (self.folder / "serve.log").open("w") as log:
            process = await asyncio.create_subprocess_exec(
                *self._program, "serve", env=self._environ, cwd=self.folder, stdout=log, stderr=log
            )
        try:
            await until(self._is_ready)
            yield
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), _LIMIT_S) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _is_ready(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}/readyz") as reply:
                return reply.status == 200
        await asyncio.sleep(0.2)
        return False

    async def has_booked(self, entries: int) -> bool:
        """Whether the ledger has so many entries, and agrees."""
        return f"the books agree: {entries} entries" in await self.done("ledger", "verify")

    async def ask(self, count: int, key: str) -> list[int]:
        """The statuses of so many calls."""
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        url, statuses = f"http://127.0.0.1:{self.port}/v1/chat/completions", []
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as session:
            for _ in range(count):
                async with session.post(url, json=body) as reply:
                    await reply.read()
                    statuses.append(reply.status)
        return statuses


def _earlier(commit: str, folder: Path) -> Path:
    """An earlier version's files; the test is skipped where this checkout does not have them."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"this checkout has no {commit}")
    folder.mkdir()
    subprocess.run(["tar", "x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder


@pytest.mark.parametrize(
    ("commit", "module", "schema"), [("8dd4e96", "proxy.cli", "0006"), ("854c813", "gateway.cli", "0025")]
)
async def test_a_month(tmp_path: Path, postgres: Postgres, commit: str, module: str, schema: str) -> None:
    """No answer is unbooked, no key is lost, and what is refused says what to do."""
    earlier = _earlier(commit, tmp_path / "earlier")
    with oracle(tmp_path) as upstream:
        first = _Place(tmp_path / "first", upstream)
        first.runs(earlier, module)
        made = await first.run("teams", "create", "team_a")
        if "ModuleNotFoundError" in made.stderr or "ImportError" in made.stderr:
            pytest.skip(f"{commit} does not run with these packages")
        key = (await first.done("keys", "create", "team_a", "--config", "gateway.yaml")).splitlines()[-1]
        async with first.serving():
            assert await first.ask(5, key) == [200] * 5

        first.runs(ROOT, "gateway.cli")
        refused = await first.run("keys", "list")
        assert (refused.returncode, f"has the schema {schema}" in refused.stderr) == (1, True)
        async with first.serving():
            assert list((first.folder / "var").glob(f"weighbridge.schema-{schema}.*.sqlite"))
            assert await first.ask(5, key) == [200] * 5
            second = (await first.done("keys", "create", "team_a")).splitlines()[-1]
            load = asyncio.create_task(first.ask(60, second))
            await first.done("backup", str(tmp_path / "b.tar.gz"))
            assert await load == [200] * 60
            # What is in the journal yet is booked meanwhile.
            await until(lambda: first.has_booked(70))

        elsewhere = _Place(tmp_path / "elsewhere", upstream)
        (elsewhere.folder / "var").mkdir()
        (elsewhere.folder / "var" / "pepper").write_bytes((first.folder / "var" / "pepper").read_bytes())
        assert "restored: " in await elsewhere.done("restore", str(tmp_path / "b.tar.gz"))
        async with elsewhere.serving():
            assert await elsewhere.ask(1, key) == await elsewhere.ask(1, second) == [200]
        await elsewhere.done("ledger", "verify")

        url = await postgres.empty_database()
        await first.done("database", "copy", "--to", url)
        moved = _Place(tmp_path / "moved", upstream, url)
        (moved.folder / "var").mkdir()
        (moved.folder / "var" / "pepper").write_bytes((first.folder / "var" / "pepper").read_bytes())
        async with moved.serving():
            assert await moved.ask(2, key) == [200] * 2
            assert (await moved.done("keys", "list", "--json")).count('"revoked_at": null') == 2
            await until(lambda: moved.has_booked(72))
