"""Error pages for people: the failure, the remedy, and the request's id."""

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from dashboards.web.headers import SAFE
from dashboards.web.view import shown_to_anybody
from proxy.errors import SignInFirst

PREFIX: Final = "/dashboard"
_OURS: Final = 500
_SIGNED_OUT: Final = 401
_TITLES: Final = {
    400: "That cannot be done",
    401: "You are signed out",
    403: "Not allowed",
    404: "Not found",
    405: "Not found",
    408: "Too slow",
    409: "Not now",
    413: "Too large",
    429: "Too often",
    503: "Not available right now",
}


def is_page(request: Request) -> bool:
    """Return True if the request is for a page, so that errors are pages too."""
    path: str = request.scope["path"]
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def error_page(error: Exception, status: int, message: str, retry_after: str | None = None) -> Response:
    """Return the error page; for SignInFirst a redirect to the sign-in form."""
    if isinstance(error, SignInFirst):
        return RedirectResponse(error.where, status_code=303, headers={"cache-control": "no-store", **SAFE})
    title = _TITLES.get(status, "Something went wrong" if status >= _OURS else "That cannot be done")
    reply = shown_to_anybody(
        "error.html", title=title, status=status, message=message, code=status, is_signed_out=status == _SIGNED_OUT
    )
    if retry_after is not None:
        reply.headers["retry-after"] = retry_after
    return reply
