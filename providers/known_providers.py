"""The providers that are known by name, with what calling one needs: the table in `data/providers.toml`."""

import re
import tomllib
from collections.abc import Mapping
from datetime import date as Day  # noqa: N812  A field is called `date`.
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from cost.told_cost import ToldCost
from providers.target import OWN_ENGINES, DeploymentKind, Dialect
from settings.words import closest

TABLE_FILE: Final = Path(__file__).parent / "data" / "providers.toml"


class Provider(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the table, as its head explains it."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    kind: DeploymentKind = "openai"
    litellm: str = ""
    base_url: str = ""
    path: str = ""
    hosts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    prices: str = ""
    makers: frozenset[str] = frozenset()
    prefixed: str = ""
    told_cost: ToldCost | None = None
    dialect: Dialect | None = None
    port: int | None = None
    headers: tuple[str, ...] = ()
    model: str
    extra: Mapping[str, Any] = {}
    source: str
    date: Day

    @property
    def is_own(self) -> bool:
        """True for an engine that its operator runs."""
        return self.kind in OWN_ENGINES

    def is_at(self, url: str) -> bool:
        """Return True where an address is one of its own."""
        host = _host(url)
        return bool(host) and (
            host == _host(self.base_url)
            or any(host.endswith(each) if each.startswith(".") else host == each for each in self.hosts)
        )

    def bare_name(self, name: str) -> str:
        """Return a model's name there, without the provider that litellm's users write before it."""
        prefix, _, rest = name.partition("/")
        if not rest or provider_named(prefix) is not self or re.fullmatch(self.prefixed, name):
            return name
        return rest

    def whole_address(self, url: str) -> str:
        """Return the address with the provider's path, where it has none."""
        try:
            parts = urlsplit(url)
        except ValueError:
            return url
        bare = parts.scheme and parts.netloc and parts.path in {"", "/"} and not parts.query and not parts.fragment
        return url.rstrip("/") + self.path if bare else url


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    provider: tuple[Provider, ...]


@cache
def known_providers() -> tuple[Provider, ...]:
    """Return every row of the table, read once a process."""
    return msgspec.convert(tomllib.loads(TABLE_FILE.read_text(encoding="utf-8")), _Table).provider


def provider_named(name: str) -> Provider | None:
    """Return the provider of a name or alias; None where it is not known."""
    return _by_name().get(_key(name))


def provider_at(url: str) -> Provider | None:
    """Return the commercial provider whose host an address has; None where it is not known."""
    return next((each for each in known_providers() if not each.is_own and each.is_at(url)), None)


def nearest_provider(name: str) -> str | None:
    """Return the known name that was probably meant."""
    near = closest(_key(name), _by_name())
    return None if near is None else _by_name()[near].name


@cache
def _by_name() -> Mapping[str, Provider]:
    return {_key(name): each for each in known_providers() for name in (each.name, *each.aliases)}


def _key(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
