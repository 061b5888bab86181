"""Addresses that a replica may say it has: literal, allowed, and in one spelling."""

import pytest

from selfhosted.registry.origin import OriginOutside, OriginRefused, checked_origin

INSIDE = ("10.0.0.0/8", "127.0.0.0/8", "fd00::/8")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://10.1.2.3:8000", "http://10.1.2.3:8000"),
        ("https://10.1.2.3:8000/", "https://10.1.2.3:8000"),
        ("http://[fd00:0:0::7]:80", "http://[fd00::7]:80"),
        ("http://[::ffff:10.1.2.3]:8000", "http://10.1.2.3:8000"),
        ("HTTP://127.0.0.1:1", "http://127.0.0.1:1"),
    ],
)
def test_an_address_inside_has_one_spelling(url: str, told: str) -> None:
    """Two spellings of one address are one replica."""
    assert checked_origin(url, INSIDE) == told


@pytest.mark.parametrize(
    "url",
    ["http://192.168.0.1:80", "http://[::ffff:192.168.0.1]:80", "http://[2001:db8::1]:80", "http://11.0.0.1:8000"],
)
def test_an_address_outside_is_refused(url: str) -> None:
    """Also an IPv4 address in the guise of an IPv6 one."""
    with pytest.raises(OriginOutside):
        checked_origin(url, INSIDE)


@pytest.mark.parametrize(
    "url",
    [
        "http://engine.internal:8000",
        "http://localhost:8000",
        "http://10.1:8000",
        "http://0x0a000001:8000",
        "http://010.0.0.1:8000",
        "http://167772161:8000",
        "http://10.0.0.1",
        "http://10.0.0.1:0",
        "http://10.0.0.1:65536",
        "http://10.0.0.1:8000/v1",
        "http://10.0.0.1:8000?x",
        "http://10.0.0.1:8000#x",
        "http://user@10.0.0.1:8000",
        "ftp://10.0.0.1:8000",
        "//10.0.0.1:8000",
        "",
        "http://",
        "http://[fe80::1%eth0]:8000",
        "http://[fd00::1:8000",
        "http://10.0.0.1:8000\r\nhost: x",
        "http://10.0.0.1 :8000",
        "http://" + "1" * 500,
        "http://\uff11\uff10.0.0.1:80",
    ],
)
def test_what_is_no_literal_address_is_refused(url: str) -> None:
    """No names, which somebody else would resolve, no odd spellings, and nothing after the port."""
    with pytest.raises(OriginRefused):
        checked_origin(url, ("0.0.0.0/0", "::/0"))


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254:80",
        "http://[::ffff:169.254.169.254]:80",
        "http://[64:ff9b::a9fe:a9fe]:80",
        "http://[2002:a9fe:a9fe::1]:80",
        "http://[fe80::1]:80",
        "http://0.0.0.0:80",
        "http://[::]:80",
        "http://224.0.0.1:80",
        "http://255.255.255.255:80",
    ],
)
def test_no_network_allows_what_no_engine_has(url: str) -> None:
    """Where clouds keep credentials, and what is nobody's or everybody's address."""
    with pytest.raises(OriginRefused):
        checked_origin(url, ("0.0.0.0/0", "::/0"))
