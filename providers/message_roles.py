"""A conversation in the roles that a target knows, system messages at the place where it takes them, and turns as it takes them. Pure.

Agents put instructions between turns, and OpenAI calls the one who gives them the developer. Hosted models take both as they
come. Chat templates of open models refuse them, or leave them out; as a reminder within the turn before they are read, and
the turn stays one. Some refuse a turn with several calls, and some who speaks twice in a row.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

import msgspec

from providers.quirks import Quirks

Message = dict[str, Any]

_SYSTEM: Final = "system"
_INSTRUCTING: Final = frozenset({_SYSTEM, "developer"})
_SIDES: Final = frozenset({"user", "assistant"})
_CALLS: Final = b'"tool_calls"'
_SEVERAL: Final = 2
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
    joins = quirks.alternates and any(one.role == other.role for one, other in pairwise(messages))
    parts = quirks.one_call and _CALLS in bytes(raw)
    if not later and first != "developer" and (rest or first != _SYSTEM) and not (joins or parts):
        # Nearly all of them: one system message, or none, and turns.
        return None
    renames = bool(quirks.developer) and (first == "developer" or "developer" in rest)
    alone = quirks.needs_user and first in _INSTRUCTING and _INSTRUCTING.issuperset(rest)
    later = later and quirks.later_system == "reminder"
    if not (renames or alone or later or joins or parts):
        return None
    made = _decode(raw)
    if renames:
        made = [{**each, "role": quirks.developer} if each.get("role") == "developer" else each for each in made]
    if later:
        made = with_system_first(made) or made
    if alone:
        made = [{**each, "role": "user"} for each in made]
    if parts:
        made = list(_with_one_call_each(made))
    if quirks.alternates:
        # Reminders may stand beside the caller's own turn by now.
        made = _with_turns_joined(made)
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


def _with_one_call_each(messages: list[Message]) -> Iterator[Message]:
    """Yield the messages with each call in a turn of its own, its results behind it: as if they had been made one after another."""
    parted: list[tuple[Message, list[Message]]] = []
    for message in messages:
        if parted and message.get("role") == "tool":
            results = next((results for turn, results in parted if _asks_for(turn, message)), parted[-1][1])
            results.append(message)
            continue
        yield from _in_order(parted)
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or len(calls) < _SEVERAL:
            parted = []
            yield message
            continue
        parted = [({**message, "tool_calls": calls[:1]}, [])]
        parted += [({"role": message.get("role"), "content": None, "tool_calls": [call]}, []) for call in calls[1:]]
    yield from _in_order(parted)


def _asks_for(turn: Message, result: Message) -> bool:
    (call,) = turn["tool_calls"]
    return isinstance(call, dict) and call.get("id") == result.get("tool_call_id")


def _in_order(parted: list[tuple[Message, list[Message]]]) -> Iterator[Message]:
    for turn, results in parted:
        yield turn
        yield from results


def _with_turns_joined(messages: list[Message]) -> list[Message]:
    """Return the messages with neighbours of the user, or of the assistant, in one."""
    found: list[Message] = []
    for message in messages:
        before = found[-1] if found else None
        if before is None or before.get("role") != message.get("role") or before["role"] not in _SIDES:
            found.append(message)
            continue
        joined = {**before, **message, "content": _both(before.get("content"), message.get("content"))}
        if calls := [*(before.get("tool_calls") or ()), *(message.get("tool_calls") or ())]:
            joined["tool_calls"] = calls
        found[-1] = joined
    return found


def _both(first: Any, second: Any) -> Any:
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": str(content)}]


def _with(content: Any, reminder: str) -> Any:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": reminder}]
    return f"{content or ''}\n{reminder}"


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return str(content or "")
