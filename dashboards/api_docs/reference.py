"""The view model of the API pages: an OpenAPI document as groups of calls, with parameters, bodies, replies and
examples.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

_REF: Final = re.compile(r"#/components/schemas/(.+)")
_NO_ANCHOR: Final = re.compile(r"[^a-z0-9]+")
_METHODS: Final = ("get", "put", "post", "delete")
_TONES: Final = {"get": "quiet", "put": "info", "post": "good", "delete": "bad"}
_LIMITS: Final = (
    ("minimum", "from {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "to {}"),
    ("exclusiveMaximum", "below {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("maxItems", "at most {} items"),
)
_WORDS: Final = {
    "string": "text",
    "integer": "whole number",
    "boolean": "true or false",
    "date-time": "moment",
    "date": "day",
}


class Field(msgspec.Struct, frozen=True):
    """One field of a body or reply, or one parameter."""

    name: str
    kind: str
    is_required: bool
    note: str
    refers: str = ""
    """Anchor of the schema that its value has, or ''."""


class Answer(msgspec.Struct, frozen=True):
    """One reply of a call: a status and a schema."""

    status: str
    text: str
    kind: str
    refers: str


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One operation: a method on a path."""

    anchor: str
    method: str
    tone: str
    path: str
    summary: str
    text: str
    right: str
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]
    answers: tuple[Answer, ...]
    example: str
    """The call as a `curl` command."""


class Kind(msgspec.Struct, frozen=True):
    """A schema that replies and bodies are made of."""

    name: str
    anchor: str
    text: str
    fields: tuple[Field, ...]


class Group(msgspec.Struct, frozen=True):
    """Calls with the same tag, and the schemas that they are made of: a page of its own."""

    name: str
    anchor: str
    text: str
    calls: tuple[Call, ...]
    kinds: tuple[Kind, ...]


class Reference(msgspec.Struct, frozen=True):
    """Everything that the document tells."""

    text: str
    groups: tuple[Group, ...]

    def matching(self, words: str) -> tuple[tuple[Group, tuple[Call, ...]], ...]:
        """Return the calls that have all these words in their address, what is said of them or the names of their fields."""
        asked = words.lower().split()
        found = ((group, tuple(call for call in group.calls if _has(call, asked))) for group in self.groups)
        return tuple((group, calls) for group, calls in found if calls)


def reference(document: Mapping[str, Any], base_url: str) -> Reference:
    """Return an OpenAPI document as a page. `base_url` is the origin that examples call."""
    schemas = document.get("components", {}).get("schemas", {})
    groups: dict[str, list[Call]] = {}
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                call = _call(path, method, operations[method], schemas, base_url)
                groups.setdefault(operations[method].get("tags", ["other"])[-1], []).append(call)
    told = {each["name"]: each.get("description", "") for each in document.get("tags", ())}
    return Reference(
        document.get("info", {}).get("description", ""),
        tuple(
            Group(name, _anchor(name), told.get(name, ""), tuple(calls), tuple(_kinds(schemas, _referred(calls))))
            for name, calls in groups.items()
        ),
    )


def _referred(calls: Iterable[Call]) -> set[str]:
    """Return the anchors of the schemas that calls name."""
    named = (
        (*(field.refers for field in (*call.parameters, *call.body)), *(answer.refers for answer in call.answers))
        for call in calls
    )
    return {anchor for each in named for anchor in each if anchor}


def _has(call: Call, asked: Iterable[str]) -> bool:
    names = (field.name for field in (*call.parameters, *call.body))
    text = " ".join((call.method, call.path, call.summary, call.text, *names)).lower()
    return all(word in text for word in asked)


def _kinds(schemas: Mapping[str, Any], wanted: set[str]) -> Iterator[Kind]:
    """Yield the schemas that replies and bodies refer to, directly or through other schemas."""
    found: dict[str, Kind] = {}
    left = set(wanted)
    by_anchor = {_anchor("kind", name): name for name in schemas}
    while left:
        anchor = left.pop()
        name = by_anchor.get(anchor)
        if name is None or anchor in found:
            continue
        schema = schemas[name]
        found[anchor] = Kind(_title(name), anchor, schema.get("description", ""), _fields(schema, schemas))
        left |= {field.refers for field in found[anchor].fields if field.refers}
    return iter(sorted(found.values(), key=lambda each: each.name))


def _call(path: str, method: str, said: Mapping[str, Any], schemas: Mapping[str, Any], base_url: str) -> Call:
    body = said.get("requestBody", {}).get("content", {}).get("application/json", {})
    return Call(
        anchor=_anchor(method, path),
        method=method.upper(),
        tone=_TONES[method],
        path=path,
        summary=said.get("summary", ""),
        text=said.get("description", ""),
        right=said.get("x-right", ""),
        parameters=tuple(
            _field(
                each["name"],
                each.get("schema", {}),
                each.get("description", ""),
                is_required=each.get("required", False),
            )
            for each in said.get("parameters", ())
        ),
        body=_fields(_resolved(body.get("schema", {}), schemas), schemas),
        answers=tuple(
            answer for status, each in said.get("responses", {}).items() for answer in _answers(status, each)
        ),
        example=_example(path, method, body, base_url),
    )


def _example(path: str, method: str, body: Mapping[str, Any], base_url: str) -> str:
    how = "" if method == "get" else f" -X {method.upper()}"
    lines = [f'curl{how} "{base_url}{path}"', '  -H "Authorization: Bearer $WEIGHBRIDGE_ADMIN_KEY"']
    if body:
        sent = json.dumps(body.get("example", {}), ensure_ascii=False).replace("'", "'\\''")
        lines += ['  -H "Content-Type: application/json"', f"  -d '{sent}'"]
    return " \\\n".join(lines)


def _answers(status: str, said: Mapping[str, Any]) -> Iterator[Answer]:
    """Return one reply for each alternative of its schema."""
    schema = said.get("content", {}).get("application/json", {}).get("schema", {})
    for each in schema.get("anyOf", [schema]):
        kind, refers = _kind_of(each) if each else ("", "")
        yield Answer(status, said.get("description", ""), kind, refers)


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> tuple[Field, ...]:
    needed = set(schema.get("required", ()))
    properties = _resolved(schema, schemas).get("properties", {})
    return tuple(
        _field(name, each, _description_of(each), is_required=name in needed) for name, each in properties.items()
    )


def _field(name: str, schema: Mapping[str, Any], text: str, *, is_required: bool) -> Field:
    kind, refers = _kind_of(schema)
    limits = [words.format(f"{each[key]:,}") for each in _parts(schema) for key, words in _LIMITS if key in each]
    default = schema.get("default")
    if default not in (None, ""):
        limits.append(f"{json.dumps(default)} when left out")
    note = text.rstrip(".") + "." if text else ""
    told = ", ".join(limits)
    return Field(name, kind, is_required, f"{note} {told[:1].upper()}{told[1:]}.".strip() if told else note, refers)


def _kind_of(schema: Mapping[str, Any]) -> tuple[str, str]:
    """Return a schema's type in words, and the anchor of the schema that it names, or ''."""
    named = _REF.fullmatch(schema.get("$ref", ""))
    if named is not None:
        return _title(named[1]), _anchor("kind", named[1])
    if "enum" in schema:
        return " or ".join(json.dumps(each, ensure_ascii=False) for each in schema["enum"]), ""
    several = schema.get("anyOf") or schema.get("oneOf")
    if several:
        parts = [_kind_of(each) for each in several]
        return " or ".join(words for words, _ in parts), next((refers for _, refers in parts if refers), "")
    if schema.get("type") == "array":
        words, refers = _kind_of(schema.get("items", {}))
        return f"list of {words}", refers
    kind = str(schema.get("format") or schema.get("type", "anything"))
    return _WORDS.get(kind, kind), ""


def _description_of(schema: Mapping[str, Any]) -> str:
    """Return a schema's description; an optional field has it in one of its alternatives."""
    return next((str(each["description"]) for each in _parts(schema) if "description" in each), "")


def _parts(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [schema, *(schema.get("anyOf") or schema.get("oneOf") or ())]


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    named = _REF.fullmatch(schema.get("$ref", ""))
    found: Mapping[str, Any] = schemas.get(named[1], {}) if named is not None else schema
    return found


def _title(name: str) -> str:
    """Return a schema's name as a heading: `Listed_TeamOut_` as `Listed of TeamOut`."""
    outer, _, inner = name.replace("[", "_").replace("]", "_").strip("_").partition("_")
    return f"{outer} of {inner}" if inner else outer


def _anchor(*parts: str) -> str:
    return _NO_ANCHOR.sub("-", " ".join(parts).lower()).strip("-")
