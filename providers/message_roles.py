"""A conversation in the roles that a target knows, and system messages at the place where it takes them. Pure.

Agents put instructions between turns, and OpenAI calls the one who gives them the developer. Hosted models take both as they
come. Chat templates of open models refuse them, or leave them out; as a reminder within the turn before they are read, and
the turn stays one.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from providers.quirks import Quirks

Message = dict[str, Any]

_SYSTEM: Final = "system"
_INSTRUCTING: Final = frozenset({_SYSTEM, "developer"})
_decode: Final = msgspec.json.Decoder(list[dict[str, Any]]).decode


class _WithRole(Protocol):
    @property
    def role(self) -> str: ...


def suited(raw: msgspec.Raw, messages: Sequence[_WithRole], quirks: Quirks) -> msgspec.Raw | None:
    """Return a chat's raw messages as a target with these quirks takes them; None where it takes them as they are. `messages`
    are the same, parsed.
    """
    if not messages:
        return None
    first, rest = messages[0].role, {each.role for each in messages[1:]}
    later = not rest.isdisjoint(_INSTRUCTING)
    if not later and first != "developer" and (rest or first != _SYSTEM):
        # Nearly all of them: one system message, or none, and turns.
        return None
    renames = bool(quirks.developer) and (first == "developer" or "developer" in rest)
    alone = quirks.needs_user and first in _INSTRUCTING and _INSTRUCTING.issuperset(rest)
    later = later and quirks.later_system == "reminder"
    if not (renames or alone or later):
        return None
    made = _decode(raw)
    if renames:
        made = [{**each, "role": quirks.developer} if each.get("role") == "developer" else each for each in made]
    if later:
        made = with_system_first(made) or made
    if alone:
        made = [{**each, "role": "user"} for each in made]
    return msgspec.Raw(msgspec.json.encode(made))


def with_system_first(messages: Sequence[Message]) -> list[Message] | None:
    """Return the messages with every system message in its place; None where they have it already."""
    roles = [each.get("role") for each in messages]
    systems = roles.count(_SYSTEM)
    if not systems or (systems == 1 and roles[0] == _SYSTEM):
        return None
    leading = next((index for index, role in enumerate(roles) if role != _SYSTEM), len(messages))
    found: list[Message] = []
    if leading:
        found.append(
            {"role": _SYSTEM, "content": "\n\n".join(_text(each.get("content")) for each in messages[:leading])}
        )
    for message in messages[leading:]:
        if message.get("role") != _SYSTEM:
            found.append(message)
            continue
        reminder = f"<system-reminder>\n{_text(message.get('content'))}\n</system-reminder>"
        if found and found[-1].get("role") in {"user", "tool"}:
            found[-1] = {**found[-1], "content": _with(found[-1].get("content"), reminder)}
        else:
            found.append({"role": "user", "content": reminder})
    return found


def _with(content: Any, reminder: str) -> Any:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": reminder}]
    return f"{content or ''}\n{reminder}"


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return str(content or "")
