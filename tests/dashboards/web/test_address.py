"""Where a request comes from."""

from ipaddress import ip_network

import pytest
from starlette.requests import Request

from dashboards.web.address import address_of

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
