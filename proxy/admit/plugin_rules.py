"""Rules that ask a plug-in: nothing goes on without its verdict, unless the rule says so."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from accounts.caller import Caller
from guard.plugin_verdicts import Question
from proxy.errors import GuardUnavailable, PluginUnavailable
from proxy.parse.parsed_request import ParsedRequest
from weighbridge.plugins import RequestFacts, Text, Verdict

_log: Final = logging.getLogger("weighbridge.guard")


class JudgesTexts(Protocol):
    """A guard of a plug-in."""

    async def judge(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        """Return its verdict on all of these texts. Raises PluginUnavailable where it gives none."""
        ...


PluginGuards = Mapping[str, JudgesTexts]
"""Guards of plug-ins, by name."""
NO_PLUGINS: Final[PluginGuards] = {}


def facts_of(request_id: str, caller: Caller, parsed: ParsedRequest) -> RequestFacts:
    """Return what a guard is told of a request beside its texts."""
    request = parsed.request
    return RequestFacts(
        request_id=request_id,
        organisation_id=caller.organisation_id,
        team_id=caller.team_id,
        key_id=caller.key_id,
        operation=request.operation,
        model=request.alias or request.model,
        tier=request.tier,
        stream=request.stream,
        input_tokens=parsed.input_tokens,
        tools=request.tools,
        images=request.images,
    )


async def ask_plugins(
    guards: PluginGuards, asked: Sequence[Question], facts: RequestFacts, *, sent: bool = False, answer: bool = False
) -> list[tuple[Question, Verdict | None]]:
    """Return the verdicts, None for one that is missing and lets pass. All are asked at once, so none sees what another one made of the
    texts. For a request that was `sent` before a missing one is no matter; `answer`: the texts are an answer's. Raises GuardUnavailable.
    """
    said = await asyncio.gather(*(_one(guards, question, facts, sent=sent, answer=answer) for question in asked))
    return list(zip(asked, said, strict=True))


async def _one(
    guards: PluginGuards, question: Question, facts: RequestFacts, *, sent: bool, answer: bool
) -> Verdict | None:
    rule = question.rule
    guard = guards.get(rule.use or "")
    why: object = "its plug-in does not run here"
    if guard is not None:
        try:
            return await guard.judge(question.told, facts)
        except PluginUnavailable as unavailable:
            why = unavailable
    if sent or rule.on_error == "open":
        return None
    _log.info("guard: %s was not judged by rule %s: %s", "an answer" if answer else "a request", rule.name, why)
    raise GuardUnavailable.by(rule.name, answer=answer)
