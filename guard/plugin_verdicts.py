"""What a rule asks its plug-in, and what the verdict comes to. Pure: proxy/admit/plugin_rules.py asks.

A plug-in is asked of the texts as they would be sent. It adds to what other rules found and takes none of it away: of its verdict
and the rule's `input` the stricter counts. It is asked apart of what may refuse the request and of what was there before, where
nothing refuses and what has a place is masked instead.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from guard.guard_config import GuardRule
from guard.ruleset import STRICTEST, Action, Finding, Masking, Verdict, action_of
from guard.walker import Path, Text, Walk
from weighbridge.plugins import Text as ToldText
from weighbridge.plugins import Verdict as Said

_Does = Literal["block", "own", "mask", "flag", "off"]


class Question(NamedTuple):
    """What one plug-in is asked at once."""

    rule: GuardRule
    texts: Sequence[Text]
    told: tuple[ToldText, ...]
    """The texts as the plug-in is given them."""
    refuses: bool
    """True where the request may be refused for what is found."""


class _Place(NamedTuple):
    start: int
    end: int
    name: str
    """The rule's; empty for a mask that stands there already."""


def questions(rules: Sequence[GuardRule], walk: Walk) -> list[Question]:
    """Return what the rules ask about the texts that were walked over."""
    found: list[Question] = []
    for rule in rules:
        roles = frozenset(rule.looks_at)
        parts: tuple[list[Text], list[Text]] = ([], [])
        for text in walk.texts:
            if text.role in roles:
                parts[_may_refuse(rule, text)].append(text)
        found += [
            Question(rule, texts, tuple([_told(text) for text in texts]), bool(refuses))
            for refuses, texts in enumerate(parts)
            if texts
        ]
    return found


def _may_refuse(rule: GuardRule, text: Text) -> bool:
    # What describes a tool is sent with every request, and was written by nobody who asks.
    return text.new and (text.role != "definition" or rule.roles is not None)


def _told(text: Text) -> ToldText:
    return ToldText(value=text.text, role=text.role, path=_written(text.path))


def _written(path: Path) -> str:
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path).removeprefix(".")


def with_verdicts(verdict: Verdict, answers: Iterable[tuple[Question, Said | None]], new: Masking) -> Verdict:
    """Return the verdict with those of plug-ins, and put masks into the texts; None is an answer that is missing and lets pass. `new`
    are masks for a request that has none yet.
    """
    judging = _Judging()
    for question, said in answers:
        judging.add(question, said)
    masks = judging.write(verdict.masks or new) or verdict.masks
    return msgspec.structs.replace(
        verdict,
        blocked=tuple(dict.fromkeys((*verdict.blocked, *judging.blocked))),
        own=verdict.own or judging.own,
        findings=(*verdict.findings, *judging.findings()),
        masks=masks,
    )


class _Judging:
    """What plug-ins found in one request."""

    def __init__(self) -> None:
        self.blocked: list[str] = []
        self.own = False
        self._counts: dict[tuple[str, Action], int] = {}
        self._masked: dict[int, tuple[Text, list[_Place]]] = {}

    def add(self, question: Question, said: Said | None) -> None:
        rule = question.rule
        if said is None:
            self._counts[rule.name, "open"] = 1
            return
        does = _does(rule, said, refuses=question.refuses)
        if does == "mask":
            self._mask(question, said)
        elif does != "off":
            self._count(rule, does, max(1, len(said.spans)))
            if does == "block":
                self.blocked.append(rule.name)
            self.own = self.own or does == "own"

    def _mask(self, question: Question, said: Said) -> None:
        for span in said.spans:
            text = question.texts[span.text]
            does = action_of("mask", text)
            if does is not None:
                self._count(question.rule, does, 1)
            self.own = self.own or does == "own"
            if does == "mask":
                _, places = self._masked.setdefault(id(text), (text, []))
                places.append(_Place(span.start, span.end, question.rule.name))

    def _count(self, rule: GuardRule, does: Action, count: int) -> None:
        self._counts[rule.name, does] = self._counts.get((rule.name, does), 0) + count

    def write(self, masks: Masking) -> Masking | None:
        """Put masks into the texts, and return them; None where nothing is masked."""
        for text, places in self._masked.values():
            text.put(_masked(text.text, places, masks))
        return masks if self._masked else None

    def findings(self) -> list[Finding]:
        return [Finding(name, "plugin", does, count) for (name, does), count in self._counts.items()]


def answers_question(rule: GuardRule, texts: Sequence[str]) -> Question:
    """Return what a rule asks about what a model said."""
    return Question(
        rule, (), tuple([ToldText(value=text, role="assistant", direction="output") for text in texts]), True
    )


def does_in_answer(rule: GuardRule, said: Said) -> Literal["block", "flag", "off"]:
    """Return what a verdict on an answer comes to: the stricter of what plug-in and rule say. What should be masked or stay is not given."""
    if said.action == "pass":
        return "off"
    strictest = max(STRICTEST[said.action], STRICTEST[rule.output])
    return "block" if strictest > STRICTEST["flag"] else "flag"


def _does(rule: GuardRule, said: Said, *, refuses: bool) -> _Does:
    """Return what a verdict comes to: the stricter of what plug-in and rule say."""
    if said.action == "pass":
        return "off"
    does: _Does = said.action if STRICTEST[said.action] > STRICTEST[rule.input] else rule.input
    if does == "mask" and not said.spans:
        # Something is there, and nobody knows where.
        does = "block"
    if refuses or does in {"own", "mask"}:
        return does
    return "mask" if does == "block" and said.spans else "off"


def _masked(text: str, places: list[_Place], masks: Masking) -> str:
    """Return a text with masks in these places. One that reaches into a mask covers all of it, and stands for what that stood for."""
    there = [_Place(start, end, "") for start, end in masks.places(text)]
    pieces: list[str] = []
    at = 0
    for start, end, name in _apart(sorted((*places, *there))):
        if name:
            pieces += (text[at:start], masks.mask(name, masks.unmasked(text[start:end])))
            at = end
    pieces.append(text[at:])
    return "".join(pieces)


def _apart(places: Sequence[_Place]) -> Iterable[_Place]:
    """Yield places, of which those that overlap are one."""
    last = places[0]
    for each in places[1:]:
        if each.start >= last.end:
            yield last
            last = each
        else:
            last = _Place(last.start, max(last.end, each.end), last.name or each.name)
    yield last
