"""The replies to failures of plain routes: as JSON for programs, as a page for people."""

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Router

from accounts.errors import AccountsError
from dashboards.web.error_pages import PREFIX, error_page, is_page
from dashboards.web.forms import FormError
from proxy.errors import BadRequest, ErrorReply, Refused, UsageUnavailable, error_reply
from proxy.http.request_id import new_request_id
from proxy.parse.wires.messages.errors import error_reply_of
from proxy.parse.wires.messages.wire import ANTHROPIC_VERSION, MESSAGES
from proxy.routes import WIRE_AT

_MESSAGES: Final = f"{MESSAGES.path}/"
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_SLASHES: Final = re.compile(r"/+")
_log = logging.getLogger("weighbridge.app")


def add_error_replies(app: FastAPI) -> None:
    """Register one reply for each kind of failure: OpenAI's error shape for programs, a page for people."""
    app.add_exception_handler(Refused, _error_reply)
    app.add_exception_handler(AccountsError, _error_reply)
    app.add_exception_handler(RequestValidationError, _invalid_reply)
    app.add_exception_handler(HTTPException, _http_reply)
    app.add_exception_handler(FormError, _form_reply)
    app.add_exception_handler(SQLAlchemyError, _database_reply)
    # Drivers let through what the network says of a connection that cannot be made.
    app.add_exception_handler(ConnectionError, _database_reply)
    app.add_exception_handler(Exception, _error_reply)


async def _error_reply(request: Request, error: Exception) -> Response:
    told = error_reply(error)
    headers = {name.decode(): value.decode() for name, value in told.headers}
    if is_page(request):
        return error_page(error, told.status, told.message, headers.get("retry-after"))
    return _for_programs(request, told, told.status, headers)


def _for_programs(request: Request, told: ErrorReply, status: int, headers: Mapping[str, str]) -> Response:
    """Return an error as JSON, in Anthropic's shape for Anthropic's clients."""
    if request.scope["path"].startswith(_MESSAGES) or ANTHROPIC_VERSION in request.headers:
        request_id = new_request_id()
        body = error_reply_of(msgspec.structs.replace(told, status=status), request_id).body
        return Response(body, status, {**headers, "request-id": request_id}, media_type="application/json")
    return Response(told.body, status, headers, media_type="application/json")


async def _form_reply(request: Request, error: Exception) -> Response:
    """Show at least what was wrong, on a page that does not show its form again."""
    assert isinstance(error, FormError)  # noqa: S101 - registered for exactly this
    return await _error_reply(request, BadRequest(f"`{error.field}` is not valid: {error.message}", param=error.field))


async def _database_reply(request: Request, error: Exception) -> Response:
    # The route, and not the address: a one-time link's token is a part of that.
    place = getattr(request.scope.get("route"), "path", "an address of no route")
    _log.error("the database did not answer for %s: %s", place, type(error).__name__)
    return await _error_reply(
        request, UsageUnavailable("The database does not answer; nothing is lost, try again shortly.")
    )


async def _invalid_reply(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for exactly this
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return await _error_reply(request, BadRequest(f"`{name}` is not valid: {first['msg']}.", param=name))


async def _http_reply(request: Request, error: Exception) -> Response:
    """Answer unknown paths and methods in the same shape as everything else."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for exactly this
    path: str = request.scope["path"]
    code, hint = "method_not_allowed", ""
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["allow"] = ", ".join(_methods_of(request))
    if error.status_code == HTTPStatus.NOT_FOUND:
        if path == "/" and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(PREFIX, status_code=HTTPStatus.SEE_OTHER)
        code, hint = "not_found", _hint(request.app.router, request.method, path)
    told = error_reply(BadRequest(f"{request.method} {path[:200]}: {error.detail}.{hint}", code=code))
    if is_page(request):
        page = error_page(error, error.status_code, "There is no such page; the address may be mistyped.")
        page.headers.update(headers)
        return page
    return _for_programs(request, told, error.status_code, headers)


def _methods_of(request: Request) -> list[str]:
    """Return all methods that the request's path has: each route knows its own alone."""
    scope = {"type": "http", "path": request.scope["path"], "headers": []}
    routes = request.app.router.routes
    return [
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]


def _hint(router: Router, method: str, path: str) -> str:
    """Return the address that was probably meant by an unknown one: `/v1` left out, written twice or behind another
    path, or a `/` too many.
    """
    if path == "/":
        return f" The API begins at /v1, the pages at {PREFIX}."
    plain = _SLASHES.sub("/", path).rstrip("/")
    meant = f"/v1/{plain.rpartition('/v1/')[2].removeprefix('/')}"
    scope = {"type": "http", "path": meant, "method": method, "headers": []}
    if meant == path or not (
        meant in WIRE_AT or any(route.matches(scope)[0] is not Match.NONE for route in router.routes)
    ):
        return ""
    return f" It is {meant}: the base URL of a client of OpenAI ends in /v1, that of Anthropic's has no path."
