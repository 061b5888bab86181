"""Client addresses behind trusted reverse proxies, and the addresses that links begin with."""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.requests import Request

from accounts.people.client_address import Network, client_address
from accounts.people.links import own_address
from api.web.gateway import Settings


def address_of(request: Request, trusted: Sequence[Network] = ()) -> str:
    """Return the client's IP address: the last hop that is no trusted proxy."""
    return client_address(
        request.client.host if request.client else "", request.headers.getlist("x-forwarded-for"), trusted
    )


def base_url(request: Request, public_url: str | None) -> str:
    """Return the base of examples, read only by the asker: the public URL, otherwise this request's host."""
    return public_url or f"{request.url.scheme}://{request.headers.get('host', '')}"


def link_base(request: Request, settings: Settings) -> str:
    """Return the base of links that are sent to others: the public URL, otherwise the gateway's own address.

    The request's host is believed only where it names this machine: the port may be a forwarded one. Any other host may be forged, and
    the link would take its secret there.
    """
    server = settings.server
    scheme = "http" if server.tls is None else "https"
    return settings.sign_in.public_url or _loopback(request, scheme) or own_address(server.host, server.port, scheme)


def _loopback(request: Request, scheme: str) -> str | None:
    """Return the address that the request's host names on this machine; None for any other host."""
    try:
        parts = urlsplit(f"//{request.headers.get('host', '')}")
        host, port = parts.hostname or "", parts.port
        is_here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return None
    return own_address(host, port, scheme) if is_here else None
