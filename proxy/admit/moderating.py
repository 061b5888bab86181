"""Rules that ask a service: what a request says is sent there, masked as it is, and nothing goes on without its verdict.

Asked are those texts alone that are new, but for rules of own engines: what once had to stay has to stay with each turn.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from accounts.caller import Caller
from guard.guard_config import GuardRule, GuardSection
from guard.moderation import Direction, OddReply, found
from guard.moderation import Verdict as Said
from guard.ruleset import Action, Finding, Verdict
from guard.walker import Text, Walk
from providers.breaker import Breakers, Permit
from providers.config import BreakerConfig
from proxy.errors import GuardUnavailable
from proxy.shared.moderation_client import ModerationClient, Service, ServiceUnavailable

_log: Final = logging.getLogger("weighbridge.guard")
_READ: Final = frozenset({"prose", "arguments", "file"})
"""What is sent: no names of fields, no addresses, no numbers."""
_TIMEOUT_MS: Final = 300
_BREAKER: Final = BreakerConfig(consecutive_failures=5, base_ejection_s=5.0, max_ejection_s=30.0)
"""Whoever fails so often in a row is not asked for so long: nobody then waits for a deadline that will pass."""
_CHANGED: Final = "changed"


class NoKey(Exception):
    """The key of a service is not there."""


class _Judged(msgspec.Struct, frozen=True):
    """What a rule comes to."""

    rule: GuardRule
    names: Sequence[str]
    """What was found; empty for nothing."""
    texts: tuple[str, ...] | None = None
    """The texts as the service wants them."""
    open: bool = False
    """True where there is no verdict, and the rule lets pass."""


Services = Mapping[tuple[object, ...], Service]
"""The services of a configuration, by what rules say of them."""


def services_of(section: GuardSection, resolve: Callable[[str], str]) -> Services:
    """Return the services of a configuration; `resolve` reads a key. Raises NoKey."""
    found: dict[tuple[object, ...], Service] = {}
    for rule in section.rules:
        if rule.url is None:
            continue
        try:
            key = None if rule.key is None else resolve(rule.key)
        except (LookupError, OSError):
            raise NoKey(f"guard: the key of rule `{rule.name}` is not there") from None
        found[_service_name(rule)] = Service(
            url=rule.url,
            shape=rule.shape or "openai",
            model=rule.model,
            key=key,
            timeout_s=(rule.timeout_ms or _TIMEOUT_MS) / 1000,
        )
    return found


class AsksTarget(Protocol):
    """Whoever asks a model of ours."""

    async def judge(
        self, caller: Caller, target_id: str, texts: Sequence[str], timeout_s: float, direction: Direction
    ) -> Said:
        """Return what it says of the texts. Raises ServiceUnavailable."""
        ...


class Moderation:
    """The services of the configuration, for one process."""

    def __init__(
        self,
        services: Services,
        client: ModerationClient,
        target: AsksTarget | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`target` asks a model of ours."""
        self._breakers = Breakers(_BREAKER, clock)
        self._client = client
        self._target = target
        self.services = services
        """Replaced whole where a configuration is read anew."""

    async def aclose(self) -> None:
        await self._client.aclose()

    async def judge(
        self,
        caller: Caller,
        rules: Sequence[GuardRule],
        verdict: Verdict,
        walk: Walk,
        shown: Callable[[Text], str] | None = None,
    ) -> Verdict:
        """Return the verdict with what services say of the texts that were walked over. `shown` is what a service at an address is shown of a
        text, where only own engines may have all of it. Raises GuardUnavailable.
        """
        texts = [text for text in walk.texts if text.what in _READ]
        judged: list[_Judged] = []
        for rule in rules:
            if rule.input == "mask":
                # One after the other: the next one is asked about what this one made of it.
                said = await self._one(caller, rule, texts, shown)
                judged.append(said)
                verdict = _with_texts(verdict, said, _of(rule, texts))
        others = [rule for rule in rules if rule.input != "mask"]
        judged += await asyncio.gather(*(self._one(caller, rule, texts, shown) for rule in others))
        body = walk.written()
        verdict = _with_findings(verdict, judged)
        return verdict if body is None else msgspec.structs.replace(verdict, body=body)

    def again_s(self, caller: Caller, rule: GuardRule) -> float:
        """Return the seconds for which a rule's service is left alone; 0 where it is asked."""
        return self._breakers.again_s(_breaker_name(rule), caller.scope)

    async def judge_answer(
        self, caller: Caller, rules: Sequence[GuardRule], texts: Sequence[str], shown: Callable[[str], str]
    ) -> tuple[Finding, ...]:
        """Return what services find in the texts of an answer. `shown` is what one at an address is shown of a text. Raises GuardUnavailable."""

        async def one(rule: GuardRule) -> Finding | None:
            asked = texts if rule.url is None else [shown(text) for text in texts]
            judged = await self._judged(caller, rule, asked, "output")
            if judged is None:
                return Finding(rule.name, rule.kind, "open", 1, "output")
            names = judged[1]
            does: Action = "block" if rule.output == "block" else "flag"
            return Finding(rule.name, rule.kind, does, len(names), "output") if names else None

        return tuple([each for each in await asyncio.gather(*map(one, rules)) if each is not None])

    async def _one(
        self, caller: Caller, rule: GuardRule, texts: Sequence[Text], shown: Callable[[Text], str] | None
    ) -> _Judged:
        of = _of(rule, texts)
        asked = [text.text for text in of] if shown is None or rule.url is None else [shown(text) for text in of]
        if not asked:
            return _Judged(rule, ())
        judged = await self._judged(caller, rule, asked, "input")
        if judged is None:
            return _Judged(rule, (), open=True)
        said, names = judged
        return _Judged(rule, names, _instead(said, asked, of))

    async def _judged(
        self, caller: Caller, rule: GuardRule, asked: Sequence[str], direction: Direction
    ) -> tuple[Said, list[str]] | None:
        """Return what is said of the texts, and what of it counts; None where there is no verdict, and the rule lets pass."""
        try:
            said = await self._said(caller, rule, asked, direction)
            return said, _names(rule, said, asked)
        except (ServiceUnavailable, OddReply, KeyError) as error:
            if rule.on_error == "open":
                return None
            why = "its service is not known" if isinstance(error, KeyError) else error
            answer = direction == "output"
            _log.info("guard: %s was not judged by rule %s: %s", "an answer" if answer else "a request", rule.name, why)
            again_s = self.again_s(caller, rule)
            raise GuardUnavailable.by(rule.name, answer=answer, retry_after_s=max(1.0, again_s)) from None

    async def _said(self, caller: Caller, rule: GuardRule, asked: Sequence[str], direction: Direction) -> Said:
        permit = self._breakers.try_acquire(_breaker_name(rule), caller.scope)
        if permit is None:
            raise ServiceUnavailable("left_alone", "it failed several times in a row, and is not asked for a while")
        try:
            said = await self._asked(caller, rule, asked, direction)
        except ServiceUnavailable as error:
            _report(permit, rule, error)
            raise
        except BaseException:
            permit.abandon()
            raise
        permit.success()
        return said

    async def _asked(self, caller: Caller, rule: GuardRule, asked: Sequence[str], direction: Direction) -> Said:
        if rule.target is None:
            return await self._client.judge(self.services[_service_name(rule)], asked, direction)
        if self._target is None:
            raise ServiceUnavailable("connection", "no model of this gateway can be asked here")
        timeout_s = (rule.timeout_ms or _TIMEOUT_MS) / 1000
        return await self._target.judge(caller, rule.target, asked, timeout_s, direction)


def _report(permit: Permit, rule: GuardRule, error: ServiceUnavailable) -> None:
    """Report a call without a verdict. What the caller's own texts may have caused keeps nobody else from the service."""
    match error.reason:
        case "too_long":
            permit.abandon()
        case "deadline":
            permit.silent()
        case _:
            permit.failure(of_everyone=error.reason == "connection" and rule.target is None)


def _instead(said: Said, asked: Sequence[str], texts: Sequence[Text]) -> tuple[str, ...] | None:
    """Return the texts that a service gives back; what it left as it was shown is as it was written."""
    if said.texts is None:
        return None
    pairs = zip(said.texts, asked, texts, strict=False)
    return tuple(text.text if new == old else new for new, old, text in pairs)


def read_whole(wire: str, body: bytes) -> Walk:
    """Return a walk over all of a body. Raises TooMuch."""
    walk = Walk(wire, body)
    for part in walk.parts():
        walk.over(part)
    return walk


def _breaker_name(rule: GuardRule) -> str:
    return rule.url or f"target {rule.target}"


def _service_name(rule: GuardRule) -> tuple[object, ...]:
    """Return what tells a rule's service from another."""
    return (rule.url, rule.shape, rule.model, rule.key, rule.timeout_ms)


def _of(rule: GuardRule, texts: Sequence[Text]) -> list[Text]:
    everything = rule.input == "own"
    return [text for text in texts if text.role in rule.looks_at and (text.new or everything)]


def _names(rule: GuardRule, said: Said, asked: Sequence[str]) -> list[str]:
    names = found(said, rule.categories, rule.scores or {})
    if said.texts is not None and list(said.texts) != list(asked):
        names.append(_CHANGED)
    return names


def _with_texts(verdict: Verdict, said: _Judged, texts: Sequence[Text]) -> Verdict:
    """Put a service's texts in place of those it was asked about. What may not be changed goes to own engines."""
    for text, instead in zip(texts, said.texts or (), strict=False):
        if text.text == instead:
            continue
        if text.fixed:
            verdict = msgspec.structs.replace(verdict, own=True)
        else:
            text.put(instead)
    return verdict


def _with_findings(verdict: Verdict, judged: Sequence[_Judged]) -> Verdict:
    findings: list[Finding] = list(verdict.findings)
    blocked = dict.fromkeys(verdict.blocked)
    own = verdict.own
    for each in judged:
        rule = each.rule
        if each.open:
            findings.append(Finding(rule.name, rule.kind, "open", 1))
        if not each.names:
            continue
        action: Action = "flag"
        if rule.input == "block" or (rule.input == "mask" and _CHANGED not in each.names):
            action = "block"
            blocked[rule.name] = None
        elif rule.input == "own":
            action, own = "own", True
        elif rule.input == "mask":
            action = "mask"
        findings.append(Finding(rule.name, rule.kind, action, len(each.names)))
    return msgspec.structs.replace(verdict, blocked=tuple(blocked), own=own, findings=tuple(findings))
