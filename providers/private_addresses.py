"""Which hosts are of this machine or of a network of one's own, by name or number alone: nothing is looked up."""

import ipaddress
import socket
import unicodedata
from typing import Final
from urllib.parse import urlsplit

_PRIVATE: Final = (
    ".internal",
    ".local",
    ".localhost",
    ".localdomain",
    ".lan",
    ".home",
    ".home.arpa",
    ".corp",
    ".intra",
    ".intranet",
    ".private",
    ".test",
    ".svc",
    ".consul",
)
"""Ends of names that no public host has; `.svc`, with whatever domain the cluster has behind it, is Kubernetes'."""
_SERVICE: Final = ".svc."
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")


def is_private(host: str) -> bool:
    """Return whether a host is of this machine or a network of one's own, by its name or address."""
    # A resolver is given what IDNA makes of it: wide digits are digits.
    host = unicodedata.normalize("NFKC", host.strip("[]")).replace("。", ".").rstrip(".").lower()
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(host)
    except ValueError:
        try:
            # 127.1, 0x7f000001: what a resolver takes for a number is one.
            address = ipaddress.IPv4Address(socket.inet_aton(host))
        except (OSError, ValueError):
            return "." not in host or host.endswith(_PRIVATE) or _SERVICE in host
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address.sixtofour or _carried(address) or address
    return not address.is_global


def _carried(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the address of IPv4 that an IPv6 one is written for."""
    is_one = any(address in network for network in (_NAT64, _COMPATIBLE)) and int(address) > 1
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if is_one else None


def is_inside(base_url: str) -> bool:
    """Return whether an address leads to such a host; False without one."""
    return bool(base_url) and is_private(urlsplit(base_url).hostname or "")
