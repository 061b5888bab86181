"""Other versions of the program, beside this one: an earlier commit's files, and a version to come."""

import asyncio
import contextlib
import os
import shutil
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

from gateway.schema import newest
from tests.processes import ONE_LOOK, READY_WITHIN_S, ROOT, Oracle

_COMMAND: Final = "import sys; from {module} import app; sys.argv[0] = 'weighbridge'; app()"
_LIMIT_S: Final = 180


class Place:
    """A folder with a configuration, and the version whose commands run there."""

    def __init__(
        self, folder: Path, upstream: Oracle, database_url: str | None = None, *, migrates: bool | None = None
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self.key = ""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        model: dict[str, Any] = {"model_id": "m", "provider": "openai", "max_context_tokens": 8000}
        model |= {"prices": {"input": 1, "output": 2}, "deployments": [upstream.deployment("ok")]}
        config = {
            # A busy machine is no broken key store.
            "accounts": {"pepper_file": "var/pepper", "lookup_timeout_s": 10},
            "server": {"port": self.port},
            "providers": {"models": [model]},
        }
        (folder / "gateway.yaml").write_text(yaml.safe_dump(config))
        self._database_url = database_url
        self._migrates = migrates
        self.runs(ROOT, "gateway.cli")

    def runs(self, tree: Path, module: str) -> None:
        """From now on the commands are this version's."""
        self._program = [sys.executable, "-c", _COMMAND.format(module=module)]
        self._environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self._environ |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        self._environ |= {"WEIGHBRIDGE_CONFIG": str(self.folder / "gateway.yaml")}
        if self._database_url is not None:
            self._environ["WEIGHBRIDGE_DATABASE_URL"] = self._database_url
        if self._migrates is not None:
            self._environ["WEIGHBRIDGE_MIGRATE"] = str(self._migrates).lower()

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
            try:
                async with asyncio.timeout(READY_WITHIN_S):
                    while not await self._is_ready():  # noqa: ASYNC110 - another process
                        await asyncio.sleep(0.2)
            except TimeoutError:
                pytest.fail(f"not ready in {READY_WITHIN_S} s; its log:\n{self.log}")
            yield
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), _LIMIT_S) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    @property
    def log(self) -> str:
        """What the last gateway wrote."""
        return (self.folder / "serve.log").read_text()

    async def _is_ready(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with (
                aiohttp.ClientSession(timeout=ONE_LOOK) as session,
                session.get(f"http://127.0.0.1:{self.port}/readyz") as reply,
            ):
                return reply.status == 200
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


def earlier(commit: str, folder: Path) -> Path:
    """An earlier version's files; the test is skipped where this checkout does not have them."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"this checkout has no {commit}")
    folder.mkdir()
    subprocess.run(["tar", "x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder


LATER: Final = "9001"
_LATER_MIGRATION: Final = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "{revision}", "{before}", None, None
OLDER_CODE_SERVES = {older_code_serves}


def upgrade():
    op.create_table("later_thing", sa.Column("name", sa.String(64), primary_key=True))
    op.add_column("ledger_entry", sa.Column("later_fact", sa.String(64), nullable=True))
    op.create_index("ix_ledger_entry_later_fact", "ledger_entry", ["later_fact"])


def downgrade():
    op.drop_index("ix_ledger_entry_later_fact", "ledger_entry")
    op.drop_column("ledger_entry", "later_fact")
    op.drop_table("later_thing")
"""


def later(folder: Path, *, older_code_serves: bool) -> Path:
    """Return a copy of this version with one migration more."""
    folder.mkdir()
    for each in ROOT.iterdir():
        if (each / "__init__.py").is_file() and each.name not in {"gateway", "tests"}:
            (folder / each.name).symlink_to(each)
    shutil.copytree(ROOT / "gateway", folder / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
    text = _LATER_MIGRATION.format(revision=LATER, before=newest(), older_code_serves=older_code_serves)
    (folder / "gateway" / "migrations" / "versions" / f"v{LATER}_later.py").write_text(text)
    return folder
