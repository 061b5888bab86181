"""The address of a call: the origin that connections are kept for, and the path of the request line."""

import re
import ssl
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec

_PORTS: Final = {"http": 80, "https": 443}
_SAFE_IN_PATH: Final = "/%:@!$&'()*+,;=-._~"
_NOT_IN_A_HEAD: Final = re.compile(r"[\x00-\x20\x7f]")


class AddressInvalid(ValueError):
    """A URL that no request can be sent to."""


class Origin(msgspec.Struct, frozen=True):
    """The scheme, host and port of a call: connections to one origin are alike."""

    host: str
    port: int
    tls: bool


class Address(msgspec.Struct, frozen=True):
    """An origin and the head of a POST to a path there, up to and with its `host` field."""

    origin: Origin
    head: bytes


def address_of(url: str) -> Address:
    """Take a URL apart. Raises AddressInvalid."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressInvalid(str(error)) from error
    host = parts.hostname
    if parts.scheme not in _PORTS or not host or _NOT_IN_A_HEAD.search(url) or "@" in parts.netloc:
        raise AddressInvalid("an address needs http or https and a host, and no name or blanks")
    try:
        spoken = host if ":" in host else host.encode("idna").decode()
    except UnicodeError as error:
        raise AddressInvalid("the host is no domain name") from error
    named = f"[{host}]" if ":" in host else spoken
    usual = _PORTS[parts.scheme]
    if port is not None and port != usual:
        named += f":{port}"
    path = quote(parts.path or "/", safe=_SAFE_IN_PATH)
    query = f"?{quote(parts.query, safe=_SAFE_IN_PATH + '?')}" if parts.query else ""
    return Address(
        Origin(spoken, port or usual, parts.scheme == "https"),
        f"POST {path}{query} HTTP/1.1\r\nhost: {named}\r\n".encode("ascii"),
    )


def trusted() -> ssl.SSLContext:
    """Return a TLS context with the system's trust, host names checked, and HTTP/1.1 alone on offer."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
