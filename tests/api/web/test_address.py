"""Where a request comes from."""

from ipaddress import ip_network
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.requests import Request

from api.web.address import address_of, link_base
from api.web.gateway import Settings

_ALL = "0.0.0.0"  # noqa: S104 - only compared with
PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


def _request(peer: str | None, *forwarded: str) -> Request:
    headers = [(b"x-forwarded-for", each.encode()) for each in forwarded]
    return Request({"type": "http", "headers": headers, "client": None if peer is None else (peer, 1)})


@pytest.mark.parametrize(
    ("peer", "forwarded", "told"),
    [
        ("192.0.2.1", (), "192.0.2.1"),
        ("192.0.2.1", ("198.51.100.7",), "192.0.2.1"),
        ("10.0.0.1", (), "10.0.0.1"),
        ("10.0.0.1", ("198.51.100.7",), "198.51.100.7"),
        ("10.0.0.1", ("1.1.1.1, 198.51.100.7",), "198.51.100.7"),
        ("10.0.0.1", ("1.1.1.1", "198.51.100.7"), "198.51.100.7"),
        ("10.0.0.1", ("1.1.1.1, 198.51.100.7, 10.0.0.2",), "198.51.100.7"),
        ("10.0.0.1", ("198.51.100.7, nonsense, 10.0.0.2",), "10.0.0.2"),
        ("::ffff:10.0.0.1", ("198.51.100.7:4711",), "198.51.100.7"),
        ("fd00::1", ("[2001:db8::1]:4711",), "2001:db8::1"),
        ("10.0.0.1", ("x" * 100_000,), "10.0.0.1"),
        (None, ("198.51.100.7",), ""),
    ],
)
def test_the_nearest_that_is_none_of_ours(peer: str | None, forwarded: tuple[str, ...], told: str) -> None:
    """What stands before the first address that is no proxy of ours, anybody may have written."""
    assert address_of(_request(peer, *forwarded), PROXIES) == told


def test_without_proxies_a_header_says_nothing() -> None:
    """Only the connection counts."""
    assert address_of(_request("10.0.0.1", "198.51.100.7")) == "10.0.0.1"


def _settings(public_url: str | None, host: str, port: int, *, tls: bool = False) -> Settings:
    server = SimpleNamespace(host=host, port=port, tls=object() if tls else None)
    return cast("Settings", SimpleNamespace(server=server, sign_in=SimpleNamespace(public_url=public_url)))


@pytest.mark.parametrize(
    ("named", "server", "base"),
    [
        (b"localhost:9000", (None, "127.0.0.1", 8080), "http://localhost:9000"),
        (b"127.0.0.1", (None, _ALL, 8080), "http://127.0.0.1"),
        (b"[::1]:9000", (None, _ALL, 8080), "http://[::1]:9000"),
        (b"evil.example", (None, "127.0.0.1", 8080), "http://127.0.0.1:8080"),
        (b"evil.example", (None, _ALL, 8080), "http://127.0.0.1:8080"),
        (b"evil.example", (None, "::", 8080), "http://[::1]:8080"),
        (b"evil.example", (None, "10.0.0.7", 8080), "http://10.0.0.7:8080"),
        (b"evil.example", ("https://ours.example", _ALL, 8080), "https://ours.example"),
        (b"localhost", ("https://ours.example", _ALL, 8080), "https://ours.example"),
        (b"localhost@evil.example", (None, "127.0.0.1", 8080), "http://127.0.0.1:8080"),
        (b"evil.example@localhost:1", (None, "127.0.0.1", 8080), "http://localhost:1"),
        (b"evil.example#@localhost", (None, "127.0.0.1", 8080), "http://127.0.0.1:8080"),
        (b"localhost/@evil.example", (None, "127.0.0.1", 8080), "http://localhost"),
        (b"localhost.evil.example", (None, "127.0.0.1", 8080), "http://127.0.0.1:8080"),
        (b"localhost:evil", (None, "127.0.0.1", 8080), "http://127.0.0.1:8080"),
        (b"[::1", (None, "127.0.0.1", 8080), "http://127.0.0.1:8080"),
        (b"", (None, "127.0.0.1", 8080), "http://127.0.0.1:8080"),
    ],
)  # fmt: skip
def test_a_link_for_others_begins_with_no_host_that_a_request_names(
    named: bytes, server: tuple[str | None, str, int], base: str
) -> None:
    """Its secret would go there. This machine may be named, for its port may be another one outside."""
    request = Request({"type": "http", "headers": [(b"host", named)], "client": None})
    assert link_base(request, _settings(*server)) == base
    if server[0] is None:
        assert link_base(request, _settings(*server, tls=True)) == base.replace("http:", "https:")
