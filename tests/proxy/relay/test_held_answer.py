"""Events that wait for a verdict: when they are asked about, what goes out, and in which order."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from guard.guard_config import GuardSection
from guard.inspector import Guard
from guard.ruleset import Finding
from proxy.admit.asked_answers import AnswerVerdict
from proxy.relay.guarded_answer import GuardedAnswer
from proxy.relay.held_answer import HeldAnswer
from tests.proxy.relay.test_guarded_answer import DIALECTS, USED, event, guarded, said_by, texts
from tests.scenarios.test_guarded_answers import RULES, Script


class Asked:
    """Blocks what is awful, and remembers what it was asked."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def judge(self, said: Sequence[str]) -> AnswerVerdict:
        self.texts += said
        found = tuple(Finding("house", "http", "block", 1, "output") for each in said if "awful" in each)
        return AnswerVerdict(bool(found), found)


def held(window: int | None) -> tuple[GuardedAnswer, HeldAnswer, Asked]:
    rule = {"name": "house", "kind": "http", "url": "http://house", "output": "block", "window_chars": window}
    rules = asyncio.run(Guard(GuardSection.model_validate({"rules": [*RULES, rule]}), b"k" * 32).rules_for(None))
    found, _ = guarded(rules)
    asked: Any = Asked()
    guard = GuardedAnswer(msgspec.structs.replace(found, asks=asked), 1, lambda: USED, in_blocks=False)
    assert guard.gathered is not None
    return guard, HeldAnswer(guard, guard.gathered, asked), asked


async def out_of(
    guard: GuardedAnswer, waiting: HeldAnswer, dialect: str, events: Sequence[Any]
) -> list[list[dict[str, Any]]]:
    """Return what goes out after each event, and at the end."""
    out = []
    for said in events:
        out.append(said_by(await waiting.let_out(guard.events([event(dialect, said)]), final=False)))
        if guard.blocked:
            return out
    rest = said_by(await waiting.let_out(guard.rest(), final=False))
    return [*out, rest + said_by(await waiting.let_out([], final=True))]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_all_waits_for_the_end_and_is_asked_about_once(dialect: str) -> None:
    """But for what says nothing; and what goes out then is what the guard let out."""
    guard, waiting, asked = held(None)
    _, events = DIALECTS[dialect](Script(text="One nice sentence after another. " * 40, arguments='{"a": "b"}'))
    *before, end = asyncio.run(out_of(guard, waiting, dialect, list(events)))
    assert all(texts(dialect, out) == ("", "") for out in before)
    assert texts(dialect, end) == ("One nice sentence after another. " * 40, '{"a": "b"}')
    assert sorted(set(asked.texts)) == sorted(asked.texts)
    assert not guard.blocked


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_window_goes_out_once_it_is_judged_and_none_of_one_that_is_blocked(dialect: str) -> None:
    """Then the wire's own end, once, with numbers that go on and a block that is closed."""
    guard, waiting, asked = held(600)
    nice = "One nice sentence after another. " * 40
    _, events = DIALECTS[dialect](Script(text=nice + "Now it is awful. " + "More and more. " * 60, most=20))
    out = asyncio.run(out_of(guard, waiting, dialect, list(events)))
    told = [said for each in out for said in each]
    text, _ = texts(dialect, told)
    assert len(text) >= 600
    assert nice.startswith(text)
    assert sum(bool(texts(dialect, each)[0]) for each in out) == len(asked.texts) - 1
    assert guard.blocked
    match dialect:
        case "chat":
            assert [said["choices"][0]["finish_reason"] for said in told if said["choices"]][-1] == "content_filter"
        case "messages":
            assert [said["type"] for said in told[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
        case _:
            assert [said["sequence_number"] for said in told] == list(range(len(told)))
            assert told[-1]["type"] == "response.incomplete"
    assert [each.name for each in guard.findings] == ["house"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_blocked_at_once_leaves_a_whole_stream(dialect: str) -> None:
    """Its beginning, which says nothing, and its end."""
    guard, waiting, _ = held(None)
    _, events = DIALECTS[dialect](Script(text="It is awful."))
    told = [said for each in asyncio.run(out_of(guard, waiting, dialect, list(events))) for said in each]
    assert texts(dialect, told) == ("", "")
    kinds = [said.get("type") for said in told]
    assert dialect != "messages" or (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert dialect != "responses" or (kinds[0], kinds[-1]) == ("response.created", "response.incomplete")
