"""The effective configuration with every key, and with secrets masked wherever they stand."""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from pydantic import BaseModel

from accounts.secret_shapes import mask_text
from providers.secret_references import secrets_in
from settings.secret_ref import is_reference

MASK: Final = "•••"
MOST_LINES: Final = 20_000
_MOST_CHARS: Final = 300
_SECRET_NAME: Final = re.compile(
    r"(^|_|-)(key|keys|secret|token|password|passwd|pepper|credential|credentials|cookie|authorization)$", re.IGNORECASE
)
"""Names with such an end are secrets: `metrics_token`, `api_key`, but not `tokens_in_flight` or `max_input_tokens`."""
_SECRET_SHAPE: Final = re.compile(
    r"^(sk-|wb-|whsec_|xox[abp]-|ghp_|eyJ)|^Bearer |-----BEGIN |^[A-Za-z0-9+/_-]{40,}={0,2}$|^[0-9a-fA-F]{32,}$"
)
_SET_INSIDE: Final = re.compile(
    r"(?<![\w-])(?P<name>[\w.-]{1,100}(?=[=:])|--?[\w.-]{1,100}(?=\s))(?P<sign>[=:]\s*|\s+(?!-))(?P<value>[^\s,;'\"]+)"
)
"""Assignments within a text: `--api-key=…`, `HF_TOKEN=…`, and `--api-key …`."""
_OPTION: Final = re.compile(r"^--?[A-Za-z][\w.-]{0,100}$")
_ADDRESS: Final = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class ConfigLine(msgspec.Struct, frozen=True, kw_only=True):
    """One key and its value."""

    path: str
    """Path of the key, such as `providers.models[0].deployments[0].base_url`."""
    section: str
    value: str
    is_default: bool
    """True where the value is the program's default."""
    is_secret: bool = False
    """True for a secret; `value` then is its reference, and whether that resolves."""
    meaning: str = ""


def lines(config: BaseModel, secrets_from: Mapping[str, str]) -> list[ConfigLine]:
    """Return every key of the configuration, in the order of the reference."""
    found: list[ConfigLine] = []
    for name in type(config).model_fields:
        inside = _walk(getattr(config, name), (name,), name in config.model_fields_set, secrets_from)
        found += [msgspec.structs.replace(line, section=name) for line in inside]
        if len(found) > MOST_LINES:
            break
    return found[:MOST_LINES]


def environment_lines(environment: BaseModel) -> list[ConfigLine]:
    """Return settings of the process's environment: of addresses the location, of secrets only that they are set."""
    found = []
    for name, field in type(environment).model_fields.items():
        value = getattr(environment, name)
        is_secret = name == "pepper"
        shown = "set" if is_secret and value is not None else masked(_plain(value), name)
        if value is not None and name in {"database_url", "redis_url"}:
            shown = address(value.get_secret_value())
        variable = getattr(field.validation_alias, "choices", [f"WEIGHBRIDGE_{name.upper()}"])[0]
        found.append(
            ConfigLine(
                path=str(variable),
                section="environment",
                value=shown if value is not None else "not set",
                is_default=name not in environment.model_fields_set,
                is_secret=is_secret,
                meaning=field.description or "",
            )
        )
    return found


def masked(text: str, name: str = "") -> str:
    """Return a text with its secrets masked. `name` is its key; a key whose name marks a secret masks the whole value."""
    if not text or is_reference(text):
        return text
    if _SECRET_NAME.search(name):
        return MASK
    if _ADDRESS.match(text):
        return address(text)
    if _SECRET_SHAPE.search(text):
        return MASK
    shown = mask_text(_SET_INSIDE.sub(_without_value, text))
    return shown if len(shown) <= _MOST_CHARS else f"{shown[:_MOST_CHARS]}…"


def _without_value(found: re.Match[str]) -> str:
    """Return an assignment within a text, its value masked if its name marks a secret. Only options have a value after a
    blank.
    """
    name, sign, value = found["name"], found["sign"], found["value"]
    if not _SECRET_NAME.search(name) or is_reference(value):
        return found[0]
    return f"{name}{sign}{MASK}"


def arguments(values: Iterable[str], name: str = "") -> list[str]:
    """Return a list of texts, masked. In a command, the argument after an option whose name marks a secret is masked too."""
    shown, option = [], ""
    for value in values:
        # Another option after it: it takes no value.
        takes = _SECRET_NAME.search(option) and not _OPTION.match(value)
        shown.append(MASK if takes and not is_reference(value) else masked(value, name))
        option = value if _OPTION.match(value) else ""
    return shown


def address(url: str) -> str:
    """Return an address without password, query values and secret path segments. Malformed ones are masked completely. A
    database's may have several hosts.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    if "://" not in url:
        return MASK
    _, at, hosts = parts.netloc.rpartition("@")
    # What follows the colon may be a password whose host was forgotten.
    if not all(_HOST.match(host) for host in hosts.split(",")):
        return MASK
    user = f"{MASK}@" if at else ""
    path = "/".join(MASK if _is_secret_part(part) else part for part in parts.path.split("/"))
    query = "?" + "&".join(f"{pair.partition('=')[0]}={MASK}" for pair in parts.query.split("&")) if parts.query else ""
    # A SQLite file has no host, but as many slashes.
    return f"{parts.scheme}://{user}{hosts.lower()}{path}{query}"


_HOST: Final = re.compile(r"^(\[[0-9A-Fa-f:.%]+\]|[\w.%-]*)(:[0-9]{0,5})?$")
_PART: Final = re.compile(r"^[A-Za-z0-9_-]{20,}$")


def _is_secret_part(part: str) -> bool:
    """Return True if a path segment looks like a token, as chat services' webhooks have: long, letters and digits mixed."""
    return bool(_PART.match(part)) and any(each.isdigit() for each in part) and any(each.isalpha() for each in part)


def _walk(
    value: Any,
    path: tuple[str | int, ...],
    given: bool,
    secrets_from: Mapping[str, str],
    meaning: str = "",
) -> Iterator[ConfigLine]:
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        for name, inner in value:
            told = fields[name].description or ""
            yield from _walk(inner, (*path, name), given and name in value.model_fields_set, secrets_from, told)
    elif isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _walk(inner, (*path, str(key)), given, secrets_from, meaning)
    elif isinstance(value, (list, tuple)) and any(isinstance(each, (BaseModel, Mapping)) for each in value):
        for place, inner in enumerate(value):
            yield from _walk(inner, (*path, place), given, secrets_from, meaning)
    else:
        yield _line(value, path, given, secrets_from, meaning)


def _line(
    value: Any, path: tuple[str | int, ...], given: bool, secrets_from: Mapping[str, str], meaning: str
) -> ConfigLine:
    name = next((each for each in reversed(path) if isinstance(each, str)), "")
    secret = next(iter(secrets_in(value, secrets_from)), None) if isinstance(value, str) else None
    shown = str(secret) if secret is not None else _hook(value) if _is_hook(path) else _as_text(value, name)
    return ConfigLine(
        path=written(path),
        section=str(path[0]),
        value=shown,
        is_default=not given,
        is_secret=secret is not None or MASK in shown,
        meaning=meaning,
    )


def _is_hook(path: tuple[str | int, ...]) -> bool:
    return path[0] == "webhooks" and path[-1] == "url"


def _hook(url: Any) -> str:
    """Return a webhook's address, reduced to its host: many services authorise by the path, whatever its form."""
    shown = address(str(url))
    place, slash, rest = shown.partition("://")[2].partition("/")
    return f"{shown.partition('://')[0]}://{place}{slash}{MASK if rest else ''}" if place else shown


def _as_text(value: Any, name: str) -> str:
    if isinstance(value, (set, frozenset)):
        return ", ".join(masked(_plain(each), name) for each in sorted(value, key=str)) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(arguments((_plain(each) for each in value), name)) or "none"
    if isinstance(value, Mapping):
        return "none"
    return masked(_plain(value), name) if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> str:
    if value is None or value == "":
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value)


def written(path: tuple[str | int, ...]) -> str:
    """Return a key's path as the reference writes it."""
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path).removeprefix(".")
