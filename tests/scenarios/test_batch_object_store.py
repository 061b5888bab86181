"""Files and batches whose bytes are in an S3-compatible store."""

from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import text

from gateway.configuration.file import ConfigError
from tests.object_store import BUCKET, KEY_ID, SECRET, ObjectStore, section
from tests.running_gateway import running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_batch import FAST, client, ended, house, jsonl, line, results, submit


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to."""
    monkeypatch.setenv("MADE_UP_S3_ID", KEY_ID)
    monkeypatch.setenv("MADE_UP_S3_SECRET", SECRET)


async def test_a_batch_from_an_object_store_to_an_object_store(
    tmp_path: Path, upstream: Upstream, object_store: ObjectStore
) -> None:
    """Upload, batch, results, a part of them, deletion and expiry; and a store that is away is told."""
    keys = {"access_key_id": "env:MADE_UP_S3_ID", "secret_access_key": "env:MADE_UP_S3_SECRET"}
    kept = section(object_store, prefix="tests/scenario", timeout_s=2.0, **keys).model_dump()
    async with (
        running_gateway(tmp_path, house(upstream), batch={**FAST, "s3": kept}) as gateway,
        client(gateway) as caller,
        aiohttp.ClientSession(headers={"authorization": f"Bearer {gateway.key}"}) as session,
    ):
        asked = [line(f"q{number}") for number in range(30)]
        object_store.pause()
        async with session.post(f"{gateway.base_url}/files", data={"purpose": "batch", "file": jsonl(asked)}) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (503, "storage_unavailable")
        object_store.resume()
        batch = await ended(caller, await submit(caller, asked))
        answers = await results(caller, batch.output_file_id)
        assert [each["custom_id"] for each in answers] == [each["custom_id"] for each in asked]
        address = f"{gateway.base_url}/files/{batch.output_file_id}/content"
        async with session.get(address) as reply:
            whole = await reply.read()
        async with session.get(address, headers={"range": "bytes=100-"}) as reply:
            assert (reply.status, await reply.read()) == (206, whole[100:])
        assert not (tmp_path / "files").exists()
        assert batch.input_file_id is not None
        await caller.files.delete(batch.input_file_id)
        async with gateway.engine.begin() as connection:
            await connection.execute(text("UPDATE stored_file SET expires_us = 1"))
        await gateway.batch.files.sweep()
    left = object_store.client().list_objects_v2(Bucket=BUCKET, Prefix="tests/scenario").get("Contents", ())
    # What the store took after it was given up has no row, and goes after a day.
    assert not {each["Key"].rpartition("/")[2] for each in left} & {batch.input_file_id, batch.output_file_id}


async def test_without_the_extra_a_gateway_does_not_start(
    tmp_path: Path, upstream: Upstream, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it says what to install."""
    monkeypatch.setattr("gateway.configuration.extras.importlib.util.find_spec", lambda _name: None)
    kept = section(object_store).model_dump()
    with pytest.raises(ConfigError, match=r"pip install 'weighbridge\[s3\]'"):
        async with running_gateway(tmp_path, house(upstream), batch={"s3": kept}):
            pass
