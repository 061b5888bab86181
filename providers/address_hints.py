"""Addresses of deployments that can hardly be reached as they are written."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from providers.config import ProvidersSection

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "host.docker.internal"})  # noqa: S104 - compared, not bound
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_HTTP_PORT: Final = 80
_HTTPS_PORT: Final = 443


def address_hints(section: ProvidersSection) -> Iterator[str]:
    """Yield a sentence for each address that was probably meant otherwise."""
    for model in section.models:
        for deployment in model.deployments:
            doubt = _doubt(deployment.base_url)
            if doubt is not None:
                yield f"{model.model_id}: base_url {deployment.base_url} {doubt}"


def _doubt(url: str) -> str | None:
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.port == _HTTPS_PORT:
        return "speaks plain HTTP to the port of HTTPS; write https://"
    if parts.scheme == "https" and parts.port == _HTTP_PORT:
        return "speaks HTTPS to the port of plain HTTP; write http://, or the port of HTTPS"
    if parts.hostname in _EVERYWHERE:
        return "is an address to listen on, not to call; write the host's name or address"
    if parts.scheme == "https" and parts.port is None and parts.hostname in _LOOPBACK:
        return "means port 443 of this machine with TLS; engines here mostly speak http:// at a port of their own, such as http://localhost:8000/v1"
    return None
