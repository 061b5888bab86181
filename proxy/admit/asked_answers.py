"""Rules that ask somebody about an answer: nothing of it goes out without their verdict, unless a rule says so."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from accounts.caller import Caller
from guard.guard_config import GuardRule
from guard.plugin_verdicts import answers_question, does_in_answer
from guard.ruleset import Finding, Masking, Ruleset
from proxy.admit.moderating import Moderation
from proxy.admit.plugin_rules import PluginGuards, ask_plugins
from proxy.errors import GuardUnavailable
from weighbridge.plugins import RequestFacts


class AnswerVerdict(NamedTuple):
    """What all say of some texts of an answer."""

    blocked: bool
    findings: tuple[Finding, ...]


class AskedOfAnswers:
    """Whoever is asked about one request's answer."""

    def __init__(
        self,
        rules: Ruleset,
        moderation: Moderation | None,
        plugins: PluginGuards,
        caller: Caller,
        facts: RequestFacts,
        masks: Callable[[], Masking],
    ) -> None:
        """`masks` makes those of what services are not shown."""
        self._rules = rules
        self._services = [rule for rule in rules.of_answers if rule.kind == "http"]
        self._plugins = [rule for rule in rules.of_answers if rule.kind == "plugin"]
        self._moderation = moderation
        self._guards = plugins
        self._caller = caller
        self._facts = facts
        self._masks = masks

    def check(self) -> None:
        """Raise GuardUnavailable where the answer could not be judged now: it would be paid for, and not given."""
        for rule in self._services:
            again_s = 0.0 if self._moderation is None else self._moderation.again_s(self._caller, rule)
            if again_s > 0.0 and rule.on_error == "closed":
                raise GuardUnavailable.by(rule.name, answer=True, retry_after_s=max(1.0, again_s))

    async def judge(self, texts: Sequence[str]) -> AnswerVerdict:
        """Return what they say of the texts. Raises GuardUnavailable."""
        if not texts:
            return AnswerVerdict(blocked=False, findings=())
        of_plugins, of_services = await asyncio.gather(
            self._by_plugins(self._plugins, texts), self._by_services(self._services, texts)
        )
        found = (*of_plugins, *of_services)
        return AnswerVerdict(any(each.action == "block" for each in found), found)

    async def _by_plugins(self, rules: Sequence[GuardRule], texts: Sequence[str]) -> list[Finding]:
        asked = [answers_question(rule, texts) for rule in rules]
        found: list[Finding] = []
        for question, said in await ask_plugins(self._guards, asked, self._facts, answer=True):
            does = "open" if said is None else does_in_answer(question.rule, said)
            if does != "off":
                count = max(1, 0 if said is None else len(said.spans))
                found.append(Finding(question.rule.name, "plugin", does, count, "output"))
        return found

    async def _by_services(self, rules: Sequence[GuardRule], texts: Sequence[str]) -> tuple[Finding, ...]:
        if not rules:
            return ()
        if self._moderation is None:
            raise GuardUnavailable("The services by which answers are judged cannot be asked here.", retry_after_s=5.0)
        masks = self._masks()
        return await self._moderation.judge_answer(
            self._caller, rules, texts, lambda text: self._rules.hidden_answer(text, masks)
        )
