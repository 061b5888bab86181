"""The address that a request comes from, where trusted reverse proxies stand before the gateway."""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAX_HEADER: Final = 2_000
_MAX_ADDRESS: Final = 64
_ONE_SITE: Final = 64
"""Bits of an IPv6 address that one site cannot change."""


def client_address(peer: str, forwarded_for: Iterable[str], trusted: Sequence[Network] = ()) -> str:
    """Return the client's IP address: the last hop that is no trusted proxy. `forwarded_for` are the values of X-Forwarded-For,
    whose earlier entries can be forged; `peer` is the connection's other end.
    """
    address = peer[:_MAX_ADDRESS]
    if not trusted:
        return address
    forwarded = ",".join(forwarded_for)[-_MAX_HEADER:]
    hops = [hop.strip() for hop in forwarded.split(",") if hop.strip()]
    while hops and _is_among(address, trusted):
        further = _plain(hops.pop())
        if further is None:
            break
        address = further
    return address


def site_of(address: str) -> str:
    """Return the network that counts as one sender: an IPv4 address, or the /64 of an IPv6 address."""
    plain = _plain(address)
    if plain is None or ":" not in plain:
        return plain or address
    return str(ipaddress.ip_network((plain.partition("%")[0], _ONE_SITE), strict=False))


def _is_among(address: str, networks: Sequence[Network]) -> bool:
    plain = _plain(address)
    return plain is not None and any(ipaddress.ip_address(plain) in network for network in networks)


def _plain(text: str) -> str | None:
    """Return the IP address without brackets or port, IPv4-mapped IPv6 as IPv4; None for anything else."""
    bare = text.removeprefix("[").partition("]")[0] if text.startswith("[") else text
    if bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        parsed = ipaddress.ip_address(bare)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
