"""Validation of the addresses that replicas register: literal IPs, in networks that the operator named.

Host names are refused: their owner could point them anywhere, at any time, and the gateway would follow.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit

MOST_CHARS: Final = 256
_NAT64: Final = ip_network("64:ff9b::/96")


class OriginRefused(Exception):
    """The address cannot be used. The message gives the reason."""


class OriginOutside(OriginRefused):
    """The address is valid, but in none of the allowed networks."""


def checked_origin(url: str, networks: Sequence[str]) -> str:
    """Return the address in canonical form, `http(s)://ip:port`. Raises OriginRefused."""
    parts, port = _parts(url)
    address = _address(parts.hostname or "")
    if not any(address in ip_network(network) for network in networks):
        raise OriginOutside(f"{address} is in none of the networks that `registration.networks` allows")
    return origin(parts.scheme, address, port)


def origin(scheme: str, address: IPv4Address | IPv6Address, port: int) -> str:
    """Return the URL of an address and port: `http://10.0.0.7:8000`, `http://[fd00::7]:8000`."""
    host = f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004 - the version's own number
    return f"{scheme}://{host}:{port}"


def _parts(url: str) -> tuple[SplitResult, int]:
    if len(url) > MOST_CHARS or not url.isascii() or not url.isprintable() or " " in url:
        raise OriginRefused("the url is no address")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise OriginRefused("the url is no address") from error
    if parts.scheme not in {"http", "https"} or not port:
        raise OriginRefused("the url is http://IP:PORT or https://IP:PORT, with the port")
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise OriginRefused("the url has neither a path nor a user: it ends with the port")
    return parts, port


def _address(host: str) -> IPv4Address | IPv6Address:
    if "%" in host:
        raise OriginRefused("the url's host is an address with a zone, which means something on one machine only")
    try:
        address = ip_address(host)
    except ValueError as error:
        raise OriginRefused("the url's host is a literal IP address, not a name") from error
    # An IPv4-mapped IPv6 address is checked as the IPv4 address that it reaches.
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_unspecified or address.is_multicast or _is_link_local(address) or str(address) == "255.255.255.255":
        # Link-local addresses are where clouds keep their machines' credentials.
        raise OriginRefused(f"{address} is no address that an engine can have")
    return address


def _is_link_local(address: IPv4Address | IPv6Address) -> bool:
    """Return True for a link-local address, also one that NAT64 or 6to4 gateways would translate to."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(address.packed[-4:]).is_link_local
        if address.sixtofour is not None:
            return address.sixtofour.is_link_local
    return address.is_link_local
