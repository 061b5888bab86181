"""Marks by which a Claude's prompt cache is written and read, for a caller that sets none. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

MOST_MARKS: Final = 4
"""The most that Anthropic takes in a request."""
_MARK: Final = "cache_control"
_EPHEMERAL: Final = {"type": "ephemeral"}
_MARKABLE: Final = ("user", "tool")

Message = dict[str, Any]


def with_cache_marks(messages: Sequence[Message], tools: Any, mark: Mapping[str, Any] = _EPHEMERAL) -> list[Message]:
    """Return the chat messages with a mark behind the system prompt, which tools come before, and one behind the last
    message.

    Where the caller has set any itself they stay as they are: it knows better, and there may be four at most.
    """
    found = list(messages)
    if any(_MARK in part for part in _parts(messages, tools)):
        return found
    for place in _places(messages):
        found[place] = _marked(found[place], mark)
    return found


def mark_body(fields: dict[str, Any]) -> None:
    """Set the same marks in a decoded body of Anthropic's messages."""
    messages = fields["messages"]
    if _MARK in fields or any(
        _MARK in part for part in (*_parts(messages, fields.get("tools")), *_blocks(fields.get("system")))
    ):
        return
    if isinstance(fields.get("system"), str):
        fields["system"] = [{"type": "text", "text": fields["system"]}]
    places = [_blocks(fields.get("system"))]
    last = next((each for each in reversed(messages) if each.get("role") != "system"), None)
    if last is not None and last.get("role") == "user":
        if isinstance(last.get("content"), str):
            last["content"] = [{"type": "text", "text": last["content"]}]
        places.append(_blocks(last.get("content")))
    for blocks in places:
        if blocks and (blocks[-1].get("type") != "text" or blocks[-1].get("text")):
            blocks[-1][_MARK] = dict(_EPHEMERAL)


def _blocks(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) and all(isinstance(each, dict) for each in content) else []


def _places(messages: Sequence[Message]) -> Iterator[int]:
    """Choose two of the four places where marks go."""
    system = next((index for index, each in enumerate(messages) if each.get("role") != "system"), len(messages)) - 1
    if system >= 0 and _has_text(messages[system]):
        yield system
    last = len(messages) - 1
    if last > system and messages[last].get("role") in _MARKABLE and _has_text(messages[last]):
        yield last


def _has_text(message: Message) -> bool:
    """Return whether its content ends in something that can have a mark: an empty text cannot."""
    content = message.get("content")
    if isinstance(content, list):
        last = content[-1] if content else None
        return isinstance(last, dict) and (last.get("type") != "text" or bool(last.get("text")))
    return isinstance(content, str) and bool(content)


def _marked(message: Message, mark: Mapping[str, Any]) -> Message:
    if message.get("role") == "tool":
        return {**message, _MARK: mark}
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": [*parts[:-1], {**parts[-1], _MARK: mark}]}


def _parts(messages: Sequence[Message], tools: Any) -> Iterator[Mapping[str, Any]]:
    """Yield everything that may have a mark."""
    for message in messages:
        yield message
        for beside in (message.get("content"), message.get("tool_calls")):
            yield from (each for each in beside if isinstance(each, dict)) if isinstance(beside, list) else ()
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            yield tool
            function = tool.get("function")
            if isinstance(function, dict):
                yield function
