"""What is a request and what is not: each way in which two readers could read a head differently is refused."""

import pytest

from proxy.errors import HeadTooLarge, InvalidHttp, Refused, UnsupportedCoding, UnsupportedVersion
from proxy.http.head import Head, check_unfinished, parse_head

_LINE = b"POST /a HTTP/1.1\r\n"
_HOST = b"Host: a\r\n"


def _parsed(data: bytes) -> Head:
    return parse_head(data, 10_000, 100)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (b"", InvalidHttp),
        (_HOST + b"Host: b\r\n", InvalidHttp),
        (_HOST + _HOST, InvalidHttp),
        (_HOST + b"Content-Length: 1\r\nContent-Length: 1\r\n", InvalidHttp),
        (_HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n", InvalidHttp),
        (_HOST + b"Content-Length: 1, 1\r\n", InvalidHttp),
        (_HOST + b"Content-Length: +1\r\n", InvalidHttp),
        (_HOST + b"Content-Length: -1\r\n", InvalidHttp),
        (_HOST + b"Content-Length: 0x1\r\n", InvalidHttp),
        (_HOST + b"Content-Length: 1_0\r\n", InvalidHttp),
        (_HOST + b"Content-Length: 1 1\r\n", InvalidHttp),
        (_HOST + b"Content-Length: \r\n", InvalidHttp),
        (_HOST + b"Content-Length: 99999999999999999999999\r\n", InvalidHttp),
        (_HOST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", InvalidHttp),
        (_HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n", InvalidHttp),
        (_HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", InvalidHttp),
        (_HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", Refused),
        (_HOST + b"Transfer-Encoding: chunked, chunked\r\n", InvalidHttp),
        (_HOST + b"Transfer-Encoding: gzip, chunked\r\n", UnsupportedCoding),
        (_HOST + b"Transfer-Encoding: gzip\r\n", UnsupportedCoding),
        (_HOST + b"Transfer-Encoding: identity\r\n", UnsupportedCoding),
        (_HOST + b"Transfer-Encoding: xchunked\r\n", UnsupportedCoding),
        (_HOST + b"Transfer-Encoding: chunked\x0b\r\n", InvalidHttp),
        (_HOST + b"Transfer-Encoding:\r\n chunked\r\n", InvalidHttp),
        (_HOST + b"Transfer-Encoding : chunked\r\n", InvalidHttp),
        (_HOST + b"X: a\r\n b\r\n", InvalidHttp),
        (_HOST + b" X: a\r\n", InvalidHttp),
        (_HOST + b"X : a\r\n", InvalidHttp),
        (_HOST + b"X\r\n", InvalidHttp),
        (_HOST + b": a\r\n", InvalidHttp),
        (_HOST + b"X: a\n", InvalidHttp),
        (_HOST + b"X: a\rY: b\r\n", InvalidHttp),
        (_HOST + b"X: a\x00b\r\n", InvalidHttp),
        (_HOST + b"X\x00: a\r\n", InvalidHttp),
        (_HOST + b"X: \x01\r\n", InvalidHttp),
        (_HOST + b"X\xe9: a\r\n", InvalidHttp),
    ],
)
def test_ambiguous_fields_are_refused(fields: bytes, error: type[Refused]) -> None:
    with pytest.raises(error):
        _parsed(_LINE + fields + b"\r\n")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"GET / HTTP/2.0", UnsupportedVersion),
        (b"GET / HTTP/0.9", UnsupportedVersion),
        (b"GET / HTTP/1.2", InvalidHttp),
        (b"GET /", UnsupportedVersion),
        (b"GET / http/1.1", InvalidHttp),
        (b"GET / HTTP/1.1 ", InvalidHttp),
        (b"get / HTTP/1.1", InvalidHttp),
        (b"FOO / HTTP/1.1", InvalidHttp),
        (b"GET a HTTP/1.1", InvalidHttp),
        (b"GET /\xff HTTP/1.1", InvalidHttp),
        (b"GET /\x00 HTTP/1.1", InvalidHttp),
        (b"GET / x HTTP/1.1", InvalidHttp),
        (b"CONNECT a:1 HTTP/1.1", InvalidHttp),
        (b"DESCRIBE / RTSP/1.0", UnsupportedVersion),
        (b"SOURCE / ICE/1.0", UnsupportedVersion),
    ],
)
def test_other_request_lines_are_refused(line: bytes, error: type[Refused]) -> None:
    with pytest.raises(error):
        _parsed(line + b"\r\n" + _HOST + b"\r\n")


def test_http_1_0_has_no_chunks() -> None:
    """It knows none, so an older server in front would frame the body differently."""
    with pytest.raises(InvalidHttp):
        _parsed(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert _parsed(b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\n").length == 5


@pytest.mark.parametrize(
    ("fields", "length", "keeps"),
    [
        (b"", 0, True),
        (b"Content-Length: 0\r\n", 0, True),
        (b"content-length:007  \r\n", 7, True),
        (b"Transfer-Encoding: Chunked\r\n", None, True),
        (b"Connection: close\r\n", 0, False),
        (b"Connection: keep-alive, Close\r\n", 0, False),
        (b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 4\r\n", 4, True),
    ],
)
def test_the_body_and_the_connections_end(fields: bytes, length: int | None, *, keeps: bool) -> None:
    head = _parsed(_LINE + _HOST + fields + b"\r\n")
    assert (head.length, head.keeps) == (length, keeps)


def test_an_unfinished_head_is_judged_early() -> None:
    """What can become no request is refused before its end comes; what can is waited for."""
    check_unfinished(b"POST / HTTP/1.1\r\nHost: a", 100, 3)
    for data in (b"\x16\x03\x01", b"post /", b"GET / HTTP/1.1\nHost: a\n"):
        with pytest.raises(InvalidHttp):
            check_unfinished(data, 100, 3)
    for data in (b"GET /" + b"x" * 100, b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 4):
        with pytest.raises(HeadTooLarge):
            check_unfinished(data, 100, 3)
