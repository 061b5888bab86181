"""The guard of one process: which rules hold for a caller, compiled once and beside the loop, and what was found in texts before."""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from guard.guard_config import GuardRule, GuardSection, kinds_of
from guard.ruleset import Found, Masking, Ruleset, Scanner, Verdict

if TYPE_CHECKING:
    from guard.kinds import Kind

OwnRules = tuple[str, str]
"""An organisation's rules and a team's, as JSON lists; empty for none."""
_NO_RULES: Final[OwnRules] = ("", "")
_MOST_RULESETS: Final = 256
_MOST_SCANNERS: Final = 16
_MOST_REMEMBERED: Final = 20_000
"""Texts of which each of two generations knows what was found in them."""
_LEAST_CHARS: Final = 256
"""Shorter texts are looked through sooner than they are recognised."""
_KEY_BYTES: Final = 32


class Guard:
    """The rules of the configuration, and those that organisations and teams add."""

    def __init__(
        self,
        section: GuardSection,
        key: bytes,
        *,
        scanner: Callable[[Sequence["Kind"]], Scanner] | None = None,
    ) -> None:
        """`key` makes the masks: the same in every process and after each start. `scanner` makes one of kinds."""
        self._key = key
        self._scanner = scanner or _scanner
        self._remembering = secrets.token_bytes(_KEY_BYTES)
        self._compiling = asyncio.Lock()
        self._scanners: dict[frozenset[str], Scanner] = {}
        self.adopt(section)

    def adopt(self, section: GuardSection) -> None:
        """Take the rules of a configuration that was read anew; the next request is judged by them."""
        self._floor = tuple(section.rules)
        self._rulesets: OrderedDict[OwnRules, Ruleset] = OrderedDict()
        self._young: dict[bytes, tuple[Found, ...]] = {}
        self._old: dict[bytes, tuple[Found, ...]] = {}

    def is_on(self, own: OwnRules | None) -> bool:
        """Return True where a caller with these rules of its own has any."""
        return own is not None or bool(self._floor)

    async def rules_for(self, own: OwnRules | None) -> Ruleset:
        """Return the rules that hold for a caller. Raises ValueError for stored ones that are no rules any more."""
        of = own or _NO_RULES
        known = self._rulesets.get(of)
        if known is not None:
            self._rulesets.move_to_end(of)
            return known
        async with self._compiling:
            rulesets = self._rulesets
            if of not in rulesets:
                rulesets[of] = await asyncio.to_thread(self._compiled, self._floor, of)
                if len(rulesets) > _MOST_RULESETS:
                    rulesets.popitem(last=False)
            return rulesets[of]

    def judge(self, rules: Ruleset, team_id: str, wire: str, body: bytes, *, sent: bool = False) -> Verdict:
        """Return the verdict on a body. Raises TooMuch."""
        return rules.judge(wire, body, lambda: self._masks(team_id), self._find, sent=sent)

    def _masks(self, team_id: str) -> Masking:
        from guard.masks import Masks  # noqa: PLC0415 - only those need it who mask

        return Masks(self._key, team_id)

    def _find(self, rules: Ruleset, text: str) -> Sequence[Found]:
        """Return what is in a text; of a long one that came before, as a conversation's does with each turn, what was found then."""
        if len(text) < _LEAST_CHARS:
            return rules.find(text)
        name = blake2b(text.encode(), key=self._remembering, digest_size=16, salt=rules.salt).digest()
        known = self._young.get(name)
        if known is None:
            known = self._old.get(name)
            if known is None:
                known = rules.find(text)
            if len(self._young) >= _MOST_REMEMBERED:
                self._young, self._old = {}, self._young
            self._young[name] = known
        return known

    def _compiled(self, floor: Sequence[GuardRule], own: OwnRules) -> Ruleset:
        from guard.kinds import KINDS, block_list, own_kind  # noqa: PLC0415

        rules = together((floor, *map(read_rules, own)))
        kinds: dict[str, Sequence[str]] = {}
        ours: set[str] = set()
        theirs: list[Kind] = []
        for rule in rules:
            if rule.kind in {"pii", "secret"}:
                kinds[rule.name] = rule.entities or kinds_of(rule.kind)
                ours.update(kinds[rule.name])
                continue
            kinds[rule.name] = (rule.name,)
            theirs.append(
                own_kind(rule.name, rule.pattern) if rule.pattern else block_list(rule.name, rule.words or ())
            )
        scanners = [self._shared(frozenset(ours), KINDS)] if ours else []
        if theirs:
            scanners.append(self._scanner(theirs))
        return Ruleset(rules, kinds, scanners)

    def _shared(self, names: frozenset[str], kinds: Mapping[str, "Kind"]) -> Scanner:
        """Return the scanner of some of our kinds: teams of the same kinds have the same one, as each takes megabytes."""
        found = self._scanners.get(names)
        if found is None:
            if len(self._scanners) >= _MOST_SCANNERS:
                self._scanners.clear()
            found = self._scanners[names] = self._scanner([kinds[name] for name in sorted(names)])
        return found


def _scanner(kinds: Sequence["Kind"]) -> Scanner:
    from guard.scan import Scanner as Scanning  # noqa: PLC0415 - patterns take megabytes, which only those have who have rules

    return Scanning(kinds)


def together(layers: Iterable[Sequence[GuardRule]]) -> tuple[GuardRule, ...]:
    """Return the rules of all layers; the later one of two that are called alike gets a number."""
    found: dict[str, GuardRule] = {}
    for rule in (each for layer in layers for each in layer):
        name, number = rule.name, 1
        while name in found:
            number += 1
            name = f"{rule.name}-{number}"
        found[name] = rule if name == rule.name else rule.model_copy(update={"name": name})
    return tuple(found.values())


def read_rules(stored: str) -> tuple[GuardRule, ...]:
    """Return stored rules. Raises ValueError for what are none any more."""
    if not stored:
        return ()
    return tuple(GuardSection.model_validate({"rules": msgspec.json.decode(stored)}).rules)
