"""The session's cookie, and where somebody goes after signing in."""

from typing import Final
from urllib.parse import urlsplit

from starlette.responses import Response

COOKIE: Final = "__Host-weighbridge"
_HOME: Final = "/dashboard"
_MAX_NEXT: Final = 1_000
# Back here after signing in or out would be no way out.
_NOT_AFTERWARDS: Final = ("/dashboard/sign-in", "/dashboard/sign-out", "/dashboard/welcome")


def set_cookie(response: Response, value: str) -> None:
    """Sign the browser in until it is closed or the session ends. Browsers keep such a name for this host alone."""
    response.set_cookie(COOKIE, value, path="/", secure=True, httponly=True, samesite="lax")


def clear_cookie(response: Response) -> None:
    """Sign the browser out."""
    response.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="lax")


def local_next(wanted: str | None) -> str:
    """`wanted` if it is one of our own pages, otherwise the start page: nobody is sent elsewhere after signing in."""
    if not wanted or len(wanted) > _MAX_NEXT or not wanted.isascii() or not wanted.isprintable() or "\\" in wanted:
        return _HOME
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return _HOME
    path = parts.path
    is_ours = not parts.scheme and not parts.netloc and (path == _HOME or path.startswith(f"{_HOME}/"))
    # A browser takes `..` and `//` its own way, and a proxy another.
    steps = path.lower().replace("%2e", ".").split("/")[1:]
    if not is_ours or any(step in {"", ".", ".."} for step in steps[:-1]) or steps[-1] in {".", ".."}:
        return _HOME
    if any(path == each or path.startswith(f"{each}/") for each in _NOT_AFTERWARDS):
        return _HOME
    return f"{path}?{parts.query}" if parts.query else path
