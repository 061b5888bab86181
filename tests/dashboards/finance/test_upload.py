"""Forms with files: taken apart as browsers send them, and refused when they are too large, too slow, or none."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from dashboards.finance.upload import MAX_UPLOAD_BYTES, read_upload
from proxy.errors import BadRequest, BodyTooLarge, UsageUnavailable

BOUNDARY = "----WebKitFormBoundaryAbC123"
KIND = f"multipart/form-data; boundary={BOUNDARY}"


def request(body: Iterable[bytes], kind: str = KIND) -> Request:
    """One that sends these pieces."""
    pieces = [*body]

    async def receive() -> dict[str, Any]:
        piece = pieces.pop(0) if pieces else b""
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    headers = [(b"content-type", kind.encode("latin-1"))]
    return Request({"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}, receive)


def part(disposition: str, content: bytes, kind: str = "") -> bytes:
    """As a browser writes it."""
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n"
    head += f"Content-Type: {kind}\r\n" if kind else ""
    return head.encode() + b"\r\n" + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


async def test_fields_and_files_are_told_apart() -> None:
    """Contents stay as they are to the byte; a file's name is only a name, and one that is empty was not chosen."""
    binary = bytes(range(256)) + b"\r\n--not the end\r\n\r\n"
    body = (
        part('name="models"', "a=b\r\nÄ=c".encode())
        + part('name="files"; filename="/etc/../usage.json"', binary, "application/json")
        + part('name="files"; filename="C:\\\\x\\\\costs.json"', b"{}", "application/octet-stream")
        + part('name="files"; filename=""', b"", "application/octet-stream")
        + END
    )
    form, files = await read_upload(request([body[:100], body[100:]]), "p")
    assert form.text("models") == "a=b\r\nÄ=c"
    assert files == (("usage.json", binary), ("costs.json", b"{}"))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-www-form-urlencoded", b"a=b"),
        ("multipart/form-data", part('name="a"', b"b") + END),
        (KIND, b""),
        (KIND, b"no boundary in sight"),
        (KIND, part('name="a"', b"b") * 51 + END),
    ],
)
async def test_what_is_no_such_form_is_refused(kind: str, body: bytes) -> None:
    """With a word of what to do."""
    with pytest.raises(BadRequest, match="load the page again"):
        await read_upload(request([body], kind), "p")


async def test_too_much_is_refused_while_it_arrives() -> None:
    """Nobody's memory is filled."""
    endless = [b"x" * 1024 * 1024] * (MAX_UPLOAD_BYTES // 1024 // 1024 + 1)
    with pytest.raises(BodyTooLarge, match="at most 16 MB"):
        await read_upload(request(endless), "p")


@given(body=st.binary(max_size=400), head=st.text(max_size=40))
async def test_no_bytes_break_it(body: bytes, head: str) -> None:
    """Whatever is sent is read or refused, never an error of ours."""
    sent = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + body + END
    try:
        form, files = await read_upload(request([sent]), "p")
    except BadRequest:
        return
    assert len(form.plain) + len(files) <= 50


@pytest.mark.parametrize(
    "body",
    [
        f"--{BOUNDARY}\r\n\r\n".encode() * (MAX_UPLOAD_BYTES // 40),
        f"--{BOUNDARY}\r\n".encode() + b"a: b\r\n" * 2_000_000 + b"\r\n" + END,
        b"".join(
            b"--%s%d\r\nContent-Type: multipart/mixed; boundary=%s%d\r\n\r\n"
            % (BOUNDARY.encode(), place, BOUNDARY.encode(), place + 1)
            for place in range(100_000)
        ),
    ],
    ids=["parts", "headers", "parts in parts"],
)
async def test_a_form_made_to_take_long_takes_no_time(body: bytes) -> None:
    """Millions of parts, of headers, or of parts in each other are refused before anything is made of them."""
    begun = time.process_time()
    with pytest.raises(BadRequest, match="load the page again"):
        await read_upload(request([body[:MAX_UPLOAD_BYTES]], KIND), "p")
    assert time.process_time() - begun < 2


async def test_parts_in_a_part_are_its_content() -> None:
    """Nobody looks into a file for more of the form."""
    inner = b'--inner\r\nContent-Disposition: form-data; name="csrf"\r\n\r\nx\r\n--inner--\r\n'
    form, files = await read_upload(
        request([part('name="files"; filename="a.json"', inner, "multipart/mixed; boundary=inner") + END]), "p"
    )
    assert "csrf" not in form
    assert files == (("a.json", inner),)


async def test_a_few_forms_are_held_at_once() -> None:
    """One more is asked to come again; whoever is done makes room, also by failing."""
    arrived, go_on = asyncio.Event(), asyncio.Event()
    waiting = 0

    def slow() -> Request:
        async def receive() -> dict[str, Any]:
            nonlocal waiting
            waiting += 1
            if waiting == 4:
                arrived.set()
            await go_on.wait()
            return {"type": "http.request", "body": b"nothing", "more_body": False}

        asked = request([])
        return Request(asked.scope, receive)

    held = [asyncio.ensure_future(read_upload(slow(), f"p{number}")) for number in range(4)]
    await arrived.wait()
    with pytest.raises(UsageUnavailable, match="try again"):
        await read_upload(request([part('name="a"', b"b") + END]), "another")
    go_on.set()
    assert all(isinstance(each, BadRequest) for each in await asyncio.gather(*held, return_exceptions=True))
    form, _ = await read_upload(request([part('name="a"', b"b") + END]), "p")
    assert form.text("a") == "b"


async def test_one_person_closes_it_for_nobody_else() -> None:
    """Whoever sends slowly holds one place, however many forms it sends."""
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        arrived.set()
        await go_on.wait()
        return {"type": "http.request", "body": b"nothing", "more_body": False}

    held = asyncio.ensure_future(read_upload(Request(request([]).scope, receive), "slow"))
    await arrived.wait()
    body = part('name="a"', b"b") + END
    with pytest.raises(UsageUnavailable, match="try again"):
        await read_upload(request([body]), "slow")
    form, _ = await read_upload(request([body]), "another")
    assert form.text("a") == "b"
    go_on.set()
    assert isinstance((await asyncio.gather(held, return_exceptions=True))[0], BadRequest)
