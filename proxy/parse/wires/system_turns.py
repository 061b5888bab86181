"""System messages at the place that engines' chat templates take them: one, at the beginning. Pure.

Agents put instructions between turns, which hosted models take as they come. Templates of open models refuse them
there, or leave them out; as a reminder within the turn before they are read, and the turn stays one.
"""

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]


def with_system_first(messages: Sequence[Message]) -> list[Message] | None:
    """Return the messages with every system message in its place; None where they have it already."""
    roles = [each["role"] for each in messages]
    systems = roles.count("system")
    if not systems or (systems == 1 and roles[0] == "system"):
        return None
    leading = next((index for index, each in enumerate(messages) if each["role"] != "system"), len(messages))
    found: list[Message] = []
    if leading:
        found.append({"role": "system", "content": "\n\n".join(_text(each["content"]) for each in messages[:leading])})
    for message in messages[leading:]:
        if message["role"] != "system":
            found.append(message)
            continue
        reminder = f"<system-reminder>\n{_text(message['content'])}\n</system-reminder>"
        if found and found[-1]["role"] in {"user", "tool"}:
            found[-1] = {**found[-1], "content": _with(found[-1]["content"], reminder)}
        else:
            found.append({"role": "user", "content": reminder})
    return found


def _with(content: Any, reminder: str) -> Any:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": reminder}]
    return f"{content}\n{reminder}"


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return str(content or "")
