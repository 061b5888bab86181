"""The `sign_in` section of the configuration."""

import ipaddress
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, IPvAnyNetwork, field_validator, model_validator

from accounts.people.oidc_config import OidcSection
from settings.types import Reloadable, Section

_DAY_S = 86_400


class SignInSection(Section):
    """Sign-in of people to the dashboards: passwords, sessions, lockout and OpenID providers."""

    public_url: str | None = Field(
        default=None,
        max_length=200,
        description="Where people reach the gateway, such as `https://weighbridge.example.com`: invitations and "
        "OpenID redirects use it. Default: the server's own address.",
    )
    passwords: bool = Field(default=True, description="Whether people may sign in with a password of their own.")
    password_min_chars: int = Field(default=12, ge=8, le=128, description="The fewest characters of a new password.")
    idle_s: int = Field(
        default=8 * 3600, ge=60, le=30 * _DAY_S, description="A session that is not used for this long ends."
    )
    absolute_s: int = Field(
        default=7 * _DAY_S, ge=300, le=90 * _DAY_S, description="After this long one has to sign in again, used or not."
    )
    link_s: int = Field(default=_DAY_S, ge=300, le=7 * _DAY_S, description="How long a one-time link can be used.")
    failures: int = Field(
        default=10,
        ge=3,
        le=100,
        description="Failed sign-ins that lock an account; an address after five times as many. Forgotten after a day.",
    )
    lock_s: int = Field(
        default=60,
        ge=1,
        le=3600,
        description="The first lock; each further failure doubles it, up to sixteen times.",
    )
    trusted_proxies: Reloadable[tuple[IPvAnyNetwork, ...]] = Field(
        default=(),
        max_length=64,
        json_schema_extra={"unit": "list of networks"},
        description="Networks of reverse proxies whose X-Forwarded-For is believed.",
    )
    notice: Reloadable[str] = Field(
        default="",
        max_length=300,
        description="Text at the top of every page, such as `Staging: keys do not last here`.",
    )
    providers: tuple[OidcSection, ...] = Field(
        default=(), max_length=8, description="OpenID providers whose people may sign in."
    )

    @field_validator("public_url")
    @classmethod
    def _an_origin(cls, value: str | None) -> str | None:
        return None if value is None else _origin(value)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.idle_s > self.absolute_s:
            raise ValueError("idle_s must not be longer than absolute_s")
        names = [provider.name for provider in self.providers]
        if len(set(names)) != len(names):
            raise ValueError("two providers have the same name")
        if names and self.public_url is None:
            raise ValueError("providers need sign_in.public_url, which they send people back to")
        return self


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if not parts.hostname or parts.username is not None or parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise ValueError("an origin is expected, such as https://weighbridge.example.com, without a path")
    if not (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname))):
        # Browsers keep the session's cookie only where nobody on the way can read it.
        raise ValueError("https:// is expected; http:// works for 127.0.0.1 and localhost only")
    return f"{parts.scheme}://{parts.netloc}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
