"""The OpenAPI document: all routes are in it, it is sound, and it tells what they do."""

import datetime as dt
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from fastapi.openapi.models import OpenAPI
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from api.openapi.document import Described, api_routes
from gateway.wiring.web_app import web_app
from tests.api.finance import DAY_S, Finance, running_finance

_PATH: Final = {"target": "only", "budget_id": "b", "scope": "team", "scope_id": "team_x", "team_id": "team_x"}
_SOUND: Final = {
    "start_time": str(DAY_S),
    "end_time": str(DAY_S + 86_400),
    "start_date": "2026-04-05",
    "end_date": "2026-04-06",
    "start": "2026-04-05",
    "end": "2026-04-06",
    "time_zone": "Europe/Berlin",
    "team_id": "team_x",
}
_READERS: Final = {
    "/v1/usage", "/v1/focus", "/v1/savings", "/v1/organization/costs", "/v1/organization/usage/completions",
    "/v1/organization/usage/embeddings", "/spend/logs", "/team/daily/activity", "/v1/fleet/prefixes", "/v1/admin/audit",
}  # fmt: skip
"""Routes that refuse a parameter which nobody knows."""
_NONE_OF_OURS: Final = "page"
"""Only what a page before gave is one."""


@pytest.fixture
async def finance(tmp_path: Path) -> AsyncIterator[Finance]:
    async with running_finance(tmp_path, accounts={"operator": "acme"}) as running:
        yield running


async def document(finance: Finance, path: str = "/v1/openapi.json", who: str = "member x") -> Any:
    answer = await finance.get(who, path)
    assert answer.status == 200
    return json.loads(answer.text)


def app_of(_finance: Finance) -> Described:
    return web_app()


def operations(found: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from [value["$ref"]] if isinstance(value.get("$ref"), str) else ()
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from references(each)


async def test_every_route_but_the_pages_is_in_it(finance: Finance) -> None:
    """And nothing else is."""
    routes = list(api_routes(app_of(finance).routes))
    expected = {
        (method, route.path_format)
        for route in routes
        for method in route.methods or ()
        if not route.path.startswith("/dashboard")
    }
    assert {(method, path) for method, path, _ in operations(await document(finance))} == expected
    assert len(expected) > 60


async def test_it_is_made_once_and_only_when_it_is_asked_for(finance: Finance) -> None:
    """A gateway that nobody asks does not have it."""
    app = app_of(finance)
    await finance.get("admin", "/v1/usage")
    assert app._whole is None
    found = await document(finance)
    assert app.openapi() is app.openapi()
    assert json.loads(json.dumps(app.openapi())) == found


async def test_it_is_sound(finance: Finance) -> None:
    """As OpenAPI 3.1, in its references and in its schemas; and each operation tells what it has to."""
    found = await document(finance)
    assert found["openapi"].startswith("3.1")
    OpenAPI.model_validate(found)
    schemas = found["components"]["schemas"]
    assert {each.removeprefix("#/components/schemas/") for each in references(found)} <= schemas.keys()
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    tags = {tag["name"] for tag in found["tags"]}
    schemes = found["components"]["securitySchemes"]
    names = [operation["operationId"] for _, _, operation in operations(found)]
    assert len(set(names)) == len(names)
    for method, path, operation in operations(found):
        assert operation["summary"], path
        assert operation["description"], path
        assert set(operation["tags"]) <= tags, path
        assert len(operation["tags"]) == 1, path
        assert {name for each in operation.get("security", ()) for name in each} <= schemes.keys()
        assert ("x-right" in operation) == ({"key": []} in operation.get("security", ())), path
        assert {"4XX", "5XX"} < set(operation["responses"]), path
        assert "422" not in operation["responses"], path
        assert ("requestBody" in operation) >= (method == "PUT" and not path.endswith("/drain")), path
        inside = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"]
        assert inside == [part[1:-1] for part in path.split("/") if part.startswith("{")], path
        for each in operation.get("parameters", ()):
            Draft202012Validator.check_schema(each["schema"])


async def test_bodies_refuse_what_they_do_not_know(finance: Finance) -> None:
    """A misspelt field is not taken for a wish that was granted."""
    found = await document(finance)
    for method, path, operation in operations(found):
        if method == "PUT" and "requestBody" in operation:
            reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            assert found["components"]["schemas"][reference.rpartition("/")[2]]["additionalProperties"] is False, path


async def test_the_admin_document_is_a_part_of_it(finance: Finance) -> None:
    """The same operations, with what they refer to and no more."""
    whole, part = await document(finance), await document(finance, "/v1/admin/openapi.json")
    assert part["paths"] == {path: each for path, each in whole["paths"].items() if path.startswith("/v1/admin/")}
    assert {each.removeprefix("#/components/schemas/") for each in references(part)} == part["components"][
        "schemas"
    ].keys()
    assert set(part["components"]["securitySchemes"]) == {"key"}
    OpenAPI.model_validate(part)


async def test_it_takes_a_key(finance: Finance) -> None:
    """Any that is valid."""
    for path in ("/v1/openapi.json", "/v1/admin/openapi.json"):
        assert (await finance.get(None, path)).status == 401
        assert (await finance.get("revoked", path)).status == 401
        assert (await finance.get("rival finance", path)).status == 200


async def test_every_operation_answers(finance: Finance) -> None:
    """What is refused is refused by the route, and never for want of one."""
    for method, path, operation in operations(await document(finance)):
        told = await finance.send("admin", method, _filled(path, operation))
        assert told.status != 405, path
        if told.status == 404:
            assert told.refusal[1] != "not_found" or told.refusal[2] is not None, path


async def test_a_method_that_is_not_there_is_told_with_those_that_are(finance: Finance) -> None:
    """All of them, however many routes share the path."""
    methods: dict[str, set[str]] = {}
    for method, path, operation in operations(await document(finance)):
        methods.setdefault(_filled(path, operation), set()).add(method)
    for path, known in methods.items():
        told = await finance.send("admin", "TRACE", path)
        assert told.status == 405, path
        assert known <= set(told.headers["allow"].split(", ")), path


async def test_replies_are_as_the_document_says(finance: Finance) -> None:
    """Of everything that can be read without a thing of its own, and of each kind of usage."""
    found = await document(finance)
    questions: list[tuple[str, dict[str, str]]] = [
        (path, {each["name"]: _SOUND[each["name"]] for each in operation.get("parameters", ()) if each["required"]})
        for method, path, operation in operations(found)
        if method == "GET" and "{" not in path
    ]
    groups = "team,key,model,provider,tier,tag,day,hour"
    start = {"start_time": str(DAY_S)}
    questions += [
        ("/v1/usage", {"start": _day(DAY_S), "end": _day(DAY_S + 2 * 86_400), "group_by": groups}),
        ("/v1/organization/costs", {**start, "group_by": "project_id,line_item,api_key_id"}),
        ("/v1/organization/usage/completions", {**start, "group_by": "project_id,api_key_id,model,batch,service_tier"}),
    ]
    checked = set()
    for path, query in questions:
        answer = await finance.get("admin", path, query)
        assert answer.status == 200, (path, answer.text)
        content = found["paths"][path]["get"]["responses"]["200"]["content"]
        media = answer.headers["content-type"].partition(";")[0]
        assert media in content, path
        if content[media].get("schema") and media == "application/json":
            schema = {**content[media]["schema"], "components": found["components"]}
            Draft202012Validator(schema).validate(json.loads(answer.text))
            checked.add(path)
    assert {
        "/v1/usage",
        "/v1/models",
        "/v1/prices",
        "/v1/limits",
        "/v1/organization/costs",
        "/v1/admin/teams",
    } <= checked


async def test_documented_parameters_are_taken_and_others_refused(finance: Finance) -> None:
    """Each by itself, beside those that are needed, with a value of its kind; a whole number's bounds are the route's."""
    found = await document(finance)
    assert {path for _, path, each in operations(found) if _asks(each)} >= _READERS - {"/v1/admin/openapi.json"}
    for path in sorted(_READERS):
        parameters = found["paths"][path]["get"]["parameters"]
        needed = {each["name"]: _SOUND[each["name"]] for each in parameters if each["required"]}
        unknown = await finance.get("admin", path, {**needed, "colour": "red"})
        assert (unknown.status, unknown.refusal[2]) == (400, "colour"), path
        for name in needed:
            without = {other: value for other, value in needed.items() if other != name}
            assert (await finance.get("admin", path, without)).status == 400, (path, name)
        for each in parameters:
            name = each["name"]
            for value in [_SOUND[name]] if name in _SOUND else _samples(each["schema"]):
                answer = await finance.get("admin", path, {**_beside(path, name), **needed, name: value})
                refused = name == _NONE_OF_OURS and each["schema"]["type"] == "string"
                assert answer.status == (400 if refused else 200), (path, name, value, answer.text)
            for value in _beyond(each["schema"]):
                answer = await finance.get("admin", path, {**_beside(path, name), **needed, name: value})
                assert (answer.status, answer.refusal[2]) == (400, name), (path, name, value)


def _asks(operation: dict[str, Any]) -> bool:
    return any(each["in"] == "query" for each in operation.get("parameters", ()))


def _beside(path: str, name: str) -> dict[str, str]:
    """What a parameter is only read together with."""
    if path == "/spend/logs" and name in {"start_date", "end_date", "summarize"}:
        return {"start_date": _SOUND["start_date"], "end_date": _SOUND["end_date"]}
    if path.startswith("/v1/organization/usage") and name == "limit":
        return {"bucket_width": "1m"}
    if path in {"/v1/savings", "/v1/usage"} and name in {"start", "end"}:
        return {"start": _SOUND["start"], "end": _SOUND["end"]}
    return {}


def _samples(schema: dict[str, Any]) -> list[str]:
    """What a parameter of this kind may be."""
    schema = schema.get("items", schema)
    if "enum" in schema:
        return list(schema["enum"])
    if "anyOf" in schema:
        return [value for each in schema["anyOf"] for value in _samples(each)]
    if schema["type"] == "integer":
        return [str(schema["minimum"]), *([str(schema["maximum"])] if schema.get("maximum", 10**9) < 10**9 else [])]
    if schema["type"] == "boolean":
        return ["true", "false"]
    return {"date": ["2026-04-05"], "date-time": ["2026-04-05T00:00:00Z"]}.get(schema.get("format", ""), ["key_x"])


def _beyond(schema: dict[str, Any]) -> list[str]:
    """What it may not."""
    if "enum" in schema or "enum" in schema.get("items", ()):
        return ["other"]
    if schema.get("type") == "integer":
        return [str(schema["minimum"] - 1), *([str(schema["maximum"] + 1)] if "maximum" in schema else []), "x"]
    if schema.get("type") == "boolean" or schema.get("format") == "date" or "anyOf" in schema:
        return ["perhaps"]
    return []


def _day(at_s: int) -> str:
    return str(dt.datetime.fromtimestamp(at_s, dt.UTC).date())


def _filled(path: str, operation: dict[str, Any]) -> str:
    for each in operation.get("parameters", ()):
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", quote(_PATH.get(each["name"], "x")))
    return path
