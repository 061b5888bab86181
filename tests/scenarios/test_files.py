"""Files through the official client, and uploads that go wrong."""

import asyncio
import io
import stat
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from pydantic import SecretStr

from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from tests.processes import until
from tests.running_gateway import PEPPER, Running, model, running_gateway
from tests.scenarios.conftest import Upstream


def client(gateway: Running, key: str | None = None) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=key or gateway.key, base_url=gateway.base_url, max_retries=0)


def named(content: bytes, name: str = "requests.jsonl") -> io.BytesIO:
    file = io.BytesIO(content)
    file.name = name
    return file


def stored(folder: Path) -> list[str]:
    files = folder / "files"
    return sorted(each.name for each in files.iterdir()) if files.exists() else []


async def test_a_file_comes_back_as_it_was_sent(tmp_path: Path, upstream: Upstream) -> None:
    """Upload, look, list by pages, download, delete: as OpenAI's client expects it; and nobody else may read the folder."""
    content = bytes(range(256)) * 3000
    async with (
        running_gateway(tmp_path, [model("m", [upstream.deployment("ok")])]) as gateway,
        client(gateway) as caller,
    ):
        made = await caller.files.create(
            file=named(content, "fünf.jsonl"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3_600}
        )
        assert (made.object, made.purpose, made.bytes, made.status) == ("file", "batch", len(content), "processed")
        assert made.expires_at == made.created_at + 3_600
        assert (await caller.files.retrieve(made.id)).id == made.id
        assert (await caller.files.content(made.id)).read() == content
        others = [await caller.files.create(file=named(b"{}"), purpose="batch") for _ in range(4)]
        listed = [each.id async for each in caller.files.list(limit=2)]
        assert listed == [each.id for each in reversed([made, *others])]
        assert [each async for each in caller.files.list(purpose="user_data")] == []
        with pytest.raises(openai.NotFoundError) as unknown:
            await caller.files.list(after="file-none")
        assert unknown.value.param == "after"
        ascending = [each.id async for each in caller.files.list(limit=2, order="asc", purpose="batch")]
        assert ascending == listed[::-1]
        folder = tmp_path / "files"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}
        gone = await caller.files.delete(made.id)
        assert (gone.deleted, gone.id) == (True, made.id)
        assert made.id not in stored(tmp_path)
        with pytest.raises(openai.NotFoundError):
            await caller.files.content(made.id)


async def test_a_download_is_resumed_where_it_was_broken_off(tmp_path: Path, upstream: Upstream) -> None:
    """Ranges give exactly the bytes that were asked for, and one beyond the end is refused."""
    content = b"0123456789" * 100_000
    async with (
        running_gateway(tmp_path, [model("m", [upstream.deployment("ok")])]) as gateway,
        client(gateway) as caller,
        aiohttp.ClientSession(headers={"authorization": f"Bearer {gateway.key}"}) as session,
    ):
        made = await caller.files.create(file=named(content), purpose="batch")
        address = f"{gateway.base_url}/files/{made.id}/content"
        for asked, start, stop in (
            ("0-9", 0, 10),
            ("400000-", 400_000, None),
            ("-7", -7, None),
            ("5-9999999", 5, None),
        ):
            async with session.get(address, headers={"range": f"bytes={asked}"}) as reply:
                assert reply.status == 206
                assert await reply.read() == content[start:stop]
                assert reply.headers["content-range"].endswith(f"/{len(content)}")
        for wrong in ("1000000-", "9-3", "x", "0-1,4-5"):
            async with session.get(address, headers={"range": f"bytes={wrong}"}) as reply:
                assert reply.status == 416
        async with session.get(address, headers={"range": "bytes=0-1", "if-range": '"another"'}) as reply:
            assert (reply.status, len(await reply.read())) == (200, len(content))


async def test_an_upload_that_is_broken_off_leaves_nothing(tmp_path: Path, upstream: Upstream) -> None:
    """Neither a row nor bytes, whether the client hangs up or the body just ends early."""
    async with (
        running_gateway(tmp_path, [model("m", [upstream.deployment("ok")])]) as gateway,
        client(gateway) as caller,
    ):
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        begin = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n' + b"a" * 100_000
        head = (
            f"POST /v1/files HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {gateway.key}\r\n"
            "content-type: multipart/form-data; boundary=x\r\n"
        )
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{head}content-length: 10000000\r\n\r\n".encode() + begin)
        await writer.drain()
        await until(lambda: bool(stored(tmp_path)))
        writer.close()
        await until(lambda: not stored(tmp_path))
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{head}content-length: {len(begin)}\r\nconnection: close\r\n\r\n".encode() + begin)
        reply = await reader.read()
        writer.close()
        assert reply.startswith(b"HTTP/1.1 400 ")
        assert b"before it was complete" in reply
        assert stored(tmp_path) == []
        assert [each async for each in caller.files.list()] == []


@pytest.mark.parametrize(
    ("purpose", "content", "batch", "told"),
    [
        ("fine-tune", b"{}", {}, "`purpose` must be `batch`"),
        ("batch", b"x" * 5_000, {"max_file_bytes": 4_000}, "larger than 4000 bytes"),
        ("batch", b"x" * 5_000, {"max_stored_bytes": 4_000}, "delete some first"),
    ],
)
async def test_what_is_not_taken_is_told_why(
    tmp_path: Path, upstream: Upstream, purpose: Any, content: bytes, batch: dict[str, Any], told: str
) -> None:
    """And nothing of it is kept."""
    models = [model("m", [upstream.deployment("ok")])]
    async with running_gateway(tmp_path, models, batch=batch) as gateway, client(gateway) as caller:
        with pytest.raises(openai.APIStatusError, match=told):
            await caller.files.create(file=named(content), purpose=purpose)
        assert stored(tmp_path) == []


async def test_files_and_batches_of_one_team_are_nobody_elses(tmp_path: Path, upstream: Upstream) -> None:
    """Another team's key finds, lists, downloads, deletes and uses none of them."""
    async with running_gateway(tmp_path, [model("m", [upstream.deployment("ok")])]) as gateway:
        environment = Environment(data_dir=tmp_path, pepper=SecretStr(PEPPER))
        pepper = peppers(load(gateway.config_path, environment), environment)[0]
        await gateway.accounts.create_team("team_b", name="Team B")
        other = (await gateway.accounts.create_key("team_b", "tests", pepper)).plaintext
        async with client(gateway) as ours, client(gateway, other) as theirs:
            file = await ours.files.create(file=named(b"{}"), purpose="batch")
            asked: Any = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
            batch = await ours.batches.create(input_file_id=file.id, **asked)
            for ask in (
                lambda: theirs.files.retrieve(file.id),
                lambda: theirs.files.content(file.id),
                lambda: theirs.files.delete(file.id),
                lambda: theirs.batches.retrieve(batch.id),
                lambda: theirs.batches.cancel(batch.id),
                lambda: theirs.batches.create(input_file_id=file.id, **asked),
            ):
                with pytest.raises(openai.NotFoundError):
                    await ask()
            assert (await theirs.files.list()).data == []
            assert (await theirs.batches.list()).data == []
            assert [each.id for each in (await ours.files.list()).data] == [file.id]
