"""Marks for a Claude's prompt cache: behind what stays and behind what was said last, or where the caller has set them."""

import copy
from typing import Any, Final

import pytest

from providers.cache_marks import MOST_MARKS, with_cache_marks

MARK: Final = {"type": "ephemeral"}
SYSTEM: Final[dict[str, Any]] = {"role": "system", "content": "You weigh."}
USER: Final[dict[str, Any]] = {"role": "user", "content": "Weigh it."}
CALL: Final[dict[str, Any]] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weigh", "arguments": "{}"}}],
}
RESULT: Final[dict[str, Any]] = {"role": "tool", "tool_call_id": "c1", "content": "7 t"}
PICTURE: Final[dict[str, Any]] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def marked(messages: list[dict[str, Any]]) -> list[int]:
    """The messages that have a mark."""
    return [index for index, each in enumerate(messages) if "cache_control" in str(each)]


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([SYSTEM, USER], [0, 1]),
        ([SYSTEM, SYSTEM, USER], [1, 2]),
        ([USER], [0]),
        ([SYSTEM, USER, CALL, RESULT], [0, 3]),
        ([USER, CALL], []),
        ([SYSTEM], [0]),
        ([{"role": "system", "content": ""}, USER], [1]),
        ([SYSTEM, {"role": "user", "content": [{"type": "text", "text": "See:"}, PICTURE]}], [0, 1]),
        ([SYSTEM, {"role": "user", "content": [{"type": "text", "text": ""}]}], [0]),
        ([SYSTEM, {"role": "user", "content": []}], [0]),
        ([], []),
    ],
)
def test_marks_stand_behind_the_system_prompt_and_the_last_message(
    messages: list[dict[str, Any]], where: list[int]
) -> None:
    """On what can have one, and nothing else changes: neither what is said nor what the caller holds."""
    before = copy.deepcopy(messages)
    found = with_cache_marks(messages, None)
    assert marked(found) == where
    assert str(found).count("cache_control") <= MOST_MARKS
    assert messages == before
    assert [_said(each) for each in found] == [_said(each) for each in messages]


def _said(message: dict[str, Any]) -> Any:
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return [{name: value for name, value in part.items() if name != "cache_control"} for part in parts]


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        ([SYSTEM, {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": MARK}]}, USER], None),
        ([SYSTEM, USER, CALL, {**RESULT, "cache_control": MARK}], None),
        ([SYSTEM, USER], [{"type": "function", "function": {"name": "weigh"}, "cache_control": MARK}]),
        ([SYSTEM, USER], [{"type": "function", "function": {"name": "weigh", "cache_control": MARK}}]),
    ],
)
def test_a_callers_own_marks_stay_alone(messages: list[dict[str, Any]], tools: Any) -> None:
    """Wherever there is one, none is added."""
    assert with_cache_marks(messages, tools) == messages
