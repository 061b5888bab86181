"""Asking plug-ins: all at once, closed unless the rule says otherwise, and of what was sent before for its masks alone."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from guard.guard_config import GuardRule
from guard.plugin_verdicts import Question, questions
from guard.walker import Walk
from proxy.admit.plugin_rules import ask_plugins
from proxy.errors import GuardUnavailable, PluginUnavailable
from weighbridge.plugins import RequestFacts, Text, Verdict

FACTS = RequestFacts(request_id="r")


class Judges:
    def __init__(self, said: Verdict | None, together: asyncio.Barrier | None = None) -> None:
        self._said = said
        self._together = together

    async def judge(self, texts: Sequence[Text], facts: RequestFacts) -> Verdict:
        assert facts is FACTS
        if self._together is not None:
            await self._together.wait()
        if self._said is None:
            raise PluginUnavailable(f"of {texts[0].value}")
        return self._said


def asked(*uses: str, **fields: Any) -> list[Question]:
    rules = [
        GuardRule.model_validate({"name": f"r-{use}", "kind": "plugin", "use": use, "input": "flag", **fields})
        for use in uses
    ]
    body = msgspec.json.encode({"messages": [{"role": "user", "content": "a word"}]})
    return questions(rules, Walk("chat", body).all())


async def test_all_are_asked_at_once() -> None:
    """Two that wait for each other both answer, each to its own question."""
    together = asyncio.Barrier(2)
    guards = {name: Judges(Verdict(name=name), together) for name in ("a", "b")}
    found = await ask_plugins(guards, asked("a", "b"), FACTS, sent=False)
    assert [(question.rule.name, said and said.name) for question, said in found] == [("r-a", "a"), ("r-b", "b")]


@pytest.mark.parametrize("use", ["silent", "nowhere"])
async def test_one_without_an_answer_is_closed(use: str) -> None:
    """One that does not run here, too. The rule is named, and no text."""
    with pytest.raises(GuardUnavailable, match=f"`r-{use}`") as refused:
        await ask_plugins({"silent": Judges(None)}, asked(use), FACTS, sent=False)
    assert "word" not in str(refused.value)


@pytest.mark.parametrize(("on_error", "sent"), [("open", False), ("closed", True)])
async def test_a_missing_answer_may_be_no_matter(on_error: str, *, sent: bool) -> None:
    """Where the rule says so, and of a request that is sent already."""
    ((_, said),) = await ask_plugins({"a": Judges(None)}, asked("a", on_error=on_error), FACTS, sent=sent)
    assert said is None
