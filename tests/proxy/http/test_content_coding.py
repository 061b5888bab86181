"""Bodies that come compressed, within their limit."""

import gzip
import zlib

import pytest

from proxy.errors import BadRequest, BodyTooLarge
from proxy.http.content_coding import decompressed, is_read, unsupported

_TEXT = b"hello" * 200


@pytest.mark.parametrize("coding", [b"gzip", b"x-gzip", b"deflate"])
def test_a_body_is_read(coding: bytes) -> None:
    """Up to its limit, whole, and with nothing behind it."""
    body = zlib.compress(_TEXT) if coding == b"deflate" else gzip.compress(_TEXT)
    assert is_read(coding)
    assert decompressed(coding, body, len(_TEXT)) == _TEXT
    with pytest.raises(BodyTooLarge):
        decompressed(coding, body, len(_TEXT) - 1)
    for broken in (body[:-1], body + b"x", b"", b"plain"):
        with pytest.raises(BadRequest):
            decompressed(coding, broken, len(_TEXT))


@pytest.mark.skipif(not is_read(b"zstd"), reason="neither Python 3.14 nor backports.zstd is here")
def test_zstd_is_read() -> None:
    """As Codex sends it: a frame of raw blocks."""
    frame = b"\x28\xb5\x2f\xfd\x20\x05\x29\x00\x00hello"
    assert decompressed(b"zstd", frame, 5) == b"hello"
    with pytest.raises(BodyTooLarge):
        decompressed(b"zstd", frame, 4)
    with pytest.raises(BadRequest):
        decompressed(b"zstd", frame[:-1], 5)


@pytest.mark.skipif(is_read(b"zstd"), reason="it is read here")
def test_without_zstd_people_read_what_to_do() -> None:
    assert "enable_request_compression=false" in str(unsupported(b"zstd"))
