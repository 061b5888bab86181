"""The application's OpenAPI document: FastAPI's own, completed with path parameters, required rights and msgspec
schemas.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from fastapi import FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from api.web.admin_access import Admin
from api.web.gateway import KeyWith, caller_of
from api.web.openapi import PREFIX, refusals, schemas

_ABOUT: Final = (
    "The gateway's control plane. What models are asked through, `POST /v1/chat/completions`, `/v1/responses`, "
    "`/v1/messages`, `/v1/completions`, `/v1/embeddings`, `/v1/rerank`, `/v1/moderations`, `/v1/images/…` and "
    "`/v1/audio/…`, takes and gives what OpenAI's and Anthropic's APIs do under the same addresses; GET /v1/models lists the "
    "names. Under /v1/admin every "
    "PUT says how a thing is to be, so sending it twice changes nothing; DELETE of what is gone already says 404. Whatever "
    "changes stands in the audit log. Money is an exact decimal number of US dollars; days are the organisation's. A parameter that is a "
    "list may be given several times, with commas, or as `name[]`."
)
_ABOUT_ADMIN: Final = (
    "Teams, members, people, keys, budgets, limits and policies. Every PUT says how a thing is to be, so sending it twice "
    "changes nothing; DELETE of what is gone already says 404. Whatever changes stands in the audit log."
)
_TAGS: Final = {
    "models": "What a key may name as `model`.",
    "responses": "Responses that were kept for who asked.",
    "usage": "What was used and what it cost.",
    "savings": "What was saved, against whom.",
    "organization": "Usage and costs in the shapes of OpenAI's organization API. A project is a team.",
    "litellm": "LiteLLM's shapes: spend, and where they are switched on its admin routes.",
    "policy": "What a minimum quality would save.",
    "prices": "What models cost, now and next.",
    "budgets": "What may be spent, and how much of it is.",
    "limits": "What may be used in a minute and at once, and what is left of it.",
    "guard": "What must not leave in requests: the rules that an organisation and its teams add.",
    "fleet": "Our own engines: how they stand, and where they say where they are.",
    "operations": "Incidents, and how everything stands.",
    "batch": "Files of requests that are answered in the background, in OpenAI's shapes.",
    "feedback": "What callers say of answers.",
    "metrics": "What Prometheus reads. Liveness and readiness, `GET /healthz` and `/readyz`, are answered by the workers.",
    "audit": "Who changed what.",
    "erasure": "A person, or a team's content, taken out.",
    "keys": "A team's API keys.",
    "members": "Who belongs to a team.",
    "people": "Who may sign in, and what they are to the organisation.",
    "teams": "Teams and what each chose.",
    "about": "This document.",
}
_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_REFERENCE: Final = "#/components/schemas/"
_RIGHT: Final = "x-right"


class Described(FastAPI):
    """The FastAPI application. Its document is built on first use and kept."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            description=_ABOUT,
            version="1",
            summary="Everything but the models themselves, for programs.",
            openapi_tags=[{"name": name, "description": about} for name, about in _TAGS.items()],
            responses=refusals(),
            generate_unique_id_function=_operation_id,
            **options,
        )
        self._whole: dict[str, Any] | None = None
        self._admin: dict[str, Any] | None = None

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI 3.1 document of every route except pages."""
        if self._whole is None:
            whole = super().openapi()
            for route in api_routes(self.routes):
                if route.include_in_schema:
                    for method in route.methods or ():
                        _complete(whole["paths"][route.path_format][method.lower()], route)
            whole["components"]["schemas"] = schemas()
            self._whole = whole
        return self._whole

    def admin_openapi(self) -> dict[str, Any]:
        """Return the part of the document with the admin API's routes."""
        if self._admin is None:
            info = {"title": "Weighbridge admin API", "description": _ABOUT_ADMIN}
            self._admin = _part(self.openapi(), f"{PREFIX}/", info)
        return self._admin


async def document_of(request: Request) -> dict[str, Any]:
    """Return the application's document, built in a thread: the first build is slow and must not block requests."""
    return await asyncio.to_thread(_app(request).openapi)


async def admin_document_of(request: Request) -> dict[str, Any]:
    """Return the admin API's part of the document, built in a thread."""
    return await asyncio.to_thread(_app(request).admin_openapi)


def api_routes(routes: Sequence[BaseRoute]) -> Iterator[APIRoute]:
    """Return every route, including those of nested routers."""
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
            continue
        # A router that was included stands there as one route; none of ours is included under a prefix.
        inner = getattr(route, "original_router", route)
        yield from api_routes(getattr(inner, "routes", None) or [])


def _app(request: Request) -> Described:
    return cast("Described", request.app)


def _operation_id(route: APIRoute) -> str:
    """Return the route function's name, with `admin_` before it in the admin API, whose functions share names with other
    routes.
    """
    return f"admin_{route.name}" if route.path.startswith(f"{PREFIX}/") else route.name


def _complete(operation: dict[str, Any], route: APIRoute) -> None:
    """Add the parts that FastAPI cannot see: path parameters that only a dependency reads, and the required right."""
    known = {each["name"] for each in operation.get("parameters", ())}
    missing = [name for name in _PARAMETER.findall(route.path) if name not in known]
    if missing:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in missing
        ] + operation.get("parameters", [])
    right = _right(route.dependant)
    if right is not None:
        operation[_RIGHT] = right


def _right(dependant: Dependant) -> str | None:
    asked = [each.call for each in _all(dependant)]
    named = next((call.right for call in asked if isinstance(call, Admin | KeyWith)), None)
    return named or ("signed-in" if caller_of in asked else None)


def _all(dependant: Dependant) -> Iterator[Dependant]:
    for each in dependant.dependencies:
        yield each
        yield from _all(each)


def _part(whole: Mapping[str, Any], prefix: str, info: Mapping[str, str]) -> dict[str, Any]:
    """Return the document reduced to the paths under a prefix, and to the schemas and tags that they use."""
    paths = {path: each for path, each in whole["paths"].items() if path.startswith(prefix)}
    used = {tag for each in paths.values() for operation in each.values() for tag in operation["tags"]}
    found: dict[str, Any] = {}
    ahead = set(_references(paths))
    while ahead:
        name = ahead.pop()
        found[name] = whole["components"]["schemas"][name]
        ahead |= set(_references(found[name])) - found.keys()
    return {
        **whole,
        "info": {"version": whole["info"]["version"], **info},
        "paths": paths,
        "tags": [tag for tag in whole["tags"] if tag["name"] in used],
        "components": {
            "schemas": dict(sorted(found.items())),
            "securitySchemes": {"key": whole["components"]["securitySchemes"]["key"]},
        },
    }


def _references(value: Any) -> Iterator[str]:
    """Return the names of the schemas that a value refers to, at any depth."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].removeprefix(_REFERENCE)
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _references(each)
