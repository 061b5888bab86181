"""Configuration errors in the words of the person who wrote the file.

Pydantic finds the faults; here each becomes one sentence with the key's place, what is allowed and
what was probably meant. A value is repeated only when it is one word out of a known few, and never
when it could be a secret.
"""

import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.configuration.file import Document, KeyPath, Problem, Value
from providers.known_providers import nearest_provider
from settings.words import EXPECTED, bound, closest

Model = TypeVar("Model", bound=BaseModel)

_SECRET_NAME = re.compile(
    r"key|secret|token$|password|passwd|pepper|credential|authorization|cookie|dsn|_url$", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"(sk|pk|rk|wb|gsk|xai|hf|ghp|key)[-_]|bearer|AKIA|eyJ", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:+-]{0,39}\Z")
_MAX_LISTED = 40
_MAX_SECTIONS = 2


_WORDS = {
    "env:": "must refer to an environment variable, such as env:NAME; a secret never stands in a file",
    "^https?://": "must begin with http:// or https://",
}
"""Plain words for patterns, by a part of the pattern."""


def check(model: type[Model], document: Document) -> tuple[Model | None, list[Problem]]:
    """Validate the document as `model`. Return the model, None when it is invalid, and all problems."""
    problems = list(document.problems)
    try:
        valid = model.model_validate(document.values)
    except ValidationError as error:
        return None, problems + list(_problems(model, document, error))
    return (None if problems else valid), problems


def _problems(model: type[BaseModel], document: Document, error: ValidationError) -> Iterable[Problem]:
    found: dict[KeyPath, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        found.setdefault(_data_path(document.values, detail), []).append(detail)
    for path, details in found.items():
        if _is_shadow(path, details, found):
            continue
        yield document.problem(path, _sentence(model, document, path, details))


def _data_path(values: Value, detail: ErrorDetails) -> KeyPath:
    """Return the path in the file. Pydantic's location also names branches of unions, which no file has."""
    path: list[str | int] = []
    current: Value = values
    for part in detail["loc"]:
        inner = _step_into(current, part)
        if inner is not None:
            current = inner[0]
            path.append(part)
    if detail["type"] == "missing":
        path.append(str(detail["loc"][-1]))
    return tuple(path)


def _step_into(values: Value, part: str | int) -> tuple[Value] | None:
    if isinstance(values, dict) and isinstance(part, str) and part in values:
        return (values[part],)
    if isinstance(values, list) and isinstance(part, int) and part < len(values):
        return (values[part],)
    return None


def _is_shadow(path: KeyPath, details: list[ErrorDetails], found: Mapping[KeyPath, object]) -> bool:
    """Return True for an error of a union's other branch: it concerns the whole, while the branch that was meant has
    errors deeper inside.
    """
    deeper = any(len(other) > len(path) and other[: len(path)] == path for other in found)
    # A list whose entries are at fault is also "too short": pydantic counts the good ones.
    return deeper and all(detail["type"] in EXPECTED or detail["type"] == "too_short" for detail in details)


def _sentence(model: type[BaseModel], document: Document, path: KeyPath, details: list[ErrorDetails]) -> str:
    kinds = {detail["type"] for detail in details}
    if "extra_forbidden" in kinds:
        return _unknown_key(model, document.values, path)
    expected = list(dict.fromkeys(EXPECTED[detail["type"]] for detail in details if detail["type"] in EXPECTED))
    others = [detail for detail in details if detail["type"] not in EXPECTED]
    sentences = [_one(model, document.values, path, detail) for detail in others]
    if expected:
        sentences.insert(0, "must be " + " or ".join(expected) + (", not empty" if details[0]["input"] is None else ""))
    return "; or ".join(dict.fromkeys(sentences))


def _one(model: type[BaseModel], values: Value, path: KeyPath, detail: ErrorDetails) -> str:
    context: Mapping[str, Any] = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "is required" + _also_allowed(model, values, path)
        case "literal_error" | "enum":
            return _choice(path, detail["input"], _allowed_values(str(context.get("expected", ""))))
        case "union_tag_invalid":
            return _choice(path, None, _allowed_values(str(context.get("expected_tags", ""))))
        case "value_error" | "assertion_error":
            return _own_words(path, detail)
        case "string_pattern_mismatch":
            pattern = str(context["pattern"])
            return next((words for part, words in _WORDS.items() if part in pattern), f"must match {pattern}")
        case kind:
            return bound(kind, context)


def _own_words(path: KeyPath, detail: ErrorDetails) -> str:
    """Return a section's own error message, or a neutral one when it repeats what may be a secret."""
    message = str(detail.get("ctx", {}).get("error", "")) or "is not allowed"
    given = detail["input"]
    if isinstance(given, str) and given and given in message and not may_be_shown(path, given):
        return "is not a value that is allowed here"
    return message


def _choice(path: KeyPath, given: Any, allowed: list[str]) -> str:
    shown = f"`{given}` is not one of them; " if isinstance(given, str) and may_be_shown(path, given) else ""
    listed = f"must be one of {', '.join(allowed)}" if len(allowed) > 1 else f"must be {''.join(allowed)}"
    guess = closest(given, allowed) if isinstance(given, str) else None
    if guess is None and path[-1:] == ("kind",) and isinstance(given, str) and "litellm" in allowed:
        guess = nearest_provider(given)
    return f"{listed}; {shown}did you mean `{guess}`?" if guess else f"{listed}" + (f"; not `{given}`" if shown else "")


def _allowed_values(expected: str) -> list[str]:
    return re.findall(r"'([^']*)'", expected) or [expected]


def may_be_shown(path: KeyPath, given: str) -> bool:
    """Return True when a value may appear in a message: one plain word that neither is named nor looks like a secret."""
    named = any(isinstance(part, str) and _SECRET_NAME.search(part) for part in path[-1:])
    return bool(_WORD.match(given)) and not named and not _SECRET_VALUE.match(given)


def _unknown_key(model: type[BaseModel], values: Value, path: KeyPath) -> str:
    allowed = _keys_at(model, values, path[:-1])
    key = str(path[-1])
    elsewhere = _sections_of(model, key) if len(path) == 1 else []
    if 0 < len(elsewhere) <= _MAX_SECTIONS:
        return f"is not a section; did you mean {' or '.join(f'`{section}.{key}`' for section in elsewhere)}?"
    moved = [
        now
        for found in _models_at(model, values, path[:-1])
        for was, now in getattr(found, "moved_keys", {}).items()
        if was == key
    ]
    if moved:
        return f"is not a known key any more; write `{'.'.join((*map(str, path[:-1]), moved[0]))}`"
    foreign = {
        was: now
        for found in _models_at(model, values, path[:-1])
        for was, now in getattr(found, "foreign_keys", {}).items()
    }
    guess = foreign.get(key) or closest(key, allowed)
    hint = f"; did you mean `{guess}`?" if guess else "."
    return f"is not a known key{hint}" + (f" Allowed here: {', '.join(allowed[:_MAX_LISTED])}" if allowed else "")


def _also_allowed(model: type[BaseModel], values: Value, path: KeyPath) -> str:
    """Suggest the key that was probably written in place of a missing one; empty when there is none."""
    parent = _value_at(values, path[:-1])
    allowed = _keys_at(model, values, path[:-1])
    if isinstance(parent, dict) and any(key not in allowed for key in parent):
        guess = closest(str(path[-1]), [key for key in parent if key not in allowed])
        return f"; is it the one written `{guess}`?" if guess else ""
    return ""


def _value_at(values: Value, path: KeyPath) -> Value:
    current = values
    for part in path:
        inner = _step_into(current, part)
        if inner is None:
            return None
        current = inner[0]
    return current


def _sections_of(model: type[BaseModel], key: str) -> list[str]:
    """Return the sections that have a key of this name."""
    return [
        name
        for name, field in model.model_fields.items()
        if any(key in inner.model_fields for inner in models_in(field.annotation))
    ]


def _keys_at(model: type[BaseModel], values: Value, path: KeyPath) -> list[str]:
    """Return the names that a mapping at `path` may have."""
    written = _value_at(values, path)
    names: dict[str, None] = {}
    for found in _models_at(model, values, path):
        names |= dict.fromkeys(field_names(found))
        short: Mapping[str, frozenset[str]] = getattr(found, "short_keys", {})
        for sign, keys in short.items():
            if isinstance(written, dict) and sign in written:
                names |= dict.fromkeys(sorted(keys))
    return list(names)


def _models_at(model: type[BaseModel], values: Value, path: KeyPath) -> list[type[BaseModel]]:
    """Return the models that a mapping at `path` may follow."""
    candidates: list[Any] = [model]
    current = values
    for part in path:
        candidates = [inner for candidate in candidates for inner in _step(candidate, part)]
        current = _value_at(current, (part,))
    models = [found for candidate in candidates for found in models_in(candidate)]
    if isinstance(current, dict) and len(models) > 1:
        # Of several shapes, the one that shares the most keys with what was written was meant.
        most = max(len(current.keys() & field_names(found)) for found in models)
        models = [found for found in models if len(current.keys() & field_names(found)) == most]
    return models


def field_names(model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's keys as a file writes them, with their annotations."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _step(annotation: Any, part: str | int) -> list[Any]:
    """Return the annotations one step inside of `annotation`."""
    inside: list[Any] = []
    for branch in branches(annotation):
        if isinstance(branch, type) and typing.get_origin(branch) is None and issubclass(branch, BaseModel):
            inside += [inner for name, inner in field_names(branch).items() if name == part]
            continue
        arguments = typing.get_args(branch)
        if arguments:
            inside.append(arguments[1] if isinstance(part, str) and len(arguments) > 1 else arguments[0])
    return inside


def branches(annotation: Any) -> list[Any]:
    """Return an annotation's alternatives, without their metadata."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return branches(typing.get_args(annotation)[0])
    if origin in {typing.Union, types.UnionType}:
        return [inner for branch in typing.get_args(annotation) for inner in branches(branch)]
    return [annotation]


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models among an annotation's alternatives."""
    return [
        branch
        for branch in branches(annotation)
        if isinstance(branch, type) and typing.get_origin(branch) is None and issubclass(branch, BaseModel)
    ]
