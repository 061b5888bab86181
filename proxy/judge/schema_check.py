"""JSON schema validation of model answers within a bounded number of steps, and without following outside references.

A schema is somebody else's program: nested alternatives can ask for 2^40 comparisons, a pattern can keep a backtracking
engine busy for ever, a reference can name an address. So every keyword counts a step, patterns are taken as met,
references resolve within the schema alone, and a verdict that is not reached in time is not given.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Final

import msgspec

MAX_STEPS: Final = 2_000
"""The default step budget of one check; a step is one keyword looked at, five to ten microseconds."""
_SLOWEST_STEP_S: Final = 20e-6
"""CPU seconds allowed per step on average. Ends checks of schemas that found a keyword dearer than it is counted for.
"""
_SOUNDNESS: Final = 5
"""The step budget for checking the schema itself, as a multiple of the budget for the value."""
_REFERENCE_STEPS: Final = 4
"""Steps that a reference counts as, by its measured cost."""
_MESSAGE_CHARS_A_STEP: Final = 100
"""Characters of an error message per step: the library writes the refused value into every error."""
_MAX_SOUND_SCHEMAS: Final = 64
_ENTRIES_A_STEP: Final = 16
"""Names or values per step where one keyword compares many without visiting a keyword for each."""
_DESCENTS_A_STEP: Final = 2
"""Subschemas entered per step: an empty subschema has no keyword that would count itself."""
_MAX_DEPTH: Final = 100
"""The deepest nesting of keywords, each about four Python frames. At the end of Python's stack the library's maps
panic.
"""

# They look at patterns, or walk the schema in ways that count no steps.
_UNBOUNDED: Final = ("patternProperties", "unevaluatedItems", "unevaluatedProperties")


class NotJudged(Exception):
    """Raised when a verdict is not possible within the bounds: the schema is broken, unsupported or too expensive."""


# Each enters a subschema for every entry of the value, or of the schema.
_DESCENDING_VALUE: Final = ("additionalProperties", "contains", "items", "propertyNames", "properties")
_DESCENDING_SCHEMA: Final = ("allOf", "anyOf", "dependentSchemas", "oneOf", "prefixItems")
_COMPARING: Final = ("const", "dependentRequired", "enum")
# They give a part of a schema a name, and a reference by name reads the whole schema to find it, each time anew.
_NAMES: Final = (b'"$anchor"', b'"$dynamicAnchor"', b'"$id"')

_NOTHING: Final[Mapping[str, Any]] = {"not": {}}
"""A replacement for the schema `false`, for which the library writes an error that no keyword counts."""

Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


class _Meter:
    """The remaining step, depth and time budget of one check."""

    __slots__ = ("depth", "steps", "until_s")

    def __init__(self, steps: int) -> None:
        self.steps = steps
        # The thread's own time, so that a busy machine changes no verdict.
        self.until_s = time.thread_time() + steps * _SLOWEST_STEP_S
        self.depth = 0

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0 or self.depth > _MAX_DEPTH or time.thread_time() > self.until_s:
            raise NotJudged


_meter: ContextVar[_Meter] = ContextVar("weighbridge_schema_meter")


def prepare(*, max_steps: int = MAX_STEPS) -> None:
    """Import the library ahead of the first request, which takes a tenth of a second."""
    # Nobody waits for this verdict, and a pause for garbage in this thread is no reason not to start.
    with contextlib.suppress(NotJudged):
        follows(None, {"type": "null"}, max_steps=max_steps)


def follows(value: Any, schema: Any, *, max_steps: int = MAX_STEPS) -> bool:
    """Return True when `value` follows `schema`. Raises NotJudged for a schema that is broken or exceeds `max_steps`."""
    if not isinstance(schema, Mapping):
        raise NotJudged
    try:
        written = _encoded(schema)
        validator = _bounded(refused=(*_UNBOUNDED, "$dynamicRef"), inner_references=True)
        if _within(max_steps, validator, schema, value):
            return True
        # A broken schema may refuse anything, so it is looked at before it is believed, and only then: it takes longer.
        sound = _is_sound(written, _SOUNDNESS * max_steps)
    except NotJudged:
        raise
    except Exception as error:
        # Unknown types, references to nowhere, endless recursion: whatever a broken schema makes the library do.
        raise NotJudged from error
    if not sound:
        raise NotJudged
    return False


def _encoded(schema: Mapping[str, Any]) -> bytes:
    written = msgspec.json.encode(schema)
    # The whole schema may have an identity; no reference needs it.
    if sum(map(written.count, _NAMES)) > ("$id" in schema):
        raise NotJudged
    return written


@lru_cache(maxsize=_MAX_SOUND_SCHEMAS)
def _is_sound(schema: bytes, max_steps: int) -> bool:
    validator = _bounded(refused=(), inner_references=False)
    return _within(max_steps, validator, validator.META_SCHEMA, msgspec.json.decode(schema))


def _within(steps: int, validator: Any, schema: Any, value: Any) -> bool:
    # Without a retriever a reference resolves within the schema, or to the drafts that the library ships, or not at all.
    checked = validator(schema, registry=_drafts())
    token = _meter.set(_Meter(steps))
    try:
        return bool(checked.is_valid(value))
    finally:
        _meter.reset(token)


@cache
def _drafts() -> Any:
    return import_module("jsonschema_specifications").REGISTRY


@cache
def _bounded(*, refused: tuple[str, ...], inner_references: bool) -> Any:
    """Build the Draft 2020-12 validator with every keyword counted. Cached; importing the library takes 80 ms."""
    library = import_module("jsonschema.validators")
    draft = library.Draft202012Validator
    keywords: dict[str, Keyword] = dict(draft.VALIDATORS)
    keywords["pattern"] = _always_met
    keywords["uniqueItems"] = _unique_items
    keywords["additionalProperties"] = _without_patterns(keywords["additionalProperties"])
    keywords |= dict.fromkeys(refused, _not_judged)
    if inner_references:
        keywords["$ref"] = _inner_reference(keywords["$ref"])
    counted = library.extend(draft, {name: _counted(name, keyword) for name, keyword in keywords.items()})
    counted.evolve = _evolved
    counted.descend = _descending(counted.descend)
    return counted


def _descending(descend: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def descended(validator: Any, instance: Any, schema: Any, *where: Any, **named: Any) -> Iterator[Any]:
        return descend(validator, instance, _NOTHING if schema is False else schema, *where, **named)

    return descended


def _evolved(validator: Any, **changes: Any) -> Any:
    """Replace the library's `evolve`, which would return to the plain, uncounted draft at every nested `$schema`."""
    present = {
        "schema": validator.schema,
        "format_checker": validator.format_checker,
        "registry": validator._registry,  # noqa: SLF001 - nothing public tells it
        "_resolver": validator._resolver,  # noqa: SLF001
    }
    changed = {**present, **changes}
    if changed["schema"] is False:
        changed["schema"] = _NOTHING
    return type(validator)(**changed)


def _counted(name: str, keyword: Keyword) -> Keyword:
    steps = _REFERENCE_STEPS if name in {"$ref", "$dynamicRef"} else 1

    def counted(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
        meter = _meter.get()
        meter.depth += 1
        try:
            meter.spend(steps + _size_steps(name, wanted, instance, meter.steps))
            for error in keyword(validator, wanted, instance, schema) or ():
                meter.spend(len(error.message) // _MESSAGE_CHARS_A_STEP)
                yield error
        finally:
            meter.depth -= 1

    return counted


def _size_steps(name: str, wanted: Any, instance: Any, most: int) -> int:
    """Return the steps that a keyword costs beyond its first, estimated from sizes before it runs."""
    if name in _COMPARING:
        return _entries(wanted, most * _ENTRIES_A_STEP) // _ENTRIES_A_STEP
    steps = _width(wanted) // (_DESCENTS_A_STEP if name in _DESCENDING_SCHEMA else _ENTRIES_A_STEP)
    if name in _DESCENDING_VALUE:
        return steps + _width(instance) // _DESCENTS_A_STEP
    return steps + (_width(instance) // _ENTRIES_A_STEP if name == "uniqueItems" else 0)


def _width(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _entries(value: Any, most: int) -> int:
    """Count the entries nested anywhere in a value, stopping soon after `most`."""
    found, rest = 0, [value]
    while rest and found <= most:
        each = rest.pop()
        found += _width(each)
        if found <= most and isinstance(each, list | dict):
            rest += each if isinstance(each, list) else each.values()
    return found


def _inner_reference(keyword: Keyword) -> Keyword:
    """Wrap `$ref` to accept only JSON pointers into the schema: an anchor would be searched for in all of it."""

    def guarded(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        if not isinstance(wanted, str) or not (wanted == "#" or wanted.startswith("#/")):
            raise NotJudged
        _meter.get().spend(wanted.count("/") // _REFERENCE_STEPS)
        return keyword(validator, wanted, instance, schema)

    return guarded


def _always_met(_validator: Any, _wanted: Any, _instance: Any, _schema: Any) -> None:
    return None


def _not_judged(_validator: Any, _wanted: Any, _instance: Any, _schema: Any) -> None:
    raise NotJudged


def _without_patterns(keyword: Keyword) -> Keyword:
    """Wrap `additionalProperties`, which reads `patternProperties` itself, to refuse schemas that have both."""

    def guarded(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        if "patternProperties" in schema:
            raise NotJudged
        return keyword(validator, wanted, instance, schema)

    return guarded


def _unique_items(_validator: Any, wanted: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    """Replace the library's quadratic `uniqueItems` with one that hashes; unlike JSON Schema, 1 and 1.0 differ here."""
    if wanted and isinstance(instance, list):
        written = {msgspec.json.encode(item, order="deterministic") for item in instance}
        if len(written) < len(instance):
            yield import_module("jsonschema.exceptions").ValidationError("the items are not unique")
