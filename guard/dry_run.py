"""What rules find in a text, and what would be done, without anything being sent or kept. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from guard.ruleset import Action, Ruleset, action_of
from guard.walker import Role, Walk

_SHOWN_ENDS: Final = 2
"""Characters at each end of a value that are shown."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was found. Its value is shown by its ends alone."""

    kind: str
    action: Action | None
    """What would be done; None for nothing."""
    role: Role
    path: str
    """Where in the body its text stands; empty for the name of a field."""
    line: int
    column: int
    """Where in its text it begins, from 1 on."""
    value: str


class DryRun(msgspec.Struct, frozen=True):
    """What was found in a body, in the order of its texts, and what was not looked at."""

    hits: tuple[Hit, ...]
    unseen: Mapping[str, int]


def dry_run(rules: Ruleset, wire: str, body: bytes) -> DryRun:
    """Return what the rules find in a wire's body. Raises TooMuch, and msgspec's error for what is no JSON object."""
    walk = Walk(wire, body).all()
    hits: list[Hit] = []
    for text in walk.texts:
        for each in rules.find(text.text):
            act = rules.act(each.kind, text.role)
            before = text.text[: each.start]
            hits.append(
                Hit(
                    kind=each.kind,
                    action=None if act is None else action_of(act.action, text, whole=act.whole),
                    role=text.role,
                    path="" if text.what == "key" else ".".join(map(str, text.path)),
                    line=before.count("\n") + 1,
                    column=len(before) - before.rfind("\n"),
                    value=ends(text.text[each.start : each.end]),
                )
            )
    return DryRun(tuple(hits), walk.unseen)


def body_of(text: str, *, system: str = "", history: str = "", since: str = "") -> bytes:
    """Return a chat's body in which a text is the last message of its caller; what was said before it is answered already, and what came
    `since` are results of tools.
    """
    turns = [{"role": "system", "content": system}] if system else []
    if history:
        turns += [{"role": "user", "content": history}, {"role": "assistant", "content": ""}]
    turns.append({"role": "user", "content": text})
    if since:
        turns.append({"role": "tool", "content": since})
    return msgspec.json.encode({"messages": turns})


def ends(value: str) -> str:
    """Return a value by its first and last characters, so that whoever typed it knows it again."""
    least = 4 * _SHOWN_ENDS
    shown = f"{value[:_SHOWN_ENDS]}…{value[-_SHOWN_ENDS:]}" if len(value) >= least else "…"
    return f"{shown} ({len(value)} characters)"
