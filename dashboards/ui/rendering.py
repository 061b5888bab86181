"""Templates and the files beside them. Everything that a template prints is escaped; what it does not know is an error."""

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
"""A page's template stands beside its route and is named with its folder; `base.html` and its like stand here."""
STATIC: Final = _HERE / "static"
STATIC_PATH: Final = "/dashboard/static"
_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class Asset(msgspec.Struct, frozen=True):
    """A file that pages load. Its address changes with its content, so that it is kept for ever."""

    path: str
    kind: str
    body: bytes
    packed: bytes
    """The same as gzip, for browsers that take it. Pages are not packed: they hold secrets beside what was asked for."""


@cache
def assets() -> Mapping[str, Asset]:
    """Every file by the address that it is served at."""
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
    """Where the file of this name is served."""
    for path in assets():
        if path.split("/", 4)[4] == name:
            return path
    raise KeyError(name)


@cache
def environment() -> Environment:
    """Made once; templates are compiled at their first use."""
    made = Environment(
        loader=FileSystemLoader(_FOLDERS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(formats.FILTERS)
    made.globals["asset"] = asset
    return made


def render(template: str, context: Mapping[str, Any]) -> str:
    """The page, or the part of one, that this template makes of the context."""
    return environment().get_template(template).render(context)
