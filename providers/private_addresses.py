"""Which hosts are of this machine or of a network of one's own, by name or number alone: nothing is looked up."""

import ipaddress
import socket
from typing import Final
from urllib.parse import urlsplit

_PRIVATE: Final = (
    ".internal",
    ".local",
    ".localhost",
    ".lan",
    ".home",
    ".corp",
    ".intranet",
    ".private",
    ".test",
    ".svc",
)
"""Ends of names that no public host has; `.svc` and `.svc.cluster.local` are Kubernetes'."""


def is_private(host: str) -> bool:
    """Return whether a host is of this machine or a network of one's own, by its name or address."""
    host = host.strip("[]").rstrip(".").lower()
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(host)
    except ValueError:
        try:
            # 127.1, 0x7f000001: what a resolver takes for a number is one.
            address = ipaddress.IPv4Address(socket.inet_aton(host))
        except (OSError, ValueError):
            return "." not in host or host.endswith(_PRIVATE)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return not address.is_global


def is_inside(base_url: str) -> bool:
    """Return whether an address leads to such a host; False without one."""
    return bool(base_url) and is_private(urlsplit(base_url).hostname or "")
