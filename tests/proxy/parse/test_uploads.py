"""Uploads: taken from the caller and sent on in pieces, within limits, and never whole in memory."""

import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import pytest
from aiohttp import web

from providers.errors import UpstreamUnavailable
from providers.http_client import HttpUpstream
from providers.upload import Upload
from providers.wire import ChatRequest
from proxy.errors import BadRequest, BodyTooLarge
from proxy.http.in_memory import InMemoryExchange
from proxy.parse.uploads import Uploads
from testing.scripted.metered import add_metered_routes
from tests.providers.calls import deployment, read_all, upstream_call
from tests.providers.test_http_client import listening

_BOUNDARY: Final = "edge"
_HEADERS: Final = [(b"content-type", b"multipart/form-data; boundary=edge")]
_PIECE: Final = bytes(64 * 1024)
_LARGE: Final = 32 * 1024 * 1024
_MOST_HELD: Final = 4 * 1024 * 1024


def part(name: str, value: bytes = b"", more: str = "", end: bytes = b"\r\n") -> bytes:
    head = f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + end


def file_part(value: bytes = b"", end: bytes = b"\r\n") -> bytes:
    return part("file", value, '; filename="a/talk.wav"\r\ncontent-type: audio/wav', end)


_END: Final = f"--{_BOUNDARY}--\r\n".encode()


class Arriving(InMemoryExchange):
    """A body that arrives piece by piece."""

    def __init__(self, *pieces: bytes, zeros: int = 0) -> None:
        super().__init__(b"", _HEADERS, "/v1/audio/transcriptions")
        self._all = self._arriving(pieces, zeros)

    async def _arriving(self, pieces: tuple[bytes, ...], zeros: int) -> AsyncIterator[bytes]:
        first, *rest = pieces
        yield first
        for _ in range(zeros // len(_PIECE)):
            yield _PIECE
        for piece in rest:
            yield piece

    async def read(self) -> bytes:
        return await anext(self._all, b"")


async def test_a_large_file_is_never_whole_in_memory() -> None:
    """From the caller to the upstream, though each of two attempts is sent all of it; afterwards nothing is held."""
    app = web.Application()
    add_metered_routes(app.router)
    uploads, upstream = Uploads(), HttpUpstream()
    async with listening(app) as url:
        tracemalloc.start()
        try:
            # The file comes first, as with OpenAI's client for Node.js.
            arriving = Arriving(file_part(end=b""), b"\r\n" + part("model", b"writer") + _END, zeros=_LARGE)
            body, upload = await uploads.take(arriving, _LARGE, {"file": 1})
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            told = [await answer(upstream, url, name, fields, upload) for name in ("error-503", "ok")]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    await upstream.aclose()
    assert told == ["refused", f"heard {_LARGE} bytes of talk.wav"]
    assert json.loads(body)["model"] == "writer"
    assert uploads.held_bytes == _LARGE
    upload.close()
    assert (uploads.held_bytes, peak < _MOST_HELD) == (0, True), peak


async def test_two_names_of_one_list_are_counted_together() -> None:
    """So no more pictures are taken than are allowed, whatever each is called."""
    parts = {"image": 2, "image[]": 2, "mask": 1}
    two = part("image[]", b"x", '; filename="a"') + part("image", b"y", '; filename="b"')
    _, upload = await Uploads().take(Arriving(two + part("mask", b"z", '; filename="m"') + _END), 100, parts)
    upload.close()
    with pytest.raises(BadRequest, match="more than 2 parts"):
        await Uploads().take(Arriving(two + part("image", b"z", '; filename="c"') + _END), 100, parts)


async def answer(upstream: HttpUpstream, url: str, model: str, fields: dict[str, msgspec.Raw], upload: Upload) -> str:
    request = ChatRequest(operation="transcriptions", fields=fields, model="t", messages=[], upload=upload)
    call = upstream_call(deployment(base_url=url, upstream_model=model), request)
    try:
        stream = await upstream.open(call)
    except UpstreamUnavailable:
        return "refused"
    (event,) = await read_all(stream)
    await stream.aclose()
    assert event.units is not None
    text: str = json.loads(event.payload)["text"]
    return text


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ((part("model", b"writer") + _END,), BadRequest),
        ((file_part(b"x") + file_part(b"y") + _END,), BadRequest),
        ((file_part(b"x"),), BadRequest),
        ((part("prompt", bytes(20_000)) + file_part(b"x") + _END,), BadRequest),
        ((file_part(bytes(1_001)) + _END,), BodyTooLarge),
        ((b"{}",), BadRequest),
    ],
    ids=["no file", "two files", "broken off", "a long field", "a large file", "no form"],
)
async def test_what_is_no_sound_upload_is_refused(pieces: tuple[bytes, ...], error: Any) -> None:
    """With nothing of it kept."""
    uploads = Uploads()
    with pytest.raises(error):
        await uploads.take(Arriving(*pieces), 1_000, {"file": 1})
    assert uploads.held_bytes == 0


async def test_several_files_are_bounded_together() -> None:
    """In their order, each with its part's name; all of them are given back at once."""
    uploads, parts = Uploads(), {"image": 2, "image[]": 2, "mask": 1}

    def picture(name: str, value: bytes) -> bytes:
        return part(name, value, '; filename="a.png"\r\ncontent-type: image/png')

    body, upload = await uploads.take(
        Arriving(picture("image", b"x"), picture("mask", b"yy"), picture("image", b"zzz"), _END), 6, parts
    )
    fields = json.loads(body)
    assert [each["bytes"] for each in fields["image"]] == [1, 3]
    assert fields["mask"]["bytes"] == 2
    assert [(each.part, each.size) for each in upload.files] == [("image", 1), ("mask", 2), ("image", 3)]
    assert upload.whole_size == uploads.held_bytes == 6
    upload.close()
    for wrong in ((picture("image", b"x") * 3,), (picture("mask", b"x"),), (picture("image", bytes(7)),)):
        with pytest.raises((BadRequest, BodyTooLarge)):
            await uploads.take(Arriving(*wrong, _END), 6, parts)
    assert uploads.held_bytes == 0
