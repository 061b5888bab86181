"""Dry runs: what the rules would find in a text that somebody types, and in the newest prompts that a team keeps."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from api.web.reading import reading
from classifier.prediction import Prompt
from dashboards.ui.guard_words import done_words, found_words
from dashboards.ui.tables import Column, Table
from dashboards.web.view import PageRequest
from guard.dry_run import DryRun, body_of, dry_run
from guard.guard_config import GuardRule, kinds_of
from guard.ruleset import Ruleset
from guard.walker import TooMuch

MOST_CHARS: Final = 20_000
"""The characters of a text that can be tried."""
MOST_PROMPTS: Final = 100
"""The newest prompts that are looked through."""
_MOST_SHOWN: Final = 200
_MOST_LINKS: Final = 5
_NOTHING: Final = ("Nothing", "quiet")
_COLUMNS: Final = (
    Column("what", "Found", sortable=False),
    Column("rules", "By", note="The rules that look for it; the strictest counts", sortable=False),
    Column("then", "Then", "badge", sortable=False),
    Column("where", "Where", sortable=False),
    Column("value", "Value", "code", note="Its ends alone", sortable=False),
)


class Tried(msgspec.Struct, frozen=True):
    """What was found in a text."""

    table: Table
    found: int
    most: int = _MOST_SHOWN


class TriedKind(msgspec.Struct, kw_only=True):
    """What was found of one kind in prompts that a team keeps."""

    what: str
    then: tuple[str, str]
    requests: int = 0
    findings: int = 0
    newest: list[str] = msgspec.field(default_factory=list)
    """The newest requests in which it was found."""


class TriedPrompts(msgspec.Struct, frozen=True):
    """What was found in the newest prompts."""

    prompts: int
    kinds: Sequence[TriedKind]


async def try_text(view: PageRequest, rules: Ruleset, text: str) -> Tried:
    """Return what the rules find in a text. It is kept nowhere."""
    async with view.gateway.finance.reads:
        found = await asyncio.to_thread(dry_run, rules, "chat", body_of(text))
    by = _rules_by_kind(rules.rules)
    rows = [
        {
            "what": found_words(each.kind, ""),
            "rules": ", ".join(by.get(each.kind, ())),
            "then": _NOTHING if each.action is None else done_words(each.action),
            "where": f"Line {each.line}, character {each.column}",
            "value": each.value,
        }
        for each in found.hits[:_MOST_SHOWN]
    ]
    table = Table.of(
        _COLUMNS,
        rows,
        {},
        name="tried",
        caption="What is found in this text",
        empty="Nothing is found in this text.",
        page_rows=_MOST_SHOWN,
        csv=False,
    )
    return Tried(table, len(found.hits))


async def try_prompts(view: PageRequest, rules: Ruleset) -> TriedPrompts:
    """Return what the rules find in the newest prompts that the team keeps: counts, and in which requests. The caller has checked that
    the viewer may see them.
    """
    team = view.the_team
    async with reading(view.gateway, on=True):
        kept = await view.gateway.learning.newest_prompts(team.organisation_id, team.team_id, MOST_PROMPTS)
    async with view.gateway.finance.reads:
        kinds = await asyncio.to_thread(_in_prompts, rules, kept)
    return TriedPrompts(len(kept), kinds)


def _in_prompts(rules: Ruleset, kept: Sequence[tuple[str, str]]) -> list[TriedKind]:
    found: dict[tuple[str, str | None], TriedKind] = {}
    for request_id, stored in kept:
        within: set[tuple[str, str | None]] = set()
        for hit in _in_prompt(rules, stored).hits:
            key = (hit.kind, hit.action)
            then = _NOTHING if hit.action is None else done_words(hit.action)
            each = found.setdefault(key, TriedKind(what=found_words(hit.kind, ""), then=then))
            each.findings += 1
            if key not in within:
                within.add(key)
                each.requests += 1
                if len(each.newest) < _MOST_LINKS:
                    each.newest.append(request_id)
    return sorted(found.values(), key=lambda each: (-each.requests, each.what))


def _in_prompt(rules: Ruleset, stored: str) -> DryRun:
    try:
        prompt = msgspec.json.decode(stored, type=Prompt)
    except msgspec.MsgspecError:
        # Of an older version: a text and nothing else.
        prompt = Prompt(text=stored)
    body = body_of(prompt.text, system=prompt.system, history=prompt.history, since=prompt.since)
    try:
        return dry_run(rules, "chat", body)
    except TooMuch:
        return DryRun((), {})


def _rules_by_kind(rules: Sequence[GuardRule]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for rule in rules:
        names: Sequence[Any] = (rule.name,)
        if rule.kind in {"pii", "secret"}:
            names = rule.entities or kinds_of(rule.kind)
        for name in names:
            found.setdefault(name, []).append(rule.name)
    return found
