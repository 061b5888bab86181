"""The `webhooks` section of the configuration: where messages may go, and nowhere else."""

import ipaddress
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from providers.config import SecretRef
from settings.types import Section


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _destination_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.hostname is None or parts.port == 0:
        raise ValueError("must be an address such as https://example.com/hooks")
    if "@" in parts.netloc:
        raise ValueError("must hold no user and no password: the message is signed with the secret")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(parts.hostname)):
        raise ValueError("must begin with https://; http:// is for this machine only")
    if parts.fragment or not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("must be plain ASCII without spaces and without a fragment")
    return value


class WebhookDestination(Section):
    """One receiver of messages."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]*$",
        max_length=64,
        description="What budgets and reports call it.",
    )
    url: Annotated[str, AfterValidator(_destination_url)] = Field(
        max_length=2_000, description="Where messages are posted; https, or http on this machine."
    )
    secret: SecretRef = Field(
        description="Where the signing secret is found, `env:NAME`; it is `whsec_` and base64 of 24 to 64 bytes."
    )
    previous_secret: SecretRef | None = Field(
        default=None, description="While a secret is being replaced: the old one, which messages are signed with too."
    )


class WebhooksSection(Section):
    """Receivers of warnings and reports, as Standard Webhooks."""

    destinations: tuple[WebhookDestination, ...] = Field(
        default=(), max_length=32, description="The only places that messages are ever sent to."
    )

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [each.name for each in self.destinations]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two destinations are named `{twice[0]}`")
        return self

    def names(self) -> tuple[str, ...]:
        """Destinations that budgets and reports may name."""
        return tuple(each.name for each in self.destinations)
