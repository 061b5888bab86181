"""OpenAPI descriptions of routes beyond what FastAPI sees: msgspec bodies, query parameters and errors."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from api.web.parameters import Parameter

PREFIX: Final = "/v1/admin"
_REFS: Final = "#/components/schemas/{name}"
_PYDANTIC_REFS: Final = "#/components/schemas/{model}"
_MEDIA: Final = "application/json"
_kinds: dict[str, Any] = {}
"""Body types by their reference in the document."""


class ErrorDetail(msgspec.Struct, frozen=True):
    """The error, in words that say how to correct it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: ErrorDetail


def described(
    summary: str,
    *,
    takes: Any = None,
    may_be_absent: bool = False,
    gives: Mapping[int, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    query: Mapping[str, Parameter] | None = None,
    files: Iterable[str] = (),
    tag: str = "",
) -> dict[str, Any]:
    """Return the keyword arguments for a route decorator. `gives` is a type, several, or words, for each status.

    A body of `takes` that `may_be_absent` has nothing that is needed. `query` declares the parameters that the
    route reads itself, and `files` the media types that it returns beside JSON.
    """
    responses: dict[int | str, dict[str, Any]] = {status: _response(status, of) for status, of in (gives or {}).items()}
    for media in files:
        responses[200].setdefault("content", {})[media] = {"schema": {"type": "string"}}
    extra: dict[str, Any] = {}
    if takes is not None:
        content: dict[str, Any] = {"schema": _reference(takes)}
        if example is not None:
            content["example"] = dict(example)
        extra["requestBody"] = {"required": not may_be_absent, "content": {_MEDIA: content}}
    if query:
        extra["parameters"] = [
            {"name": name, "in": "query", "required": told.is_needed, "description": told.about, "schema": told.schema}
            for name, told in query.items()
        ]
    told = {"summary": summary, "openapi_extra": extra, "responses": responses, "status_code": min(gives or {200: ""})}
    return {**told, "tags": [tag]} if tag else told


def refusals() -> dict[int | str, dict[str, Any]]:
    """Return the error responses that every route may return."""
    shape = {"content": {_MEDIA: {"schema": _reference(ErrorBody)}}}
    return {
        "4XX": {"description": "Refused; the message says what to do.", **shape},
        "5XX": {"description": "The gateway, or its database, cannot answer now; the message says why.", **shape},
    }


def schemas() -> dict[str, Any]:
    """Return the schemas of all body types used by `described`."""
    ours = [kind for kind in _kinds.values() if not _is_pydantic(kind)]
    _, found = msgspec.json.schema_components(ours, ref_template=_REFS)
    for kind in _kinds.values():
        if _is_pydantic(kind):
            schema = kind.model_json_schema(ref_template=_PYDANTIC_REFS)
            found |= {**schema.pop("$defs", {}), kind.__name__: schema}
    return {name: _with_numbers(schema) for name, schema in sorted(found.items())}


def _response(status: int, of: Any) -> dict[str, Any]:
    if isinstance(of, str):
        return {"description": of}
    schema = {"anyOf": [_reference(kind) for kind in of]} if isinstance(of, tuple) else _reference(of)
    return {"description": HTTPStatus(status).phrase, "content": {_MEDIA: {"schema": schema}}}


def _reference(kind: Any) -> dict[str, Any]:
    """Return the reference to a type's schema, which it registers."""
    if _is_pydantic(kind):
        reference = {"$ref": _PYDANTIC_REFS.format(model=kind.__name__)}
    else:
        (reference,), _ = msgspec.json.schema_components([kind], ref_template=_REFS)
    _kinds[reference["$ref"]] = kind
    return reference


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _with_numbers(schema: Any) -> Any:
    """Return the schema with decimals as numbers: msgspec describes them as strings, but replies write exact JSON numbers."""
    if isinstance(schema, list):
        return [_with_numbers(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "decimal":
        return {**{name: value for name, value in schema.items() if name != "format"}, "type": "number"}
    return {name: _with_numbers(value) for name, value in schema.items()}
