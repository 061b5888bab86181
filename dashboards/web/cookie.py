"""The session cookie, and the redirect after signing in."""

from typing import Final
from urllib.parse import urlsplit

from starlette.responses import Response

COOKIE: Final = "__Host-weighbridge"
_HOME: Final = "/dashboard"
_MAX_NEXT: Final = 1_000
# Redirecting back to these after signing in would be a loop.
_NOT_AFTERWARDS: Final = ("/dashboard/sign-in", "/dashboard/sign-out", "/dashboard/welcome")


def set_cookie(response: Response, value: str) -> None:
    """Set the session cookie, which lasts until the browser closes. Its name's prefix limits it to this host."""
    response.set_cookie(COOKIE, value, path="/", secure=True, httponly=True, samesite="lax")


def clear_cookie(response: Response) -> None:
    """Delete the session cookie."""
    response.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="lax")


def local_next(wanted: str | None) -> str:
    """Return `wanted` if it is the path of one of our pages, otherwise the start page, so that sign-in is no open
    redirect.
    """
    if not wanted or len(wanted) > _MAX_NEXT or not wanted.isascii() or not wanted.isprintable() or "\\" in wanted:
        return _HOME
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return _HOME
    path = parts.path
    is_ours = not parts.scheme and not parts.netloc and (path == _HOME or path.startswith(f"{_HOME}/"))
    # Browsers and proxies resolve `..` and `//` differently.
    steps = path.lower().replace("%2e", ".").split("/")[1:]
    if not is_ours or any(step in {"", ".", ".."} for step in steps[:-1]) or steps[-1] in {".", ".."}:
        return _HOME
    if any(path == each or path.startswith(f"{each}/") for each in _NOT_AFTERWARDS):
        return _HOME
    return f"{path}?{parts.query}" if parts.query else path
