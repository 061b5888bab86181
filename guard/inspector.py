"""The guard of one process: which rules hold for a caller, compiled once and beside the loop, and what was found in texts before."""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, assert_never

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from guard.guard_config import ASKED, STRICT_RATE, GuardRule, GuardSection, kinds_of
from guard.ruleset import Found, KnownScanner, Masking, Ruleset, Scanner, Verdict
from guard.walker import Part
from settings.words import in_words

if TYPE_CHECKING:
    from guard.kinds import Kind

OwnRules = tuple[str, str]
"""An organisation's rules and a team's, as JSON lists; empty for none."""
_NO_RULES: Final[OwnRules] = ("", "")
_MOST_RULESETS: Final = 256
_MOST_SCANNERS: Final = 16
_MOST_REMEMBERED: Final = 20_000
"""Parts that each of two generations knows."""
_KEY_BYTES: Final = 32
_NOT_STORED: Final = (
    "services and plug-ins are asked where the gateway's configuration says so, as they are given texts"
)


class Remembered:
    """The parts of bodies in which nothing was found, as a conversation sends most of them with each turn: by a keyed hash, never as text.
    The younger of two generations takes what is new and what is met again; the older one is dropped.
    """

    def __init__(self, key: bytes, most: int = _MOST_REMEMBERED) -> None:
        self._key = key
        self._most = most
        self._young: dict[bytes, Mapping[str, int]] = {}
        self._old: dict[bytes, Mapping[str, int]] = {}

    def name_of(self, rules: Ruleset, part: Part) -> bytes:
        """Return a part's hash, by its field and the rules that looked through it."""
        hashed = blake2b(part.raw, key=self._key, digest_size=16, salt=rules.salt)
        hashed.update(part.name.encode())
        return hashed.digest()

    def known(self, name: bytes) -> Mapping[str, int] | None:
        """Return what could not be read in a part that was remembered."""
        found = self._young.get(name)
        if found is None and (found := self._old.get(name)) is not None:
            self.remember(name, found)
        return found

    def remember(self, name: bytes, unseen: Mapping[str, int]) -> None:
        """Take a part in which nothing was found."""
        if len(self._young) >= self._most:
            self._young, self._old = {}, self._young
        self._young[name] = unseen


class Guard:
    """The rules of the configuration, and those that organisations and teams add."""

    def __init__(
        self,
        section: GuardSection,
        key: bytes,
        *,
        scanner: Callable[[Sequence["Kind"]], KnownScanner] | None = None,
    ) -> None:
        """`key` makes the masks: the same in every process and after each start. `scanner` makes one of kinds."""
        self._key = key
        self._scanner = scanner or _scanner
        self._memory = Remembered(secrets.token_bytes(_KEY_BYTES))
        self._compiling = asyncio.Lock()
        self._scanners: dict[frozenset[str], KnownScanner] = {}
        self.adopt(section)

    def adopt(self, section: GuardSection) -> None:
        """Take the rules of a configuration that was read anew; the next request is judged by them."""
        self._floor = tuple(section.rules)
        self._rulesets: OrderedDict[OwnRules, Ruleset] = OrderedDict()

    @property
    def floor(self) -> tuple[GuardRule, ...]:
        """The configuration's rules, which hold for everybody."""
        return self._floor

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
        return rules.judge(wire, body, lambda used: self.masks(used, team_id), self._memory, sent=sent)

    def masks(self, rules: Ruleset, team_id: str) -> Masking:
        """Return masks for one request, none made yet."""
        from guard.masks import Masks  # noqa: PLC0415 - only those need it who mask

        return Masks(self._key, team_id, rules.labels)

    def _compiled(self, floor: Sequence[GuardRule], own: OwnRules) -> Ruleset:
        from guard.kinds import KINDS, block_list, label_of, own_kind  # noqa: PLC0415

        rules = together((floor, *map(read_rules, own)))
        kinds: dict[str, Sequence[str]] = {}
        ours: set[str] = set()
        theirs: list[Kind] = []
        rates: dict[str, float] = {}
        for rule in rules:
            kinds[rule.name] = (rule.name,)
            match rule.kind:
                case "pii" | "secret":
                    kinds[rule.name] = rule.entities or kinds_of(rule.kind)
                    ours.update(kinds[rule.name])
                case "words":
                    theirs.append(block_list(rule.name, rule.words or ()))
                case "pattern":
                    theirs.append(own_kind(rule.name, rule.pattern or ""))
                case "injection":
                    rates[rule.name] = rule.false_rate or STRICT_RATE
                case "http" | "plugin":
                    kinds[rule.name] = ()
                case _:
                    assert_never(rule.kind)
        described: list[Scanner] = [self._scanner(theirs)] if theirs else []
        if rates:
            described.append(_attempts(rates))
        return Ruleset(
            rules,
            kinds,
            known=self._shared(frozenset(ours), KINDS) if ours else None,
            own=None if not described else described[0] if len(described) == 1 else Several(described),
            labels={rule.name: label_of(rule.name) for rule in rules if rule.kind == "plugin"},
        )

    def _shared(self, names: frozenset[str], kinds: Mapping[str, "Kind"]) -> KnownScanner:
        """Return the scanner of some of our kinds: teams of the same kinds have the same one, as each takes megabytes."""
        found = self._scanners.get(names)
        if found is None:
            if len(self._scanners) >= _MOST_SCANNERS:
                self._scanners.clear()
            found = self._scanners[names] = self._scanner([kinds[name] for name in sorted(names)])
        return found


def _scanner(kinds: Sequence["Kind"]) -> KnownScanner:
    from guard.scan import Scanner as Scanning  # noqa: PLC0415 - patterns take megabytes, which only those have who have rules

    return Scanning(kinds)


def _attempts(rates: Mapping[str, float]) -> Scanner:
    from guard.injection import Attempts, Injection  # noqa: PLC0415 - as above

    return Attempts(Injection.load(), rates)


class Several:
    """Some scanners as one."""

    def __init__(self, scanners: Sequence[Scanner]) -> None:
        self._scanners = scanners
        self.labels = {name: label for each in scanners for name, label in each.labels.items()}

    def find(self, text: str) -> Sequence[Found]:
        """Return what any of them finds, by place."""
        found = [one for each in self._scanners for one in each.find(text)]
        return sorted(found, key=lambda each: (each.start, -each.end))

    def partial(self, text: str, begin: int, *, final: bool) -> tuple[Sequence[Found], int]:
        """Return what any of them finds from `begin` on, and how far the text is settled for all."""
        told = [each.partial(text, begin, final=final) for each in self._scanners]
        return [one for found, _ in told for one in found], min(settled for _, settled in told)


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
    rules = tuple(GuardSection.model_validate({"rules": msgspec.json.decode(stored)}).rules)
    if any(rule.kind in ASKED for rule in rules):
        raise ValueError(_NOT_STORED)
    return rules


class BadRules(ValueError):
    """Rules that cannot be taken; the message says where, and what to change. `key` is that of the rule, where it is one's."""

    def __init__(self, where: str, told: str, key: str = "") -> None:
        super().__init__(f"{where}: {told}.")
        self.told = told
        self.key = key


def checked_rules(rules: Sequence[Mapping[str, object]]) -> tuple[GuardRule, ...]:
    """Return rules that somebody wrote. Raises BadRules."""
    try:
        found = tuple(GuardSection.model_validate({"rules": list(rules)}).rules)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(each) for each in first["loc"])
        told = str(first["ctx"]["error"]) if first["type"] == "value_error" else _plain(first)
        raise BadRules(where, told, next((str(each) for each in first["loc"][2:3]), "")) from None
    asked = next((at for at, rule in enumerate(found) if rule.kind in ASKED), None)
    if asked is not None:
        raise BadRules(f"rules.{asked}", _NOT_STORED, "kind")
    return found


def _plain(first: ErrorDetails) -> str:
    match first["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"is no key of a rule (there are {', '.join(GuardRule.model_fields)})"
        case "literal_error":
            return f"must be {first['ctx']['expected']}"
        case "string_pattern_mismatch":
            return "must be small letters, digits, `_` and `-`, and begin with a letter"
    return in_words(first)


def stored(rules: Sequence[GuardRule]) -> str:
    """Return rules as they are stored; empty for none."""
    if not rules:
        return ""
    return msgspec.json.encode([rule.model_dump(exclude_defaults=True) for rule in rules]).decode()
