"""GET /v1/admin/openapi.json: every route of the admin API, with what it takes and gives."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute

from dashboards.web.admin_access import Admin, Desk, admin

router = APIRouter(tags=["admin"])

PREFIX: Final = "/v1/admin"
_REFS: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_MEDIA: Final = "application/json"
_ABOUT: Final = (
    "Teams, members, people, keys, budgets, limits and policies. Every PUT says how a thing is to be, so sending it twice "
    "changes nothing; DELETE of what is gone already says 404. Whatever changes stands in the audit log."
)
_RIGHTS: Final = "x-right"
_described_kinds: dict[str, Any] = {}
"""What bodies are made of, by where it stands in the document."""


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong, in words that say what to do."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """Every refusal's body."""

    error: ErrorDetail


def described(
    summary: str,
    *,
    takes: Any = None,
    gives: Mapping[int, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    query: Mapping[str, str] | None = None,
    tag: str = "",
) -> dict[str, Any]:
    """A route's keyword arguments: what the document tells of it. `gives` has a type or words for each status.

    `query` has what each parameter after the `?` is for.
    """
    extra: dict[str, Any] = {"responses": {str(status): _response(status, of) for status, of in (gives or {}).items()}}
    extra["responses"]["4XX"] = _response(400, ErrorBody) | {"description": "Refused; the message says what to do."}
    if takes is not None:
        content: dict[str, Any] = {"schema": _reference(takes)}
        if example is not None:
            content["example"] = dict(example)
        extra["requestBody"] = {"required": True, "content": {_MEDIA: content}}
    if query:
        extra["parameters"] = [
            {"name": name, "in": "query", "required": False, "description": text, "schema": {"type": "string"}}
            for name, text in query.items()
        ]
    told = {"summary": summary, "openapi_extra": extra, "status_code": min(gives or {200: ""})}
    return {**told, "tags": [tag]} if tag else told


def document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """OpenAPI 3.1 of every route under /v1/admin."""
    mine = [route for route in api_routes(routes) if route.path.startswith(f"{PREFIX}/")]
    whole = get_openapi(
        title="Weighbridge admin API",
        version="1",
        summary="Everything that administrators change, for programs.",
        description=_ABOUT,
        routes=mine,
    )
    for route in mine:
        for method in route.methods or ():
            _complete(whole["paths"][_PARAMETER.sub(r"{\1}", route.path)][method.lower()], route)
    components = whole.setdefault("components", {})
    components["schemas"] = _schemas(len(_described_kinds))
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key: `Authorization: Bearer wb-…`."}
    }
    whole["security"] = [{"key": []}]
    return whole


def api_routes(routes: Sequence[BaseRoute]) -> Iterator[APIRoute]:
    """Every route, also of routers that were included."""
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
            continue
        # A router that was included stands there as one route; none of ours is included under a prefix.
        inner = getattr(route, "original_router", route)
        yield from api_routes(getattr(inner, "routes", None) or [])


def _complete(operation: dict[str, Any], route: APIRoute) -> None:
    """What FastAPI cannot know: parameters that the desk reads, and the right that is asked for."""
    operation["responses"].pop("422", None)
    known = {each["name"] for each in operation.get("parameters", ())}
    missing = [name for name in _PARAMETER.findall(route.path) if name not in known]
    if missing:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in missing
        ] + operation.get("parameters", [])
    right = next((each.call.right for each in route.dependant.dependencies if isinstance(each.call, Admin)), None)
    if right is not None:
        operation[_RIGHTS] = right


def _response(status: int, of: Any) -> dict[str, Any]:
    if isinstance(of, str):
        return {"description": of}
    return {"description": HTTPStatus(status).phrase, "content": {_MEDIA: {"schema": _reference(of)}}}


def _reference(kind: Any) -> dict[str, Any]:
    """A kind's place in the document, where its schema will stand."""
    (reference,), _ = msgspec.json.schema_components([kind], ref_template=_REFS)
    _described_kinds[reference["$ref"]] = kind
    return reference


@cache
def _schemas(_how_many: int) -> dict[str, Any]:
    """The schemas of all bodies; made anew when there are more of them."""
    _, components = msgspec.json.schema_components(list(_described_kinds.values()), ref_template=_REFS)
    return {name: _with_numbers(schema) for name, schema in components.items()}


def _with_numbers(schema: Any) -> Any:
    """Exact amounts are JSON numbers, not the texts that the library takes them for."""
    if isinstance(schema, list):
        return [_with_numbers(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "decimal":
        return {**{name: value for name, value in schema.items() if name != "format"}, "type": "number"}
    return {name: _with_numbers(value) for name, value in schema.items()}


# Below what it is described with.
@router.get(f"{PREFIX}/openapi.json", **described("This document", gives={200: "OpenAPI 3.1"}, tag="about"))
async def show_document(desk: Annotated[Desk, Depends(admin("signed-in"))]) -> Response:
    """The admin API as OpenAPI, for any key."""
    return desk.reply(document(desk.request.app.routes))
