"""Plain wording for a pydantic validation error of one value, and for a misspelt name."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import ErrorDetails

_DECIMAL = re.compile(r"Decimal\('([^']*)'\)")
_MIN_PARTIAL_CHARS = 4

EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "decimal_type": "a number",
    "decimal_parsing": "a number",
    "is_instance_of": "a value of another type",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_sub_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "iterable_type": "a list",
    "dict_type": "a mapping (`key: value`)",
    "mapping_type": "a mapping (`key: value`)",
    "model_type": "a mapping (`key: value`)",
    "model_attributes_type": "a mapping (`key: value`)",
    "dataclass_type": "a mapping (`key: value`)",
    "none_required": "left empty",
    "date_type": "a date such as 2026-06-01",
    "date_parsing": "a date such as 2026-06-01",
    "date_from_datetime_parsing": "a date such as 2026-06-01",
    "date_from_datetime_inexact": "a date without a time of day",
    "datetime_type": "a time such as 2026-06-01T00:00:00Z",
    "datetime_parsing": "a time such as 2026-06-01T00:00:00Z",
    "datetime_from_date_parsing": "a time such as 2026-06-01T00:00:00Z",
    "timezone_aware": "a time with a zone, such as 2026-06-01T00:00:00Z",
    "url_type": "an address such as https://host/v1",
    "url_parsing": "an address such as https://host/v1",
    "url_scheme": "an address that begins with http:// or https://",
    "url_too_long": "a shorter address",
    "path_type": "a path",
}
"""The expected value in words, by pydantic's error type."""

_BOUNDS = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "decimal_max_places": "must have at most {decimal_places} digits after the point",
    "decimal_max_digits": "has too many digits",
    "decimal_whole_digits": "has too many digits",
}


def in_words(detail: ErrorDetails) -> str:
    """Return one validation error of a single value, such as an environment variable, as the end of a sentence."""
    expected = EXPECTED.get(detail["type"])
    return f"must be {expected}" if expected else bound(detail["type"], detail.get("ctx", {}))


def bound(kind: str, context: Mapping[str, Any]) -> str:
    """Return the bound that a value violates, as the end of a sentence; `kind` and `context` are pydantic's type and ctx."""
    if context.get("min_length") == 1:
        return "must not be empty"
    # Pydantic tells a decimal bound as Python writes it.
    plain = {name: _DECIMAL.sub(r"\1", str(value)).removesuffix(".0") for name, value in context.items()}
    return _BOUNDS.get(kind, "is not a value that is allowed here").format_map(plain)


def closest(word: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed word most similar to a misspelt one, or None."""
    near = nearest(word, allowed, most=1)
    return near[0] if near else None


def nearest(word: str, allowed: Iterable[str], most: int = 3) -> list[str]:
    """Return the allowed words most similar to a misspelt one, the likest first."""
    by_shape = {_normalized(name): name for name in allowed}
    shape = _normalized(word)
    near = difflib.get_close_matches(shape, by_shape, n=most, cutoff=0.6)
    if not near and len(shape) >= _MIN_PARTIAL_CHARS:
        near = [name for name in by_shape if shape.removesuffix("s") in name][:most]
    return [by_shape[each] for each in near]


def _normalized(word: str) -> str:
    return word.lower().replace("-", "_").strip("_")
