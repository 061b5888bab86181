"""JSON schemas as Anthropic takes them for an answer. Pure.

Its grammar knows no bounds of numbers, texts and lists: such are told to the model in words, as Anthropic's own clients do it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_BOUNDS: Final = (
    "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains", "prefixItems", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "minProperties", "maxProperties",
    "patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "unevaluatedProperties", "if", "then",
    "else", "not",
)  # fmt: skip
_NAMED: Final = ("properties", "$defs", "definitions")
_LISTS: Final = ("anyOf", "allOf")


def answer_schema(schema: Any) -> Any:
    """Return the schema without what would be refused, which stands in its description instead."""
    if not isinstance(schema, dict):
        return schema
    found = {name: _inner(name, value) for name, value in schema.items() if name not in _BOUNDS and name != "oneOf"}
    if isinstance(schema.get("oneOf"), list):
        found["anyOf"] = [*found.get("anyOf", ()), *map(answer_schema, schema["oneOf"])]
    if found.get("type") == "object":
        found["additionalProperties"] = False
    if told := _told(schema):
        found["description"] = f"{schema['description']} {told}" if schema.get("description") else told
    return found


def _inner(name: str, value: Any) -> Any:
    if name in _NAMED and isinstance(value, dict):
        return {key: answer_schema(each) for key, each in value.items()}
    if name in _LISTS and isinstance(value, list):
        return [answer_schema(each) for each in value]
    return answer_schema(value) if name == "items" else value


def _told(schema: Mapping[str, Any]) -> str:
    bounds = {name: schema[name] for name in _BOUNDS if schema.get(name) not in (None, False)}
    said = ", ".join(f"{name}: {msgspec.json.encode(value).decode()}" for name, value in bounds.items())
    return f"({said})" if said else ""
