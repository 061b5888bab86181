"""The generation options of a response's request, in chat's fields. Pure."""

from collections.abc import Mapping
from typing import Any

from proxy.parse.wires.reading import whole_number, wrong


def longest_answer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bound of the answer, where there is one. Raises BadRequest."""
    if fields.get("max_output_tokens") is None:
        return {}
    most = whole_number(fields["max_output_tokens"], "max_output_tokens")
    if most < 1:
        raise wrong("max_output_tokens", "at least 1")
    return {"max_tokens": most}
