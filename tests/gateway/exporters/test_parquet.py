"""The exporter to Parquet, against a server that speaks S3."""

import io
from dataclasses import replace
from typing import Any

import pytest

from gateway.exporters import parquet
from gateway.exporters.parquet import Bucket, Parquet, TooManyRows
from tests.object_store import BUCKET, KEY_ID, SECRET, ObjectStore
from weighbridge.plugins import Outcome
from weighbridge.plugins.testing import sample_outcomes, try_out

_NOON = 1_764_331_200.0


def outcomes(count: int, at: float = _NOON) -> list[Outcome]:
    made = sample_outcomes(count)
    return [replace(each, is_sample=False, ended_at=at, text="my own words") for each in made]


def made(store: ObjectStore, prefix: str, **others: Any) -> Parquet:
    return Parquet(
        Bucket(
            bucket=BUCKET,
            prefix=prefix,
            endpoint=store.endpoint,
            access_key_id=KEY_ID,
            secret_access_key=SECRET,
            **others,
        )
    )


def kept(store: ObjectStore, prefix: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of each file, by its name."""
    from pyarrow import parquet as reader

    client = store.client()
    names = [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())]
    bodies = {name: client.get_object(Bucket=BUCKET, Key=name)["Body"].read() for name in names}
    return {name: reader.read_table(io.BytesIO(body)).to_pylist() for name, body in bodies.items()}


async def test_rows_are_in_files_by_hour_without_words(object_store: ObjectStore) -> None:
    """Once there are enough of them, and at the end."""
    exporter = made(object_store, "hours", rows=4)
    await exporter.finished(outcomes(2))
    assert kept(object_store, "hours") == {}
    await exporter.finished(outcomes(3, _NOON + 3_600))
    await exporter.finished(outcomes(1, _NOON + 7_200))
    await exporter.aclose()
    found = kept(object_store, "hours")
    assert [name.rpartition("/")[0] for name in sorted(found)] == [
        f"hours/date=2025-11-28/hour={hour}" for hour in (12, 13, 14)
    ]
    assert [len(found[name]) for name in sorted(found)] == [2, 3, 1]
    first = found[min(found)][0]
    assert (first["target_id"], first["cost_nanousd"], first["error_code"]) == ("small", 20_000, None)
    assert "my own words" not in str(found)


async def test_rows_wait_for_a_store_that_is_away_and_no_more_than_a_bound(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then they are written once."""
    monkeypatch.setattr(parquet, "MOST_ROWS", 5)
    exporter = made(object_store, "away", rows=3)
    works, exporter._files._store = exporter._files._store, None
    with pytest.raises(Exception, match=r".+"):
        await exporter.finished(outcomes(3))
    with pytest.raises(TooManyRows):
        await exporter.finished(outcomes(3))
    exporter._files._store = works
    await exporter.aclose()
    assert [len(rows) for rows in kept(object_store, "away").values()] == [3]


async def test_the_kit_finds_nothing_and_made_up_requests_are_not_kept(object_store: ObjectStore) -> None:
    """500 at once, and eight batches beside each other."""
    exporter = made(object_store, "kit")
    await try_out(exporter, "exporter")
    await exporter.aclose()
    assert kept(object_store, "kit") == {}
