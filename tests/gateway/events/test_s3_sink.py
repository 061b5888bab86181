"""Events as Parquet files, against a server that speaks S3."""

import asyncio
import http.server
import io
import threading
from typing import Any, ClassVar

import pytest

from cost.events.event import FIELDS, Event
from cost.events.sink import Batch, SinkFailed
from cost.times import HOUR_US
from gateway.events.s3_sink import S3Sink
from gateway.exporters.parquet import Bucket
from tests.cost.entries import reserve, settle
from tests.object_store import BUCKET, KEY_ID, SECRET, ObjectStore


def sink(store: ObjectStore, prefix: str, bucket: str = BUCKET) -> S3Sink:
    return S3Sink(Bucket(bucket, prefix, store.endpoint, access_key_id=KEY_ID, secret_access_key=SECRET))


def batch(*events: Event) -> Batch:
    return Batch(events, tuple(b"" for _ in events))


def kept(store: ObjectStore, prefix: str) -> dict[str, list[dict[str, Any]]]:
    from pyarrow import parquet

    client = store.client()
    names = [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())]
    bodies = {name: client.get_object(Bucket=BUCKET, Key=name)["Body"].read() for name in names}
    return {name: parquet.read_table(io.BytesIO(body)).to_pylist() for name, body in bodies.items()}


async def test_files_are_by_the_hour_of_the_entry(object_store: ObjectStore) -> None:
    """Late ones go to their own hour; names have the numbers, so that the same batch is the same files."""
    late = settle("late", at_us=reserve().at_us - HOUR_US, cost_nanousd=None, flags=("orphaned",))
    sent = batch(Event(1, settle("a", cost_nanousd=2**53 + 1)), Event(2, late), Event(3, settle("b")))
    files = sink(object_store, "events/hours")
    for _ in range(2):
        await files.send(sent)
    found = kept(object_store, "events/hours")
    day = "events/hours/date=2026-04-05"
    assert sorted(found) == [
        f"{day}/hour=11/00000000000000000002-00000000000000000002.parquet",
        f"{day}/hour=12/00000000000000000001-00000000000000000003.parquet",
    ]
    (row,) = found[min(found)]
    assert (row["id"], row["sequence"], row["cost_nanousd"], row["flags"]) == ("late/1/settle", 2, None, ["orphaned"])
    assert found[max(found)][0]["cost_nanousd"] == 2**53 + 1
    assert {field.name for field in FIELDS} < row.keys()


async def test_a_store_that_refuses_is_a_failure(object_store: ObjectStore) -> None:
    """The batch is sent again later."""
    with pytest.raises(SinkFailed):
        await sink(object_store, "events", bucket="no-such-bucket").send(batch(Event(1, settle("a"))))


class _Store(http.server.BaseHTTPRequestHandler):
    """Refuses everything as S3 does whose clock is another, and keeps the heads of what it was sent."""

    heads: ClassVar[list[dict[str, str]]] = []

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.heads.append({name.lower(): value for name, value in self.headers.items()})
        body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>at 127.0.0.1</Message></Error>"
        self.send_response(403)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Be silent."""


async def test_a_key_is_sent_with_its_own_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine's AWS_SESSION_TOKEN is of another key, with which a store refuses everything. The store's word is told, and no address.
    Encryption by KMS is the environment's to ask for.
    """
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the machine")
    monkeypatch.setenv("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms")
    server = http.server.HTTPServer(("127.0.0.1", 0), _Store)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for token in ("", "its own"):
            place = f"http://127.0.0.1:{server.server_port}"
            files = S3Sink(
                Bucket(BUCKET, "events", place, access_key_id=KEY_ID, secret_access_key=SECRET, session_token=token)
            )
            with pytest.raises(SinkFailed, match=r"^RequestTimeTooSkewed$"):
                await files.send(batch(Event(1, settle("a"))))
    finally:
        server.shutdown()
        server.server_close()
    assert [each.get("x-amz-security-token") for each in _Store.heads] == [None, "its own"]
    assert {each["x-amz-server-side-encryption"] for each in _Store.heads} == {"aws:kms"}


async def test_a_store_that_does_not_answer_holds_no_thread() -> None:
    """Its client tries on for minutes: each try of the sink would leave a thread behind, and a stop would wait for all of them."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        while await reader.read(65_536):
            pass
        writer.close()
        await writer.wait_closed()
        is_over.set()

    is_over = asyncio.Event()
    asked = asyncio.Event()
    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server, asyncio.timeout(20):
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        files = S3Sink(Bucket(BUCKET, endpoint=endpoint, access_key_id="key", secret_access_key="secret"))
        sending = asyncio.create_task(files.send(batch(Event(1, settle("a")))))
        await asked.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await asyncio.get_running_loop().shutdown_default_executor()
        await is_over.wait()
