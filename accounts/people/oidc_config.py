"""The `sign_in.providers` part of the configuration: OpenID providers, and the rights that their groups give."""

import ipaddress
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from accounts.access import TeamRole
from accounts.tables import ID_CHARS, NAME_CHARS
from settings.types import Finite, Given, Section

_NAME: Final = r"^[a-z0-9][a-z0-9_-]*$"
_ID: Final = rf"^[a-z0-9_-]{{1,{ID_CHARS}}}$"
_REFERENCE: Final = r"^((env:|os\.environ/)[A-Za-z_][A-Za-z0-9_]*|file:\S(.*\S)?)$"
_DOMAIN: Final = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"
_GROUP_CHARS: Final = 256

Text = Annotated[str, Field(min_length=1, max_length=_GROUP_CHARS)]


def is_secure(address: str) -> bool:
    """Return True for an https URL, or an http one on a loopback host: nobody in between can read or answer."""
    try:
        parts = urlsplit(address)
        # Reading the port is what checks it.
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        return False
    if not host or "@" in parts.netloc or parts.fragment or not address.isascii() or not address.isprintable():
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _issuer(value: str) -> str:
    if not is_secure(value) or urlsplit(value).query or " " in value:
        raise ValueError(
            "must be the provider's issuer such as https://id.example.com, exactly as its "
            "/.well-known/openid-configuration says it; http:// is for this machine only"
        )
    return value


class GroupRule(Section):
    """The role and team that the members of one of the provider's groups get."""

    group: Text = Field(description="The group as the provider names it, to the letter.")
    role: Literal["admin", "finance", "operator"] | None = Field(
        default=None, description="What they are to the organisation."
    )
    team: str | None = Field(default=None, pattern=_ID, description="A team that they belong to.")
    team_role: TeamRole = Field(default="member", description="What they are in that team.")

    @model_validator(mode="after")
    def _gives_something(self) -> Self:
        if not self.role and not self.team:
            raise ValueError("must give a role, a team or both")
        return self


class OidcSection(Section):
    """One OpenID provider that people of one organisation sign in with."""

    name: str = Field(pattern=_NAME, max_length=32, description="Its place in addresses: /dashboard/sign-in/NAME.")
    label: str = Field(min_length=1, max_length=64, description="What the button says: Sign in with LABEL.")
    issuer: Annotated[str, AfterValidator(_issuer)] = Field(
        max_length=NAME_CHARS, description="Who it says that it is, to the letter, a final slash included."
    )
    client_id: str = Field(min_length=1, max_length=256, description="What the provider calls this gateway.")
    client_secret: str | None = Field(
        default=None,
        pattern=_REFERENCE,
        description="Where it is found: `env:NAME` or `file:PATH`. Without one: a public client.",
    )
    client_authentication: Literal["client_secret_basic", "client_secret_post"] | None = Field(
        default=None, description="How the secret is sent; default as the provider prefers."
    )
    organisation: str = Field(default="default", pattern=_ID, description="Whose people come from here.")
    scopes: tuple[Annotated[str, Field(pattern=r"^[!#-\[\]-~]{1,128}$")], ...] = Field(
        default=("openid", "email", "profile"), max_length=16, description="What is asked for; `openid` among them."
    )
    create_people: bool = Field(
        default=False, description="Whether somebody who is unknown here gets an account at the first sign-in."
    )
    link_by_email: bool = Field(
        default=False,
        description="Whether a verified e-mail address signs in to its existing account. Only where nobody can "
        "claim another's address.",
    )
    emails_are_verified: bool = Field(
        default=False,
        description="For providers without `email_verified` whose addresses the organisation assigns.",
    )
    email_domains: tuple[Annotated[str, Field(pattern=_DOMAIN, max_length=253)], ...] = Field(
        default=(), max_length=64, description="If given, a verified address of one of these domains is needed."
    )
    groups_claim: Text = Field(
        default="groups", description="The claim that lists groups; dots lead into it, such as `realm_access.roles`."
    )
    required_groups: tuple[Text, ...] = Field(
        default=(), max_length=64, description="If given, only members of one of these may sign in."
    )
    groups: tuple[GroupRule, ...] = Field(
        default=(),
        max_length=1_000,
        description="What groups mean. The first rule with a role that fits gives it; of a team, `admin` wins.",
    )
    prompt: Literal["login", "select_account", "consent"] | None = Field(
        default=None, description="OpenID's `prompt` parameter."
    )
    ca_file: Given[Path | None] = Field(
        default=None,
        description="Further trusted certificates (PEM).",
    )
    timeout_s: Finite = Field(
        default=10.0, ge=0.1, le=60, description="What the provider has for one step of a sign-in."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if "openid" not in self.scopes:
            raise ValueError("scopes must have `openid`")
        if self.client_authentication and self.client_secret is None:
            raise ValueError("client_authentication needs a client_secret")
        return self

    @property
    def gives_roles(self) -> bool:
        """True when any rule gives a role of the organisation."""
        return any(rule.role for rule in self.groups)
