"""Batches from the command line, against a gateway that answers."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.nursery import nursery
from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.test_batch import FAST, line


@contextlib.asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[tuple[Running, Path]]:
    """A gateway, and a file with the team's key."""
    models = [model("m", [{"kind": "scripted", "upstream_model": "tokens-3"}])]
    async with running_gateway(folder, models, batch=FAST) as running:
        key = folder / "key"
        key.write_text(running.key)
        yield running, key


async def run(running: Running, key: Path, *arguments: str) -> tuple[int, str]:
    """One command, without a terminal."""
    given = ["batch", *arguments, "--url", running.url, "--key-file", str(key)]
    return await asyncio.to_thread(_run, given)


def _run(arguments: list[str]) -> tuple[int, str]:
    ended = nursery().run(arguments, environ=os.environ, cwd=Path.cwd(), timeout_s=60)
    return ended.returncode, ended.stdout + ended.stderr


def requests(folder: Path, *lines: object) -> str:
    path = folder / "requests.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
    return str(path)


async def test_a_file_is_submitted_followed_and_downloaded(tmp_path: Path) -> None:
    """Until it has ended; a download that was broken off goes on."""
    async with gateway(tmp_path) as (running, key):
        asked = requests(tmp_path, *(line(f"c{number}", "m") for number in range(5)), line("bad", "nobody"))
        status, out = await run(running, key, "submit", asked, "--follow", "--json")
        assert status == 0, out
        batch = msgspec.json.decode(out)
        assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 6, "completed": 5, "failed": 1})
        status, out = await run(running, key, "list")
        assert status == 0
        assert batch["id"] in out
        status, out = await run(running, key, "show", batch["id"])
        assert "5 completed, 1 failed of 6" in out
        folder = tmp_path / "results"
        folder.mkdir()
        status, out = await run(running, key, "download", batch["id"], "--to", str(folder))
        assert status == 0, out
        output = folder / f"{batch['id']}_output.jsonl"
        whole = output.read_bytes()
        assert len(whole.splitlines()) == 5
        assert len((folder / f"{batch['id']}_error.jsonl").read_bytes().splitlines()) == 1
        # What a broken download leaves behind.
        output.unlink()
        output.with_name(f"{output.name}.part").write_bytes(whole[:100])
        status, out = await run(running, key, "download", batch["id"], "--to", str(folder))
        assert status == 0, out
        assert output.read_bytes() == whole


async def test_what_is_wrong_with_a_file_is_told_by_line(tmp_path: Path) -> None:
    """And what cannot be cancelled any more is refused."""
    async with gateway(tmp_path) as (running, key):
        asked = requests(tmp_path, line("a", "m"), line("a", "m"))
        status, out = await run(running, key, "submit", asked, "--follow")
        assert status == 1
        assert "failed" in out
        assert "line 2: `custom_id` stands already on line 1" in out
        batch_id = out.split()[0]
        status, out = await run(running, key, "cancel", batch_id)
        assert status == 1
        assert "only one that has not ended" in out


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("show", "../files"), 2, "a batch's id has letters"),
        (("show", "batch_none"), 1, "There is no batch"),
        (("submit", "nothing.jsonl"), 2, "is no file"),
        (("download", "batch_none"), 1, "There is no batch"),
    ],
)
async def test_what_is_not_there_is_told(tmp_path: Path, arguments: tuple[str, ...], status: int, told: str) -> None:
    """In one line, with a status that scripts can tell apart."""
    async with gateway(tmp_path) as (running, key):
        got, out = await run(running, key, *arguments)
        assert (got, told in out) == (status, True), out
