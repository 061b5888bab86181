"""Permitted addresses of callbacks: public ones, and private networks that the operator lists. Checked after each look-up."""

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

_MOST_CHARS: Final = 2_000
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL: Final = ipaddress.ip_network("64:ff9b:1::/48")
_RETIRED: Final = (ipaddress.ip_network("::/96"), ipaddress.ip_network("::ffff:0:0:0/96"))
"""Forms of IPv4 addresses that nobody uses any more: compatible and translated ones."""
_NAME: Final = re.compile(r"(?=.{1,253}\.?$)([a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?", re.ASCII | re.IGNORECASE)
"""A host's name: a resolver fails at an empty label or one that is too long, in a way of its own."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressRefused(OSError):
    """The address is not public, and no network that the operator lists has it."""


class BadCallbackUrl(ValueError):
    """Nothing may be sent to this URL. The message says why."""


class CallbackAddresses:
    """The rules for addresses and URLs of callbacks."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Raise ValueError for what is no network."""
        self._networks: tuple[Network, ...] = tuple(ipaddress.ip_network(each) for each in networks)

    def allows(self, address: str) -> bool:
        """Return True for an address that may be called: public, or listed."""
        try:
            found = _inner(ipaddress.ip_address(address.partition("%")[0]))
        except ValueError:
            return False
        is_public = found.is_global and not found.is_multicast and not any(found in network for network in _RETIRED)
        return self._is_listed(found) or is_public

    def check_url(self, url: str) -> None:
        """Raise BadCallbackUrl for a URL that would never be called. Its name is looked up only when it is."""
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname
        except ValueError as error:
            raise BadCallbackUrl("is no address") from error
        if len(url) > _MOST_CHARS or not url.isascii() or not url.isprintable() or " " in url:
            raise BadCallbackUrl(f"must be plain ASCII without spaces, of at most {_MOST_CHARS} characters")
        if not host or port == 0 or "@" in parts.netloc or parts.fragment:
            raise BadCallbackUrl(
                "must be an address such as https://example.com/hooks, without user, password or fragment"
            )
        if ":" not in host and _NAME.fullmatch(host) is None:
            raise BadCallbackUrl("must name a host such as example.com")
        if parts.scheme != "https" and not (parts.scheme == "http" and self._is_listed_literal(host)):
            raise BadCallbackUrl("must begin with https://")
        if _looks_numeric(host) and not self.allows(host):
            raise BadCallbackUrl("must have a public address, or one of the networks under `batch.callback_networks`")

    def _is_listed(self, address: Address) -> bool:
        return any(address in network for network in self._networks if network.version == address.version)

    def _is_listed_literal(self, host: str) -> bool:
        try:
            return self._is_listed(_inner(ipaddress.ip_address(host)))
        except ValueError:
            return False


class CheckedResolver(AbstractResolver):
    """A resolver that returns only addresses that may be called; the connection is made to a checked address."""

    def __init__(self, addresses: CallbackAddresses, resolver: AbstractResolver | None = None) -> None:
        self._addresses = addresses
        self._resolver = resolver or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raise AddressRefused when a single one of the addresses may not be called."""
        found = await self._resolver.resolve(host, port, family)
        if not found or not all(self._addresses.allows(each["host"]) for each in found):
            raise AddressRefused("the callback's name leads to an address that is not public")
        return found

    async def close(self) -> None:
        await self._resolver.close()


def _inner(address: Address) -> Address:
    """Return the IPv4 address embedded in an IPv6 one, in any form that a network translates."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address in _NAT64 or address in _NAT64_LOCAL:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)


def _looks_numeric(host: str) -> bool:
    """Return True for a host that a resolver may take for an address: also `2130706433`, `0x7f.1` and `127.1`."""
    last = host.rstrip(".").rpartition(".")[2]
    return ":" in host or last.isdigit() or last.lower().startswith("0x")
