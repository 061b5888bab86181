"""The files of this folder, and servers that reply with them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

FOLDER = Path(__file__).parent


def body_of(name: str) -> bytes:
    """What comes after a recorded reply's head, such as of `tgi/metrics`."""
    return _parts(name)[1]


def _parts(name: str) -> tuple[bytes, bytes]:
    head, _, body = (FOLDER / f"{name}.http").read_bytes().partition(b"\n\n")
    return head, body


@asynccontextmanager
async def replying(name: str) -> AsyncIterator[str]:
    """A server that answers every request with a recorded reply, at this address with /v1."""
    head, body = _parts(name)
    reply = head.replace(b"\n", b"\r\n") + b"\r\nconnection: close\r\n\r\n" + body

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in asked.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        await reader.readexactly(length)
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
