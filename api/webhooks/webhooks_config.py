"""The `webhooks` section of the configuration: where messages may go, and nowhere else."""

import ipaddress
import re
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from settings.secret_ref import SecretRef
from settings.types import Section

_ADDRESS: Final = re.compile(r"[^@\s<>,;:\"()\[\]\\]{1,64}@[A-Za-z0-9][A-Za-z0-9.-]{0,188}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def destination_url(value: str) -> str:
    """Return an address that messages may be posted to. Raises ValueError, which does not repeat it."""
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


def mail_address(value: str) -> str:
    """Return an address that mail may be sent to. Raises ValueError."""
    if not value.isascii() or not value.isprintable() or _ADDRESS.fullmatch(value) is None:
        raise ValueError("must be a mail address such as alerts@example.com")
    return value


MailAddress = Annotated[str, AfterValidator(mail_address)]


class MailServer(Section):
    """The SMTP server that mail is handed to."""

    host: str = Field(min_length=1, max_length=253, description="Its name or address.")
    port: int = Field(default=587, ge=1, le=65_535, description="Its port.")
    security: Literal["starttls", "tls", "none"] = Field(
        default="starttls",
        description="`starttls`, `tls` from the start, or `none` (this machine only).",
    )
    user: str | None = Field(default=None, max_length=200, description="Who signs in there; nobody does without it.")
    password: SecretRef | None = Field(default=None, description="Where that one's password is found, `env:NAME`.")
    sender: MailAddress = Field(max_length=254, description="The address that mail comes from.")

    @model_validator(mode="after")
    def _is_private(self) -> Self:
        if self.security == "none" and not _is_loopback(self.host):
            raise ValueError("mail without TLS is for a server on this machine only; use starttls or tls")
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password belong together")
        return self


class WebhookDestination(Section):
    """One receiver of messages."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]*$",
        max_length=64,
        description="What budgets and reports call it.",
    )
    shape: Literal["standard", "slack", "mail"] = Field(
        default="standard",
        description='`standard`: Standard Webhooks; `slack`: `{"text": …}`; `mail`: by `webhooks.mail`.',
    )
    url: Annotated[str, AfterValidator(destination_url)] | None = Field(
        default=None,
        max_length=2_000,
        description="Where messages are posted; https, or http on this machine. Not for mail.",
    )
    url_from: SecretRef | None = Field(default=None, description="In place of `url`, for a secret address: `env:NAME`.")
    to: tuple[MailAddress, ...] = Field(default=(), max_length=20, description="Of mail: who gets it.")
    secret: SecretRef | None = Field(
        default=None,
        description="The signing secret, `env:NAME`: `whsec_` and base64 of 24 to 64 bytes. Needed for `standard`.",
    )
    previous_secret: SecretRef | None = Field(
        default=None, description="The old secret while it is replaced; both sign."
    )

    @model_validator(mode="after")
    def _has_what_its_shape_needs(self) -> Self:
        if self.shape == "mail":
            if not self.to or self.url or self.url_from:
                raise ValueError("mail goes `to` somebody and has no `url`")
        elif (self.url is None) == (self.url_from is None):
            raise ValueError("needs a `url`, or a `url_from` that names where a secret one is found")
        if self.shape == "standard" and self.secret is None:
            raise ValueError("needs a `secret`, which its messages are signed with")
        return self


class WebhooksSection(Section):
    """Receivers of warnings and reports: as Standard Webhooks, in Slack's shape, or by mail."""

    mail: MailServer | None = Field(default=None, description="The SMTP server, for destinations of shape `mail`.")

    destinations: tuple[WebhookDestination, ...] = Field(
        default=(), max_length=32, description="The only places that messages are ever sent to."
    )

    team_hosts: tuple[Annotated[str, Field(pattern=r"^(\*\.)?[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")], ...] = Field(
        default=(),
        max_length=64,
        description="Hosts, such as `hooks.slack.com` or `*.example.com`, and domains of mail, that a team's administrators may "
        "send its alerts to. None: only `destinations`. Needs `batch.enabled`, whose callbacks they are.",
    )

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [each.name for each in self.destinations]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two destinations are named `{twice[0]}`")
        by_mail = [each.name for each in self.destinations if each.shape == "mail"]
        if by_mail and self.mail is None:
            raise ValueError(f"`{by_mail[0]}` is sent by mail: say the server under `mail`")
        return self

    def names(self) -> tuple[str, ...]:
        """Return the destinations that budgets and reports may name."""
        return tuple(each.name for each in self.destinations)
