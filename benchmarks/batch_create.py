"""The time to create a large batch: from the last byte of its file, of the batch, and until its lines may begin.

python -m benchmarks.batch_create [--lines 50000] [--times 3]

It starts a gateway, on SQLite or on the empty database that WEIGHBRIDGE_DATABASE_URL names, whose only model is at an address where nobody
is: nothing but files and batches is measured.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.processes import Children, free_port
from benchmarks.sites import Site, Team, model, start_site

_PIECE_BYTES: Final = 256 * 1024
_BOUNDARY: Final = "weighbridge-bench"
_WITHIN_S: Final = 300.0


class Took(msgspec.Struct, frozen=True):
    """Seconds of one creation."""

    file_s: float
    """Time from the file's last byte to the answer."""
    batch_s: float
    """Time to make the batch."""
    begun_s: float
    """Time from then on until it was validated."""


def _lines(count: int) -> bytes:
    body = {"model": "nobody", "max_tokens": 200, "messages": [{"role": "user", "content": "word " * 100}]}
    asked = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    return b"".join(msgspec.json.encode({"custom_id": f"q{number}", **asked}) + b"\n" for number in range(count))


async def _created(site: Site, session: aiohttp.ClientSession, content: bytes) -> Took:
    sent_at = 0.0
    head = (
        f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{_BOUNDARY}\r\n'
        'content-disposition: form-data; name="file"; filename="r.jsonl"\r\n\r\n'
    ).encode()

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent_at
        yield head
        for start in range(0, len(content), _PIECE_BYTES):
            yield content[start : start + _PIECE_BYTES]
        yield f"\r\n--{_BOUNDARY}--\r\n".encode()
        sent_at = time.perf_counter()

    headers = {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"}
    file = await _asked(session.post(f"{site.url}/v1/files", data=pieces(), headers=headers))
    answered_at = time.perf_counter()
    asked = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = await _asked(session.post(f"{site.url}/v1/batches", json=asked))
    made_at = time.perf_counter()
    while batch["status"] == "validating":
        if time.perf_counter() - made_at > _WITHIN_S:
            raise TimeoutError(f"the batch was not validated within {_WITHIN_S:.0f} s")
        await asyncio.sleep(0.1)
        batch = await _asked(session.get(f"{site.url}/v1/batches/{batch['id']}"))
    if batch["status"] != "in_progress":
        raise RuntimeError(f"the batch is {batch['status']}: {batch['errors']}")
    took = Took(answered_at - sent_at, made_at - answered_at, time.perf_counter() - made_at)
    await _asked(session.post(f"{site.url}/v1/batches/{batch['id']}/cancel"))
    return took


async def _asked(asking: Any) -> dict[str, Any]:
    async with asking as reply:
        found: dict[str, Any] = await reply.json()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {found}")
        return found


async def measured(site: Site, lines: int, times: int) -> list[Took]:
    """Measure that many creations, one after the other."""
    content = _lines(lines)
    headers = {"authorization": f"Bearer {site.keys['bench']}"}
    limit = aiohttp.ClientTimeout(total=_WITHIN_S)
    async with aiohttp.ClientSession(headers=headers, timeout=limit) as session:
        return [await _created(site, session, content) for _ in range(times)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch_create", description=__doc__)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        children = Children(Path(folder))
        try:
            nowhere = model("nobody", f"http://127.0.0.1:{free_port()}", input_price=1, output_price=1)
            sections = {"providers": {"models": [nowhere]}, "classifier": {"enabled": False}}
            site = start_site(children, Path(folder), "gateway", sections, [Team("bench")])
            for took in asyncio.run(measured(site, asked.lines, asked.times)):
                print(f"file {took.file_s:.2f} s, batch {took.batch_s:.2f} s, validated {took.begun_s:.1f} s later")
        finally:
            children.stop()


if __name__ == "__main__":
    main()
