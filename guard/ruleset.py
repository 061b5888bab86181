"""The rules that hold for one caller, compiled, and the verdict on a request by them. Pure.

Several rules may look for one thing: the strictest counts, so rules that are added tighten and never loosen. What is new may
refuse a request. What was there before may not, or a conversation in which something was refused once could never go on: there
it is masked instead. What cannot be changed and should be masked (names, signed thoughts, what becomes a vector) goes to own engines.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from guard.guard_config import ROLES, GuardRule, InputAction, OutputAction
from guard.walker import Role, Text, Walk, loses_names

Action = Literal["block", "own", "mask", "flag", "open", "unseen"]
"""What was done: as a rule says, `open` where a rule could not be judged and lets pass, `unseen` where nobody could look."""
_SALT_BYTES: Final = 16
_STRICTEST: Final[Mapping[str, int]] = {"block": 4, "own": 3, "mask": 2, "flag": 1, "off": 0}


class Found(Protocol):
    """A part of a text that is of a kind."""

    @property
    def kind(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class Scanner(Protocol):
    """Finds the parts of texts that are of its kinds."""

    def find(self, text: str) -> Sequence[Found]: ...


class Masking(Protocol):
    """The words that stand in place of values, for one request."""

    def mask(self, kind: str, value: str) -> str: ...
    def unmasked(self, text: str) -> str: ...


class Act(NamedTuple):
    """What a rule does with a kind: `name` as callers see it, `label` as metrics count it."""

    action: InputAction
    name: str
    label: str


class OutputAct(NamedTuple):
    """What a rule does with a kind in an answer."""

    action: OutputAction
    name: str
    label: str


class Finding(NamedTuple):
    """How often something was found and what was done: names and counts, never a value."""

    name: str
    label: str
    action: Action
    count: int
    side: Literal["input", "output"] = "input"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one request. Its `repr` shows no text."""

    body: bytes | None = None
    """The body to go on with; None where nothing was changed."""
    blocked: tuple[str, ...] = ()
    """The names of what it is refused for."""
    own: bool = False
    """True where only own engines may be asked."""
    findings: tuple[Finding, ...] = ()
    masks: Masking | None = None
    """The masks of this request, by which an answer is changed back; None where nothing was masked."""

    def __repr__(self) -> str:
        return f"Verdict({', '.join(f'{each.name}={each.action}:{each.count}' for each in self.findings)})"


class Ruleset:
    """The rules of one caller. `scanners` are asked one after the other; what two of them find in one place is one thing."""

    def __init__(
        self, rules: Iterable[GuardRule], kinds: Mapping[str, Sequence[str]], scanners: Sequence[Scanner]
    ) -> None:
        """`kinds` are those that each rule looks for, by its name."""
        self.rules = tuple(rules)
        self.salt = secrets.token_bytes(_SALT_BYTES)
        """By which what is remembered of texts is told apart from that of other rules."""
        self._scanners = tuple(scanners)
        self._input: dict[tuple[str, Role], Act] = {}
        self.output: dict[str, OutputAct] = {}
        """What is done with each kind in an answer."""
        for rule in self.rules:
            for kind in kinds[rule.name]:
                self._add(rule, kind)

    def _add(self, rule: GuardRule, kind: str) -> None:
        label = kind if rule.kind in {"pii", "secret"} else rule.kind
        for role in rule.roles or ROLES:
            action = rule.input
            if role == "definition" and rule.roles is None and action == "block":
                # What describes a tool is sent with every request, and was written by nobody who asks.
                action = "mask"
            known = self._input.get((kind, role))
            if action != "off" and (known is None or _STRICTEST[action] > _STRICTEST[known.action]):
                self._input[kind, role] = Act(action, kind, label)
        before = self.output.get(kind)
        if rule.output != "off" and (before is None or _STRICTEST[rule.output] > _STRICTEST[before.action]):
            self.output[kind] = OutputAct(rule.output, kind, label)

    @property
    def looks_in(self) -> bool:
        """True where requests are looked at."""
        return bool(self._input)

    @property
    def open(self) -> tuple[Finding, ...] | None:
        """What is told where requests pass though they cannot be judged; None where a rule says that they do not."""
        looking = [rule for rule in self.rules if rule.input != "off"]
        if any(rule.on_error == "closed" for rule in looking):
            return None
        return tuple(Finding(rule.name, rule.kind, "open", 1) for rule in looking)

    def find(self, text: str) -> tuple[Found, ...]:
        """Return what is found in a text, by place."""
        found = [each for scanner in self._scanners for each in scanner.find(text)]
        if len(found) > 1:
            found.sort(key=lambda each: (each.start, -each.end))
        return tuple(found)

    def judge(
        self,
        wire: str,
        body: bytes,
        masks: Callable[[], Masking],
        find: Callable[["Ruleset", str], Sequence[Found]] | None = None,
        *,
        sent: bool = False,
    ) -> Verdict:
        """Return the verdict on a wire's body, which is a JSON object. `find` may remember what it found; `sent` is for a request that was
        judged and sent before, of which only the masks are wanted. Raises TooMuch.
        """
        value: dict[str, Any] = msgspec.json.decode(body)
        judging = _Judging(self, masks, sent=sent)
        lossy = loses_names(body, value)
        walk = Walk(wire, value)
        for text in walk.texts:
            found = self.find(text.text) if find is None else find(self, text.text)
            if found:
                judging.add(text, found)
        if judging.blocked and not sent:
            return Verdict(blocked=tuple(judging.blocked), findings=judging.findings(walk.unseen))
        changed = judging.write() + walk.changed() + lossy
        return Verdict(
            body=msgspec.json.encode(value) if changed else None,
            own=judging.own and not sent,
            findings=judging.findings(walk.unseen),
            masks=judging.masks,
        )

    def act(self, kind: str, role: Role) -> Act | None:
        """Return what is done with a kind in a text of that role; None for nothing."""
        return self._input.get((kind, role))


class _Judging:
    """What is found in one body, before any of it is changed."""

    def __init__(self, rules: Ruleset, masks: Callable[[], Masking], *, sent: bool) -> None:
        self._rules = rules
        self._new_masks = masks
        self._sent = sent
        self.masks: Masking | None = None
        self.blocked: dict[str, None] = {}
        self.own = False
        self._counts: dict[tuple[str, str, Action], int] = {}
        self._masked: list[tuple[Text, list[Found]]] = []

    def add(self, text: Text, found: Sequence[Found]) -> None:
        masked: list[Found] = []
        for each in found:
            act = self._rules.act(each.kind, text.role)
            action = None if act is None else _action(act.action, text)
            if act is None or action is None:
                continue
            place = (act.name, act.label, action)
            self._counts[place] = self._counts.get(place, 0) + 1
            if action == "block":
                self.blocked[act.name] = None
            elif action == "own":
                self.own = True
            elif action == "mask":
                masked.append(each)
        if masked:
            self._masked.append((text, masked))

    def write(self) -> bool:
        """Put the masks into their texts, and return True where there are any."""
        for text, found in self._masked:
            if self.masks is None:
                self.masks = self._new_masks()
            text.put(_masked(text.text, found, self.masks))
        return bool(self._masked)

    def findings(self, unseen: Mapping[str, int]) -> tuple[Finding, ...]:
        told = [Finding(name, label, action, count) for (name, label, action), count in self._counts.items()]
        told += [Finding(media, media, "unseen", count) for media, count in unseen.items()]
        return tuple(told)


def _action(said: InputAction, text: Text) -> Literal["block", "own", "mask", "flag"] | None:
    """Return what a rule comes to in a text; None for nothing."""
    if said == "block" and not text.new:
        # A turn that was refused must not refuse all that follow it.
        said = "mask"
    if said == "flag":
        return "flag" if text.new else None
    if said == "mask" and text.fixed:
        return "flag" if text.role == "definition" else "own"
    return None if said == "off" else said


def _masked(text: str, found: Sequence[Found], masks: Masking) -> str:
    """Return a text with masks in place of what was found, which is in the order of its beginnings and may overlap."""
    pieces: list[str] = []
    at, index = 0, 0
    while index < len(found):
        first, end = found[index], found[index].end
        while index + 1 < len(found) and found[index + 1].start < end:
            index += 1
            end = max(end, found[index].end)
        pieces += (text[at : first.start], masks.mask(first.kind, text[first.start : end]))
        at, index = end, index + 1
    pieces.append(text[at:])
    return "".join(pieces)
