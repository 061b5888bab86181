"""The `accounts` section of the configuration."""

from pathlib import Path

from pydantic import Field

from accounts.tables import ID_CHARS
from settings.types import Kept, Section


class PepperSection(Section):
    """One pepper, named and referred to; the secret itself never stands in a configuration file."""

    id: str = Field(
        pattern=r"^[a-z0-9_-]{1,32}$", description="Stored beside each key, so that the pepper can be rotated."
    )
    secret: str = Field(
        pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|os\.environ/[A-Za-z_][A-Za-z0-9_]*)$",
        description="Where it is found: `env:NAME`. At least 32 bytes, hexadecimal or as it is.",
    )


class AccountsSection(Section):
    """Peppers of API keys, and how long a looked-up key stays cached."""

    peppers: tuple[PepperSection, ...] = Field(
        default=(), description="The current pepper first, then older ones that are still accepted."
    )
    operator: str = Field(
        default="default",
        pattern=rf"^[a-z0-9_-]{{1,{ID_CHARS}}}$",
        description="The organisation that runs the gateway: only its people and keys set prices and models' "
        "limits and see operations.",
    )
    pepper_file: Kept[Path | None] = Field(
        default=None,
        description="Used when `peppers` is empty, such as `var/pepper`. Made where the database has no key yet.",
    )
    fresh_s: float = Field(
        default=2.0,
        gt=0,
        le=4.0,
        description="How long a key is cached; revocation takes this long.",
    )
    outage_s: float = Field(
        default=60.0,
        ge=0,
        le=3600.0,
        description="How long a known key is accepted while the database is down.",
    )
    lookup_timeout_s: float = Field(
        default=1.0,
        gt=0,
        le=30.0,
        description="A database slower than this counts as down; an unknown key waits five times as long.",
    )
    max_entries: int = Field(default=10_000, ge=1, le=1_000_000, description="Keys remembered in a process.")
    imported_keys: bool = Field(
        default=False,
        description="Takes keys of other gateways (`sk-…`) that `weighbridge import` and `weighbridge keys import` brought.",
    )
    litellm_routes: bool = Field(
        default=False,
        description="Serves LiteLLM's admin routes (`/key/generate`, `/team/new` …), see docs/litellm.md.",
    )
