"""The rules that hold for one caller, compiled, and the verdict on a request by them. Pure.

Several rules may look for one thing: the strictest counts, so rules that are added tighten and never loosen. What is new may
refuse a request. What was there before may not, or a conversation in which something was refused once could never go on: there
it is masked instead. What cannot be changed and should be masked (names, signed thoughts, what becomes a vector) goes to own engines.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from guard.clean import Looking, is_clean, says_nothing
from guard.guard_config import ASKED, GuardRule, InputAction, OutputAction
from guard.walker import Part, Role, Text, Walk

Action = Literal["block", "own", "mask", "flag", "open", "unseen"]
"""What was done: as a rule says, `open` where a rule could not be judged and lets pass, `unseen` where nobody could look."""
_SALT_BYTES: Final = 16
SHORT_CHARS: Final = 256
"""Shorter texts are looked through together."""
_LEAST_REMEMBERED: Final = 64
"""Shorter parts are looked through sooner than they are recognised."""
_BETWEEN: Final = "\uffff"
"""What stands between texts that are looked through together: no pattern of our tables goes over it. It is no part of a word, no character, and is
not folded away as invisible ones are, so that a text's first word is not the end of the one before.
"""
STRICTEST: Final[Mapping[str, int]] = {"block": 4, "own": 3, "mask": 2, "flag": 1, "off": 0}
_NO_LABELS: Final[Mapping[str, str]] = {}


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

    @property
    def labels(self) -> Mapping[str, str]:
        """What stands in the masks of each kind."""
        ...

    def find(self, text: str) -> Sequence[Found]: ...
    def partial(self, text: str, begin: int, *, final: bool) -> tuple[Sequence[Found], int]:
        """Return what is found from `begin` on, and how far the text is settled, whatever may follow it."""
        ...


class KnownScanner(Scanner, Looking, Protocol):
    """Finds what is of the kinds of our tables."""


class Masking(Protocol):
    """The words that stand in place of values, for one request."""

    def mask(self, kind: str, value: str) -> str: ...
    def unmasked(self, text: str) -> str: ...
    def places(self, text: str) -> Sequence[tuple[int, int]]:
        """Return where masks of this request stand in a text."""
        ...


class Memory(Protocol):
    """What is known of parts of bodies that came before and in which nothing was found."""

    def name_of(self, rules: "Ruleset", part: Part) -> bytes:
        """Return the name under which a part is known."""
        ...

    def known(self, name: bytes) -> Mapping[str, int] | None:
        """Return what could not be read in a part in which nothing was found; None for any other."""
        ...

    def remember(self, name: bytes, unseen: Mapping[str, int]) -> None:
        """Take a part in which nothing was found."""
        ...


class Act(NamedTuple):
    """What a rule does with a kind: `name` as callers see it, `label` as metrics count it."""

    action: InputAction
    name: str
    label: str
    whole: bool = False
    """True where a text is judged as a whole, so that nothing in it can be masked."""


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
    count: int  # type: ignore[assignment]  # A tuple has a method of that name, which nobody calls.
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


class _Over(NamedTuple):
    kind: str
    start: int
    end: int


class Ruleset:
    """The rules of one caller. What two scanners find in one place is one thing."""

    def __init__(
        self,
        rules: Iterable[GuardRule],
        kinds: Mapping[str, Sequence[str]],
        *,
        known: KnownScanner | None,
        own: Scanner | None,
        labels: Mapping[str, str] = _NO_LABELS,
    ) -> None:
        """`kinds` are those that each rule looks for, by its name. `known` finds those of our tables, `own` those that rules describe.
        `labels` are those of rules that ask plug-ins.
        """
        self.rules = tuple(rules)
        self.services = tuple(rule for rule in self.rules if rule.kind == "http" and rule.input != "off")
        """Rules that ask a service about requests; whoever judges by them has to wait."""
        self.plugins = tuple(rule for rule in self.rules if rule.kind == "plugin" and rule.input != "off")
        """Rules that ask a plug-in about requests."""
        self.of_answers = tuple(rule for rule in self.rules if rule.kind in ASKED and rule.output != "off")
        """Rules that ask somebody about answers."""
        windows = [rule.window_chars for rule in self.of_answers]
        self.window_chars = (
            None if None in windows else max((each for each in windows if each is not None), default=None)
        )
        """How much of a stream is asked about at once; None for all of it."""
        self.salt = secrets.token_bytes(_SALT_BYTES)
        """By which what is remembered of texts is told apart from that of other rules."""
        self._known, self._own = known, own
        self.labels = dict(labels)
        for scanner in (known, own):
            self.labels |= {} if scanner is None else scanner.labels
        """What stands in the masks of each kind."""
        self._input: dict[tuple[str, Role], Act] = {}
        self.output: dict[str, OutputAct] = {}
        """What is done with each kind in an answer."""
        for rule in self.rules:
            for kind in kinds[rule.name]:
                self._add(rule, kind)

    def _add(self, rule: GuardRule, kind: str) -> None:
        label = kind if rule.kind in {"pii", "secret"} else rule.kind
        for role in rule.looks_at:
            action = rule.input
            if role == "definition" and rule.roles is None and action == "block":
                # What describes a tool is sent with every request, and was written by nobody who asks.
                action = "mask"
            known = self._input.get((kind, role))
            if action != "off" and (known is None or STRICTEST[action] > STRICTEST[known.action]):
                self._input[kind, role] = Act(action, kind, label, whole=rule.kind == "injection")
        before = self.output.get(kind)
        if rule.output != "off" and (before is None or STRICTEST[rule.output] > STRICTEST[before.action]):
            self.output[kind] = OutputAct(rule.output, kind, label)

    @property
    def looks_in(self) -> bool:
        """True where requests are looked at here, whoever else is asked."""
        return bool(self._input)

    @property
    def open(self) -> tuple[Finding, ...] | None:
        """What is told where requests pass though they cannot be judged; None where a rule says that they do not."""
        looking = [rule for rule in self.rules if rule.input != "off" and rule.kind not in ASKED]
        if any(rule.on_error == "closed" for rule in looking):
            return None
        return tuple(Finding(rule.name, rule.kind, "open", 1) for rule in looking)

    def find(self, text: str) -> tuple[Found, ...]:
        """Return what is found in a text, by place."""
        known = () if self._known is None else self._known.find(text)
        own = () if self._own is None else self._own.find(text)
        if not known or not own:
            return tuple(known or own)
        return tuple(sorted((*known, *own), key=lambda each: (each.start, -each.end)))

    def passes(self, raw: bytes) -> bool:
        """Return True for JSON of an answer in which nothing is that any rule looks for. False says nothing."""
        return self._own is None and self._known is not None and says_nothing(raw, self._known)

    def passes_text(self, text: str) -> bool:
        """Return True for a text in which nothing is that any rule looks for. False says nothing."""
        known = self._known
        return self._own is None and known is not None and known.sees_nothing(text.encode(errors="surrogatepass"))

    def partial(self, text: str, begin: int, *, final: bool) -> tuple[list[Found], int]:
        """Return what is found in an answer's text from `begin` on, none over another, and how far it is settled."""
        found: list[Found] = []
        settled = len(text)
        for scanner in (self._known, self._own):
            if scanner is not None:
                more, until = scanner.partial(text, begin, final=final)
                found += [each for each in more if each.kind in self.output]
                settled = min(settled, until)
        for each in sorted(found, key=lambda each: -each.end):
            if each.start < settled < each.end:
                settled = each.start
        return self._apart([each for each in found if each.end <= settled]), settled

    def _apart(self, found: list[Found]) -> list[Found]:
        """Return what is found, by place; of two that overlap the stricter one, over all that both cover."""
        apart: list[Found] = []
        for each in sorted(found, key=lambda each: (each.start, -each.end)):
            if not apart or apart[-1].end <= each.start:
                apart.append(each)
                continue
            last = apart[-1]
            stricter = max(last, each, key=lambda one: STRICTEST[self.output[one.kind].action])
            apart[-1] = _Over(stricter.kind, last.start, max(last.end, each.end))
        return apart

    def judge(
        self,
        wire: str,
        body: bytes,
        masks: Callable[["Ruleset"], Masking],
        memory: Memory | None,
        *,
        sent: bool = False,
    ) -> Verdict:
        """Return the verdict on a wire's body, which is a JSON object. `memory` knows the parts in which nothing was found before; `sent` is
        for a request that was judged and sent before, of which only the masks are wanted. Raises TooMuch.
        """
        if self._known is not None and self._own is None and is_clean(wire, body, self._known):
            return Verdict()
        judging = _Judging(self, sent=sent)
        walk = Walk(wire, body)
        judging.add_all(walk.texts, self._in_texts(walk.texts))
        for part in walk.parts():
            name = None if memory is None or len(part.raw) < _LEAST_REMEMBERED else memory.name_of(self, part)
            known = None if name is None or memory is None else memory.known(name)
            if known is not None:
                walk.see(known)
                continue
            walked = walk.over(part)
            found = self._in_texts(walked.texts)
            if any(found):
                judging.add_all(walked.texts, found)
            elif name is not None and memory is not None and not walked.lossy:
                memory.remember(name, walked.unseen)
        findings = judging.findings(walk.unseen)
        if judging.blocked and not sent:
            return Verdict(blocked=tuple(judging.blocked), findings=findings)
        made = judging.write(masks)
        return Verdict(body=walk.written(), own=judging.own and not sent, findings=findings, masks=made)

    def _in_texts(self, texts: Sequence[Text]) -> list[Sequence[Found]]:
        """Return what is found in each of many texts."""
        together = [each.text for each in texts if len(each.text) < SHORT_CHARS]
        # One look at all short ones costs less than many looks.
        clean = self._known is None or (len(together) > 1 and not self._known.find(_BETWEEN.join(together)))
        if clean and self._own is None and len(together) == len(texts):
            return []
        return [
            self._owns(each.text) if clean and len(each.text) < SHORT_CHARS else self.find(each.text) for each in texts
        ]

    def _owns(self, text: str) -> Sequence[Found]:
        return () if self._own is None else self._own.find(text)

    def hidden(self, text: Text, masks: Masking) -> str:
        """Return a text without what only own engines may have."""
        acts = [(each, self.act(each.kind, text.role)) for each in self.find(text.text)]
        found = [each for each, act in acts if act is not None and not act.whole and act.action not in {"flag", "off"}]
        return _masked(text.text, found, masks)

    def hidden_answer(self, text: str, masks: Masking) -> str:
        """Return a text of an answer as a service at an address may see it: without what any rule masks, blocks or keeps to own engines."""
        hidden = {kind for (kind, _), act in self._input.items() if act.action != "flag" and not act.whole}
        hidden |= {kind for kind, act in self.output.items() if act.action != "flag"}
        return _masked(text, [each for each in self.find(text) if each.kind in hidden], masks)

    def act(self, kind: str, role: Role) -> Act | None:
        """Return what is done with a kind in a text of that role; None for nothing."""
        return self._input.get((kind, role))


class _Judging:
    """What is found in one body, before any of it is changed."""

    def __init__(self, rules: Ruleset, *, sent: bool) -> None:
        self._rules = rules
        self._sent = sent
        self.blocked: dict[str, None] = {}
        self.own = False
        self._counts: dict[tuple[str, str, Action], int] = {}
        self._masked: list[tuple[Text, list[Found]]] = []

    def add_all(self, texts: Sequence[Text], found: Sequence[Sequence[Found]]) -> None:
        """Add what was found in each of the texts."""
        for text, each in zip(texts, found, strict=False):
            if each:
                self._add(text, each)

    def _add(self, text: Text, found: Sequence[Found]) -> None:
        masked: list[Found] = []
        for each in found:
            act = self._rules.act(each.kind, text.role)
            action = None if act is None else action_of(act.action, text, whole=act.whole)
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

    def write(self, masks: Callable[[Ruleset], Masking]) -> Masking | None:
        """Put masks into the texts, and return them; None where nothing is masked."""
        if not self._masked:
            return None
        made = masks(self._rules)
        for text, found in self._masked:
            text.put(_masked(text.text, found, made))
        return made

    def findings(self, unseen: Mapping[str, int]) -> tuple[Finding, ...]:
        told = [Finding(name, label, action, count) for (name, label, action), count in self._counts.items()]
        told += [Finding(media, media, "unseen", count) for media, count in unseen.items()]
        return tuple(told)


def action_of(said: InputAction, text: Text, *, whole: bool = False) -> Literal["block", "own", "mask", "flag"] | None:
    """Return what a rule comes to in a text; None for nothing."""
    if said == "block" and not text.new:
        # A turn that was refused must not refuse all that follow it.
        said = "off" if whole else "mask"
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
