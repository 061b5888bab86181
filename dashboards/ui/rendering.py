"""Jinja templates and static files. Output is escaped by default, and undefined names are errors."""

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dashboards.ui import formats

_HERE: Final = Path(__file__).parent
_FOLDERS: Final = (_HERE, _HERE.parent)
"""Template folders: a page's template stands beside its route and is named with its folder; `base.html` and other
shared ones stand here.
"""
STATIC: Final = _HERE / "static"
STATIC_PATH: Final = "/dashboard/static"
_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class Asset(msgspec.Struct, frozen=True):
    """A static file. Its address contains a digest of its content, so it is cached for ever."""

    path: str
    kind: str
    body: bytes
    packed: bytes
    """The file compressed with gzip. Pages are never compressed: they show secrets beside input, which sizes could
    leak.
    """


@cache
def assets() -> Mapping[str, Asset]:
    """Return static files by address."""
    found = {}
    for place in sorted(STATIC.rglob("*")):
        if place.suffix in _KINDS and place.is_file():
            body = place.read_bytes()
            digest = hashlib.sha256(body).hexdigest()[:12]
            path = f"{STATIC_PATH}/{digest}/{place.relative_to(STATIC).as_posix()}"
            found[path] = Asset(path, _KINDS[place.suffix], body, gzip.compress(body, mtime=0))
    return found


@cache
def asset(name: str) -> str:
    """Return the address of the static file of this name. Raises KeyError."""
    for path in assets():
        if path.split("/", 4)[4] == name:
            return path
    raise KeyError(name)


@cache
def environment() -> Environment:
    """Return the Jinja environment, created once; templates are compiled on first use."""
    made = Environment(
        loader=FileSystemLoader(_FOLDERS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(formats.FILTERS)
    # Pages have the configured one.
    made.globals["currency"] = None
    made.globals["asset"] = asset
    made.globals["offers"] = None
    return made


def render(template: str, context: Mapping[str, Any]) -> str:
    """Return a template, of a page or a part of one, rendered with a context."""
    return environment().get_template(template).render(context)
