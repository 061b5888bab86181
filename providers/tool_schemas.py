"""Schemas of tools as a host takes them. Pure.

Agents and MCP servers write whatever JSON Schema says, each host takes a part of it, and one schema that it does not take fails the whole
request. So what would be refused is said otherwise: unions at the root become the fields of all their members, references what they
point to, bounds words in the description. What a model may call stays what it was; a schema that fits is not touched.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from settings.decoding import DECODE_ERRORS

_MOST_DEPTH: Final = 48
_MOST_NODES: Final = 20_000
"""The schemas within one, references followed, beyond which a part is told as "any object"."""
_MOST_CACHED_BYTES: Final = 131_072
_MOST_SCHEMA_BYTES: Final = 32_768
"""The longest list of tools, and the longest single schema, that is kept in mind with what was made of it."""
_UNIONS: Final = ("anyOf", "oneOf", "allOf")
_NAMED: Final = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_ONE: Final = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_LISTS: Final = (*_UNIONS, "prefixItems")
_MAY_BE_NULL: Final = frozenset({"const", "default", "enum", "example", "examples"})
_UNTOLD: Final = frozenset(
    {"$id", "$schema", "$comment", "$defs", "$ref", "$anchor", "definitions", "additionalProperties", "examples", "title", "deprecated",
     "readOnly", "writeOnly", "enumDescriptions", "markdownDescription", *_UNIONS}
)  # fmt: skip
"""What says nothing of the values that a tool takes, or stands elsewhere in what is written."""
_MOST_TOLD: Final = 300
_TYPE_OF: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}

Schema = dict[str, Any]


class ToolSchemas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a host takes: a table of `providers/data/quirks.toml`, whose head explains the fields."""

    keywords: frozenset[str] = frozenset()
    formats: tuple[str, ...] = ()
    plain_root: bool = False
    typed_branches: bool = False
    typed: bool = False
    has_items: bool = False
    one_type: bool = False
    text_enums: bool = False
    inline: bool = False
    known_required: bool = False
    answers: bool = False


def fitting_tools(raw: bytes, rules: ToolSchemas) -> bytes | None:
    """Return chat's `tools` with schemas that fit, as JSON; None where they fit already, or cannot be read."""
    if len(raw) > _MOST_CACHED_BYTES:
        return _fitting_tools(raw, rules)
    return _fitting_tools_again(raw, rules)


def _fitting_tools(raw: bytes, rules: ToolSchemas) -> bytes | None:
    try:
        tools = msgspec.json.decode(raw, type=list[Any])
    except DECODE_ERRORS:
        # What is passed on raw is not looked at: the target will say what is wrong.
        return None
    found = [_fitting_tool(tool, rules) for tool in tools]
    return None if found == tools else msgspec.json.encode(found)


# An agent sends the same tools with each turn.
_fitting_tools_again: Final = lru_cache(32)(_fitting_tools)


def _fitting_tool(tool: Any, rules: ToolSchemas) -> Any:
    """Return one of chat's tools with a schema that fits. A strict one is the caller's own promise that it does."""
    function = tool.get("function") if isinstance(tool, dict) else None
    schema = function.get("parameters") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(schema, dict) or function.get("strict"):
        return tool
    return {**tool, "function": {**function, "parameters": _fitted(schema, rules)}}


def fitting_answer(raw: bytes, rules: ToolSchemas) -> bytes | None:
    """Return chat's `response_format` with a schema that fits, as JSON; None where nothing changes, or it cannot be read."""
    try:
        asked = msgspec.json.decode(raw)
    except DECODE_ERRORS:
        return None
    inner = asked.get("json_schema") if isinstance(asked, dict) else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or not isinstance(schema, dict):
        return None
    found = _Fitting(schema, rules).inner(schema, 0)
    return None if found == schema else msgspec.json.encode({**asked, "json_schema": {**inner, "schema": found}})


def fitting_schema(schema: Schema, rules: ToolSchemas) -> Schema:
    """Return the parameters of a tool as the host takes them, the schema itself where it fits."""
    raw = msgspec.json.encode(schema)
    if len(raw) > _MOST_SCHEMA_BYTES:
        return _fitted(schema, rules)
    fitting = _fitting_schema_again(raw, rules)
    # Whoever writes the request may change what it is given, so it is nobody else's.
    return schema if fitting is None else msgspec.json.decode(fitting, type=Schema)


@lru_cache(256)
def _fitting_schema_again(raw: bytes, rules: ToolSchemas) -> bytes | None:
    schema = msgspec.json.decode(raw, type=Schema)
    found = _fitted(schema, rules)
    return None if found == schema else msgspec.json.encode(found)


def _fitted(schema: Schema, rules: ToolSchemas) -> Schema:
    fitting = _Fitting(schema, rules)
    found: Schema = fitting.inner(fitting.root() if rules.plain_root else schema, 0)
    return found


class _Fitting:
    """One schema, within which references are followed."""

    def __init__(self, whole: Schema, rules: ToolSchemas) -> None:
        self._whole = whole
        self._rules = rules
        self._nodes_left = _MOST_NODES
        self._following: list[str] = []

    def root(self) -> Schema:
        """Return an object without a union around it: a host that refuses these takes the fields of all members."""
        schema = self._followed(self._whole)
        found = {name: value for name, value in schema.items() if name not in {*_UNIONS, "not", "enum", "const"}}
        if not isinstance(found.get("type"), str):
            found["type"] = "object"
        if found["type"] != "object":
            return found
        found["properties"] = dict(_mapping(schema.get("properties")))
        required = _names(schema.get("required"))
        ways: list[tuple[str, ...]] = []
        for union in _UNIONS:
            needs = [self._add_member(found, each) for each in _list(schema.get(union)) if isinstance(each, dict)]
            if union == "allOf":
                required += [name for each in needs for name in each]
            elif needs:
                required += [name for name in needs[0] if all(name in each for each in needs)]
                ways += needs
        if required:
            found["required"] = list(dict.fromkeys(required))
        if any(ways):
            told = "; or ".join(", ".join(way) or "none of them" for way in dict.fromkeys(ways))
            _tell(found, f"Takes together: {told}.")
        return found

    def _add_member(self, found: Schema, member: Schema) -> tuple[str, ...]:
        """Add the fields and definitions of a member of a union at the root; return what it requires."""
        member = self._followed(member)
        _add_fields(found["properties"], _mapping(member.get("properties")))
        for name in ("$defs", "definitions"):
            if member.get(name):
                found[name] = {**_mapping(member[name]), **_mapping(found.get(name))}
        return tuple(_names(member.get("required")))

    def inner(self, node: Any, depth: int) -> Any:
        """Return a schema, and all within it, as the host takes it."""
        if not isinstance(node, dict):
            return {} if isinstance(node, bool) and self._rules.keywords else node
        self._nodes_left -= 1
        if depth > _MOST_DEPTH or self._nodes_left < 0:
            return {"type": "object"} if self._rules.inline else node
        if self._rules.inline and "$ref" in node:
            return self._inlined(node, depth)
        found = {name: value for name, value in node.items() if value is not None or name in _MAY_BE_NULL}
        if self._rules.keywords:
            self._merge_all(found)
            _say_otherwise(found, self._rules)
        if self._rules.typed_branches:
            _type_branches(found)
        for name, value in found.items():
            found[name] = self._within(name, value, depth + 1)
        if self._rules.one_type:
            _say_one_type(found)
        return self._ended(found)

    def _merge_all(self, found: Schema) -> None:
        """Put the members of `allOf` in the schema itself."""
        if "allOf" not in found or "allOf" in self._rules.keywords:
            return
        for each in _list(found.pop("allOf")):
            for name, value in (self._followed(each) if isinstance(each, dict) else {}).items():
                if name == "properties":
                    found[name] = {**_mapping(value), **_mapping(found.get(name))}
                elif name == "required":
                    found[name] = list(dict.fromkeys([*_names(found.get(name)), *_names(value)]))
                else:
                    found.setdefault(name, value)

    def _within(self, name: str, value: Any, depth: int) -> Any:
        if name in _NAMED and isinstance(value, dict):
            return {key: self._typed(self.inner(each, depth)) for key, each in value.items()}
        if name in _LISTS and isinstance(value, list):
            return [self.inner(each, depth) for each in value]
        return self.inner(value, depth) if name in _ONE and isinstance(value, dict) else value

    def _ended(self, found: Schema) -> Schema:
        rules = self._rules
        if rules.has_items and found.get("type") == "array" and "items" not in found and "prefixItems" not in found:
            found["items"] = {"type": "string"}
        if rules.text_enums and "enum" in found:
            _say_texts(found)
        if rules.known_required and "required" in found:
            known = [name for name in _names(found["required"]) if name in _mapping(found.get("properties"))]
            found["required"] = known
            if not known:
                del found["required"]
        if rules.keywords:
            _leave_out(found, rules)
        return found

    def _typed(self, found: Any) -> Any:
        if not self._rules.typed or not isinstance(found, dict) or found.keys() & {"type", "$ref", *_UNIONS}:
            return found
        values = _list(found.get("enum")) or [found["const"] if "const" in found else found.get("default")]
        return {"type": _TYPE_OF.get(type(values[0]), "string"), **found}

    def _followed(self, node: Schema) -> Schema:
        """Return what a schema points to, with what stands beside the reference."""
        seen: set[str] = set()
        while isinstance(reference := node.get("$ref"), str) and reference not in seen:
            seen.add(reference)
            target = self._target(reference)
            if target is None:
                break
            node = {**target, **{name: value for name, value in node.items() if name != "$ref"}}
            if target.get("$ref"):
                node["$ref"] = target["$ref"]
        return node

    def _inlined(self, node: Schema, depth: int) -> Any:
        reference = node["$ref"]
        target = self._target(reference) if isinstance(reference, str) and reference not in self._following else None
        beside = {name: value for name, value in node.items() if name != "$ref"}
        if target is None:
            # It points to itself, or nowhere that is known here.
            return self.inner({"type": "object", **beside}, depth + 1)
        self._following.append(reference)
        try:
            return self.inner({**target, **beside}, depth + 1)
        finally:
            self._following.pop()

    def _target(self, reference: str) -> Schema | None:
        found: Any = self._whole
        if not reference.startswith("#"):
            return None
        for part in filter(None, reference[1:].split("/")):
            name = part.replace("~1", "/").replace("~0", "~").replace("%24", "$")
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None


def _mapping(given: Any) -> Mapping[str, Any]:
    return given if isinstance(given, dict) else {}


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _names(given: Any) -> list[str]:
    return [each for each in _list(given) if isinstance(each, str)]


def _tell(found: Schema, told: str) -> None:
    """Add words to a description."""
    said = found.get("description")
    found["description"] = f"{said} {told}" if isinstance(said, str) and said else told


def _add_fields(fields: Schema, more: Mapping[str, Any]) -> None:
    """Add a member's fields; one that another member has, too, may be as either has it."""
    for name, schema in more.items():
        if name not in fields or not fields[name]:
            fields[name] = schema
        elif schema and fields[name] != schema:
            before = (
                fields[name].get("anyOf") if isinstance(fields[name], dict) and set(fields[name]) == {"anyOf"} else None
            )
            members = [*before] if isinstance(before, list) else [fields[name]]
            if schema not in members:
                fields[name] = {"anyOf": [*members, schema]}


def _type_branches(found: Schema) -> None:
    """Let each member of a union say its type, rather than the union."""
    for union in ("anyOf", "oneOf"):
        members = found.get(union)
        if isinstance(members, list) and "type" in found:
            said = found["type"]
            found[union] = [
                {"type": said, **each}
                if isinstance(each, dict) and not each.keys() & {"type", "$ref", *_UNIONS}
                else each
                for each in members
            ]
            del found["type"]


def _say_otherwise(found: Schema, rules: ToolSchemas) -> None:
    """Put what the host has another word for in that word."""
    if "const" in found and "const" not in rules.keywords:
        found.setdefault("enum", [found.pop("const")])
    if "oneOf" in found and "oneOf" not in rules.keywords:
        found["anyOf"] = [*_list(found.get("anyOf")), *_list(found.pop("oneOf"))]
    whole = found.get("type") == "integer"
    for beyond, bound, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        if beyond in found and beyond not in rules.keywords:
            value = found.pop(beyond)
            if isinstance(value, bool):
                # As draft 4 says it: the bound beside it is meant.
                continue
            found.setdefault(bound, value + step if whole and isinstance(value, int) else value)
    tuple_of = found.get("prefixItems", found.get("items"))
    if isinstance(tuple_of, list) and "prefixItems" not in rules.keywords:
        found.pop("prefixItems", None)
        distinct: list[Any] = []
        for each in tuple_of:
            if isinstance(each, dict) and each not in distinct:
                distinct.append(each)
        found["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _say_one_type(found: Schema) -> None:
    """Say one type and, apart, whether there may be nothing."""
    types = found.get("type")
    if isinstance(types, list):
        named = _without_null(found, types, "null")
        found.pop("type")
        if len(named) == 1:
            found["type"] = named[0]
        elif named:
            found.setdefault("anyOf", [{"type": each} for each in named])
    members = found.get("anyOf")
    if isinstance(members, list):
        named = _without_null(found, members, {"type": "null"})
        if len(named) == 1 and isinstance(named[0], dict):
            found.pop("anyOf")
            for name, value in named[0].items():
                found.setdefault(name, value)
        elif named:
            found["anyOf"] = named
    if "anyOf" in found:
        # Beside a union its host takes no type.
        found.pop("type", None)


def _without_null(found: Schema, each: list[Any], null: Any) -> list[Any]:
    """Return the members that are something, and note where there may be nothing."""
    named = [
        member for member in each if member != null and not (isinstance(member, dict) and member.get("type") == "null")
    ]
    if len(named) != len(each):
        found["nullable"] = True
    return named


def _say_texts(found: Schema) -> None:
    """Let a list of values be one of texts, or words in the description."""
    values = _list(found["enum"])
    named = [each for each in values if isinstance(each, str) and each]
    if found.get("type", "string") == "string" and all(isinstance(each, str | int | float | None) for each in values):
        named = [
            each if isinstance(each, str) else msgspec.json.encode(each).decode()
            for each in values
            if each not in ("", None)
        ]
        found["enum"] = list(dict.fromkeys(named))
        found["type"] = "string"
        if named:
            return
    else:
        _tell(found, f"(one of: {_written(values)})")
    del found["enum"]


def _leave_out(found: Schema, rules: ToolSchemas) -> None:
    """Leave out what the host refuses, which is told in words where it bounds what the tool takes."""
    refused = [name for name in found if name not in rules.keywords]
    told = {name: found[name] for name in refused if name not in _UNTOLD and not name.startswith("x-")}
    if "format" in found and rules.formats and found["format"] not in rules.formats:
        told["format"] = found["format"]
        refused.append("format")
    for name in refused:
        del found[name]
    if told:
        _tell(found, f"({', '.join(_said(told))})")


def _said(told: Mapping[str, Any]) -> Iterator[str]:
    for name, value in told.items():
        yield f"{name}: {_written(value)}"


def _written(value: Any) -> str:
    written = msgspec.json.encode(value).decode()
    return written if len(written) <= _MOST_TOLD else f"{written[:_MOST_TOLD]}…"
