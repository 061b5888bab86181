"""Addresses that callbacks may go to, by every way of writing them."""

import socket

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from api.webhooks.addresses import AddressRefused, BadCallbackUrl, CallbackAddresses, CheckedResolver

PRIVATE = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.1.2.3", "224.0.0.1",
    "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
    "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:db8::1", "192.0.2.1",
    "::7f00:1", "::ffff:0:7f00:1",
]  # fmt: skip


@pytest.mark.parametrize("address", [*PRIVATE, "not an address", "", "2130706433", "0x7f000001"])
def test_what_is_not_public_is_refused(address: str) -> None:
    """In every family, and wrapped in another one."""
    assert not CallbackAddresses().allows(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_what_is_public_is_allowed(address: str) -> None:
    """Without being listed."""
    assert CallbackAddresses().allows(address)


def test_a_listed_network_is_allowed_and_no_other() -> None:
    """Also where it is wrapped."""
    addresses = CallbackAddresses(["10.1.0.0/16"])
    assert addresses.allows("10.1.255.1")
    assert addresses.allows("::ffff:10.1.0.1")
    assert not addresses.allows("10.2.0.1")
    assert not addresses.allows("127.0.0.1")


@pytest.mark.parametrize(
    "url",
    [
        "", "hooks", "ftp://example.com/", "http://example.com/", "https://", "https://user:secret@example.com/",
        "https://example.com/#x", "https://example.com:0/", "https://example.com:99999/", "https://exämple.com/",
        "https://example.com/a b", "https://127.0.0.1/", "https://2130706433/", "https://0x7f.1/", "https://127.1/",
        "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://169.254.169.254/latest", "https://10.0.0.1./",
        "https://example.com/" + "x" * 2_000, "https://a..example.com/", "https://.example.com/",
        f"https://{'a' * 64}.example.com/", f"https://{'a.' * 127}example.com/", "https://evil.example%2f.example.com/",
        "https://evil.example\\.example.com/", "https://evil.example;.example.com/",
    ],
)  # fmt: skip
def test_what_would_never_be_called_is_told_at_once(url: str) -> None:
    """However an address is written."""
    with pytest.raises(BadCallbackUrl):
        CallbackAddresses().check_url(url)


def test_plain_http_is_for_listed_addresses() -> None:
    """Names are always called by https."""
    addresses = CallbackAddresses(["127.0.0.0/8"])
    addresses.check_url("http://127.0.0.1:8000/hooks")
    addresses.check_url("https://example.com:8443/hooks?token=x")
    with pytest.raises(BadCallbackUrl):
        addresses.check_url("http://localhost:8000/hooks")


class _Names(AbstractResolver):
    """Leads names to addresses, another one each time."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=each, port=port, family=family, proto=0, flags=0)
            for each in self.answers.pop(0)
        ]

    async def close(self) -> None:
        pass


async def test_a_name_is_looked_at_each_time_and_whole() -> None:
    """One that leads elsewhere the second time, or to a private address beside a public one, is not called."""
    resolver = CheckedResolver(
        CallbackAddresses(), _Names(["93.184.216.34"], ["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], [])
    )
    assert [each["host"] for each in await resolver.resolve("example.com", 443)] == ["93.184.216.34"]
    for _ in range(3):
        with pytest.raises(AddressRefused):
            await resolver.resolve("example.com", 443)
