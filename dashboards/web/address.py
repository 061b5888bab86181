"""Client addresses behind trusted reverse proxies, and the addresses that links begin with."""

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from accounts.people.links import own_address
from dashboards.web.gateway import Settings

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAX_HEADER: Final = 2_000


def address_of(request: Request, trusted: Sequence[Network] = ()) -> str:
    """The client's IP address: the last hop that is no trusted proxy. Earlier entries of X-Forwarded-For can be forged."""
    address = request.client.host[:64] if request.client else ""
    if not trusted:
        return address
    forwarded = ",".join(request.headers.getlist("x-forwarded-for"))[-_MAX_HEADER:]
    hops = [hop.strip() for hop in forwarded.split(",") if hop.strip()]
    while hops and _is_among(address, trusted):
        further = _plain(hops.pop())
        if further is None:
            break
        address = further
    return address


def base_url(request: Request, public_url: str | None) -> str:
    """Base of examples, which nobody reads but who asked: the configured public URL, otherwise the host of this request."""
    return public_url or f"{request.url.scheme}://{request.headers.get('host', '')}"


def link_base(request: Request, settings: Settings) -> str:
    """Base of links that are sent to others: the configured public URL, otherwise the gateway's own address.

    The request's host is taken for it only where it is this machine, as seen through a forwarded port. Any other host is what somebody
    wrote into the request, and would be given the secret of the link.
    """
    server = settings.server
    scheme = "http" if server.tls is None else "https"
    return settings.sign_in.public_url or _loopback(request, scheme) or own_address(server.host, server.port, scheme)


def _loopback(request: Request, scheme: str) -> str | None:
    """The address that the request's host names on this machine; None for any other host."""
    try:
        parts = urlsplit(f"//{request.headers.get('host', '')}")
        host, port = parts.hostname or "", parts.port
        is_here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return None
    return own_address(host, port, scheme) if is_here else None


def _is_among(address: str, networks: Sequence[Network]) -> bool:
    plain = _plain(address)
    return plain is not None and any(ipaddress.ip_address(plain) in network for network in networks)


def _plain(text: str) -> str | None:
    """The IP address without brackets or port, IPv4-mapped IPv6 as IPv4; None for anything else."""
    bare = text.removeprefix("[").partition("]")[0] if text.startswith("[") else text
    if bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        parsed = ipaddress.ip_address(bare)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
