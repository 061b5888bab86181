"""Generator of the lists of keys in docs/configuration.md: `python -m gateway.configuration.reference` writes them there.

A test holds the page to them, so no key goes undocumented.
"""

import enum
import typing
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.configuration.environment import Environment, variables_of
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.problems import branches, models_in
from settings.types import is_reloadable

_NAMES: dict[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    Decimal: "dollars",
    type(None): "nothing",
}
_LISTS = (list, tuple, set, frozenset)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration key as the reference documents it."""

    path: str
    type: str
    default: str
    meaning: str
    reloadable: bool
    """True for a key that SIGHUP changes at once; any other keeps its value until a restart."""


def keys(model: type[BaseModel] = GatewayConfig, prefix: str = "", *, reloadable: bool = False) -> Iterator[Key]:
    """Yield every key, depth first: `server.port`, `providers.models[].deployments[].kind`."""
    for name, field in model.model_fields.items():
        path, at_once = prefix + name, reloadable or is_reloadable(field)
        inner = list(_models(field.annotation))
        if not inner:
            yield Key(
                path=path,
                type=_unit(field) or _type(field.annotation),
                default=_default(field),
                meaning=field.description or "",
                reloadable=at_once,
            )
        for found, suffix in inner:
            yield from keys(found, f"{path}{suffix}.", reloadable=at_once)


def _models(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """Yield the models inside an annotation, each with the suffix of its path.

    What may stand alone or in a list is told once, as it stands alone.
    """
    alone: set[type[BaseModel]] = set()
    for branch in branches(annotation):
        for found in models_in(branch):
            alone.add(found)
            yield found, ""
        if typing.get_origin(branch) in _LISTS:
            inner = models_in(typing.get_args(branch)[0])
            yield from ((found, "[]") for found in inner if found not in alone)
        if typing.get_origin(branch) is dict:
            # The names are the file's own.
            yield from ((found, ".<name>") for found in models_in(typing.get_args(branch)[1]))


def _unit(field: FieldInfo) -> str:
    """Return the unit of a field's numbers where it declares one; else empty."""
    extra = field.json_schema_extra
    return str(extra.get("unit", "")) if isinstance(extra, dict) else ""


def _type(annotation: Any) -> str:
    names = [_one_type(branch) for branch in branches(annotation) if branch is not type(None)]
    return " or ".join(dict.fromkeys(names))


def _one_type(branch: Any) -> str:
    origin, arguments = typing.get_origin(branch), typing.get_args(branch)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in _LISTS:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"map to {_type(arguments[1])}"
    if isinstance(branch, type) and issubclass(branch, enum.Enum):
        return ", ".join(f"`{member.value}`" for member in branch)
    return _NAMES.get(branch, str(getattr(branch, "__name__", branch)).lower())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default if field.default is not PydanticUndefined else field.get_default(call_default_factory=True)
    if default is None or default in ((), "", {}, frozenset()):
        return "-"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, set | frozenset | tuple):
        return f"`[{', '.join(sorted(map(str, default)))}]`"
    return f"`{default}`"


def tables() -> str:
    """Render the page's lists: one for each section and each group of keys in it, and one for the environment."""
    parts = []
    for name, field in GatewayConfig.model_fields.items():
        section, suffix = next(iter(_models(field.annotation)))
        parts.append(f"### {name}\n\n{field.description or ''}")
        groups: dict[str, list[str]] = {}
        for path, rows in _groups(section, f"{name}{suffix}", reloadable=is_reloadable(field)):
            # Groups with the same keys, such as the limits of teams and of keys, share a table.
            groups.setdefault("\n".join(rows), []).append(f"`{path}`")
        earlier: list[tuple[str, list[str]]] = []
        for table, paths in groups.items():
            # A section's own keys stand under its heading.
            heading = [] if paths == [f"`{name}`"] else [f"#### {', '.join(paths)}", ""]
            rows = table.split("\n")
            like, known, others = max(
                ((path, [row for row in rows if row in others], others) for path, others in earlier),
                key=lambda found: len(found[1]),
                default=("", [], []),
            )
            if _words(known) - len(known) >= _WORTH_A_REFERENCE:
                rows = [row for row in rows if row not in known]
                own, there = _keys(rows), _keys(others)
                missing = [key for key in there if key not in own and key not in _keys(known)]
                named = missing if len(missing) < len(known) else _keys(known)
                which = (", without " if named is missing else ": ") + ", ".join(named) if named else ""
                heading += [f"As in {like}{which}.", ""]
            parts.append("\n".join([*heading, *rows]).rstrip())
            earlier.append((paths[0], table.split("\n")))
    variables = [
        f"- `{variables_of(name)[0]}`{'' if _default(field) == '-' else f' ({_default(field)})'}: {field.description}"
        for name, field in Environment.model_fields.items()
    ]
    parts.append("\n".join(["### The environment", "", *variables]))
    return "\n\n".join(parts) + "\n"


def _groups(model: type[BaseModel], path: str, *, reloadable: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the path and the rows of each group of keys, outer groups first."""
    waiting = [(model, path, reloadable)]
    while waiting:
        model, path, reloadable = waiting.pop(0)
        rows = []
        for name, field in model.model_fields.items():
            at_once = reloadable or is_reloadable(field)
            inner = list(_models(field.annotation))
            if not inner:
                value = _value(field)
                rows.append(f"- `{name}`{'' if at_once else '†'}{f' ({value})' if value else ''}: {field.description}")
            waiting.extend((found, f"{path}.{name}{suffix}", at_once) for found, suffix in inner)
        if rows:
            yield path, rows


def _value(field: FieldInfo) -> str:
    """Return the default where it tells the type too; otherwise the type (of text none), and whether the key is required."""
    default = _default(field)
    kind = _unit(field) or _type(field.annotation)
    if kind == "text":
        return "" if default == "-" else default.strip()
    if default == "-":
        return kind
    if default == "required":
        return f"{kind}; required"
    return default if kind in _PLAIN else f"{kind}; {default}"


_PLAIN: frozenset[str] = frozenset({"text", "integer", "number", "boolean", "path"})
_WORTH_A_REFERENCE = 15
"""Words that a reference to another group of the section saves, from which on it is made."""


def _keys(rows: list[str]) -> list[str]:
    return [row.split(" ", 2)[1].rstrip(":") for row in rows]


def _words(rows: list[str]) -> int:
    return sum(len(row.split()) for row in rows)


def written(page: str) -> str:
    """Return the page with the lists as they are now, below their mark."""
    head, mark, _ = page.partition(_MARK)
    return f"{head}{mark}{tables()}"


_MARK = "<!-- Written by `python -m gateway.configuration.reference`. -->\n\n"
_PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


if __name__ == "__main__":
    _PAGE.write_text(written(_PAGE.read_text()))
