"""Addresses of deployments that can hardly be reached as they are written, or not by whom they should."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from providers.config import DeploymentConfig, ModelConfig, ProvidersSection
from providers.known_providers import known_providers
from providers.private_addresses import is_inside
from providers.target import OWN_ENGINES
from providers.upstreams import OPENAI_SHAPED

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "host.docker.internal"})  # noqa: S104 - compared, not bound
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_HTTP_PORT: Final = 80
_HTTPS_PORT: Final = 443
_SHARED_PORTS: Final = frozenset({8000, 8080})
"""Ports that many a thing listens at."""


def address_hints(section: ProvidersSection, own_port: int | None = None) -> Iterator[str]:
    """Yield a sentence for each address that was probably meant otherwise. `own_port` is the gateway's."""
    for model in section.models:
        for deployment in model.deployments:
            url = deployment.base_url
            doubt = (
                _doubt(url)
                or _loop(url, own_port)
                or _elsewhere(deployment)
                or _open(deployment)
                or _owned(model, deployment)
            )
            if doubt is not None:
                yield f"{model.model_id}: base_url {url} {doubt}"


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


def _loop(url: str, own_port: int | None) -> str | None:
    parts = urlsplit(url)
    if own_port and parts.port == own_port and parts.hostname in _LOOPBACK - {"host.docker.internal"}:
        return "is this gateway itself (`server.port`), which would call itself without end; write where the model is"
    return None


def _elsewhere(deployment: DeploymentConfig) -> str | None:
    """Return what an address lacks: the provider's path, or any."""
    url = deployment.base_url.rstrip("/")
    if not url or deployment.kind not in OPENAI_SHAPED:
        return None
    for known in known_providers():
        if (
            not known.is_own
            and known.kind == deployment.kind
            and urlsplit(known.base_url).hostname == urlsplit(url).hostname
        ):
            return (
                None
                if (url + "/").startswith(known.base_url + "/")
                else f"is not where {known.title} is called: write {known.base_url}"
            )
    path = urlsplit(url).path
    if deployment.kind == "azure":
        wrong = not deployment.api_version and not path
        return f"has no path: write {url}/openai/v1, or the `api_version` of Azure's older API" if wrong else None
    if not path:
        return f"has no path, and nearly all hosts are called below /v1: write {url}/v1"
    if deployment.kind in OWN_ENGINES and path in {"/api", "/api/chat", "/api/generate", "/api/v0", "/api/v1"}:
        return f"is of another API than OpenAI's: write {url.removesuffix(path)}/v1"
    return None


def _open(deployment: DeploymentConfig) -> str | None:
    parts = urlsplit(deployment.base_url)
    if parts.scheme != "http" or deployment.api_key is None or parts.port == _HTTPS_PORT:
        return None
    return (
        None
        if is_inside(deployment.base_url)
        else "sends the key and all prompts through the internet unencrypted; write https://"
    )


def _owned(model: ModelConfig, deployment: DeploymentConfig) -> str | None:
    """Return that an address is probably an engine of one's own, whose tokens cost nothing."""
    parts = urlsplit(deployment.base_url)
    if deployment.kind != "openai" or model.prices is not None or not is_inside(deployment.base_url):
        return None
    for known in known_providers():
        if known.is_own and known.port == parts.port and parts.port not in _SHARED_PORTS:
            return f"has the port of {known.title}: with `kind: {known.kind}` its tokens cost nothing, and none is refused as unpriced"
    return None
