"""A disk that fills in the middle, and a file that is one line of 200 MB, through the whole API of real processes.

The processes may write no file beyond a size, which their system tells them as it tells a full disk: in the middle of a write.
"""

import logging
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import openai
import pytest

from tests.children import children_of
from tests.postgres import Postgres
from tests.processes import Server, Site, make_site, oracle, start, until
from tests.running_gateway import model
from tests.scenarios.test_batch import line, results, submit

_log: Final = logging.getLogger(__name__)
_FULL: Final = 1_500_000
"""No file grows beyond it; the database and the journal stay below."""
_PIECE: Final = 1_000_000
_LARGEST: Final = 200 * _PIECE


def _fill(server: Server, most: int) -> None:
    """From now on no file of these processes grows beyond so many bytes."""
    pids = [server.process.pid]
    for pid in pids:
        pids += children_of(pid)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def _peak_mib(server: Server) -> float:
    """The most memory that any of its processes has had."""
    pids = [server.process.pid]
    peaks = []
    for pid in pids:
        pids += children_of(pid)
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        peaks.append(next(int(each.split()[1]) for each in lines if each.startswith("VmHWM")) / 1024)
    return max(peaks)


async def _upload(site: Site, server: Server, size: int, begins: bytes = b"") -> tuple[int, dict[str, Any]]:
    """Streams a file of so many bytes without a line's end; the answer's status and body."""

    async def content() -> AsyncIterator[bytes]:
        yield begins
        for _ in range(size // _PIECE):
            yield b"x" * _PIECE

    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", content(), filename="large.jsonl", content_type="application/jsonl")
    headers = {"authorization": f"Bearer {site.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{server.base_url}/files", data=form) as reply,
    ):
        return reply.status, await reply.json()


def _kept(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


@pytest.mark.long
async def test_a_disk_that_fills_in_the_middle_is_told_and_loses_nothing(tmp_path: Path, postgres: Postgres) -> None:
    """Of an upload nothing is kept, and it is told as what it is; the same one is taken once there is room. A batch whose results find
    no room waits for it, and has every line once.
    """
    blobs = tmp_path / "blobs"
    with oracle(tmp_path) as upstream:
        long = upstream.deployment("tokens-9000")
        section = {"poll_s": 0.05, "lease_s": 2.0, "folder": str(blobs)}
        # The database is elsewhere, and has room for answers.
        site = await make_site(tmp_path, [model("long", [long])], database_url=await postgres.database(), batch=section)
        server = start(site, "gateway")
        try:
            await server.ready()
            _fill(server, _FULL)
            status, told = await _upload(site, server, 4 * _PIECE)
            assert (status, told["error"]["code"]) == (503, "storage_unavailable")
            assert "Nothing of it was kept" in told["error"]["message"]
            assert _kept(blobs) == []
            async with openai.AsyncOpenAI(api_key=site.key, base_url=server.base_url) as caller:
                assert [each.id async for each in caller.files.list()] == []
                asked = [line(f"c{number}", "long") for number in range(50)]
                batch = await submit(caller, asked)
                (before,) = _kept(blobs)

                async def waits() -> bool:
                    return f"batch {batch.id} waits: StorageUnavailable" in server.log

                await until(waits)
                assert (await caller.batches.retrieve(batch.id)).status == "finalizing"
                assert [each for each in _kept(blobs) if each != before and not each.endswith(".part")] == []
                _fill(server, resource.RLIM_INFINITY)

                async def is_done() -> bool:
                    return (await caller.batches.retrieve(batch.id)).status == "completed"

                await until(is_done)
                batch = await caller.batches.retrieve(batch.id)
                found = await results(caller, batch.output_file_id)
                assert [each["custom_id"] for each in found] == [each["custom_id"] for each in asked]
                assert sorted(_kept(blobs)) == sorted([before, batch.output_file_id or ""])
            assert (await _upload(site, server, 4 * _PIECE))[0] == 200
            assert len([row for row in await site.rows() if row["entry"] == "settle"]) == len(asked)
            assert await server.stop() == 0
        finally:
            server.kill()


@pytest.mark.long
async def test_a_line_of_200_megabytes_is_refused_in_little_memory(tmp_path: Path) -> None:
    """The file is taken, as it is no larger than files may be, and the batch fails at its first line. A larger file is refused while
    it comes.
    """
    blobs = tmp_path / "blobs"
    with oracle(tmp_path) as upstream:
        site = await make_site(
            tmp_path, [model("ok", [upstream.deployment("ok")])], batch={"poll_s": 0.05, "folder": str(blobs)}
        )
        server = start(site, "gateway")
        try:
            await server.ready()
            before = _peak_mib(server)
            status, file = await _upload(site, server, _LARGEST - _PIECE, b'{"custom_id": "')
            assert status == 200
            async with openai.AsyncOpenAI(api_key=site.key, base_url=server.base_url) as caller:
                batch = await caller.batches.create(
                    input_file_id=file["id"], endpoint="/v1/chat/completions", completion_window="24h"
                )

                async def has_failed() -> bool:
                    return (await caller.batches.retrieve(batch.id)).status == "failed"

                await until(has_failed)
                batch = await caller.batches.retrieve(batch.id)
            assert batch.errors is not None
            assert batch.errors.data is not None
            assert [(each.code, each.line) for each in batch.errors.data] == [("line_too_large", 1)]
            status, told = await _upload(site, server, _LARGEST + 8 * _PIECE)
            assert (status, told["error"]["code"]) == (413, "file_too_large")
            assert _kept(blobs) == [file["id"]]
            more_mib = _peak_mib(server) - before
            _log.info("at most %.0f MiB more than before", more_mib)
            assert more_mib < 64
            assert not list(upstream.seen())
            assert await server.stop() == 0
        finally:
            server.kill()
