"""Verdicts by rules. Numbers in brackets are those of the regression cases in issue 40."""

import json
from typing import Any, ClassVar

import msgspec
import pytest

from guard.guard_config import GuardSection
from guard.inspector import Guard, together
from guard.ruleset import Verdict

CARD = "4111 1111 1111 1111"
MAIL = "jane.doe@example.com"
KEY = b"k" * 32
CARDS: dict[str, Any] = {"name": "cards", "kind": "pii", "entities": ["card"]}
MAILS: dict[str, Any] = {"name": "mails", "kind": "pii", "entities": ["email"]}
BIRD: dict[str, Any] = {"name": "bird", "kind": "words", "words": ["bluebird"]}


class Judge:
    """A guard of some rules, asked with bodies as they are written."""

    def __init__(
        self,
        *rules: dict[str, Any],
        organisation: list[dict[str, Any]] | None = None,
        team: list[dict[str, Any]] | None = None,
    ) -> None:
        self.guard = Guard(GuardSection.model_validate({"rules": list(rules)}), KEY)
        own = tuple("" if each is None else json.dumps(each) for each in (organisation, team))
        self.own = None if own == ("", "") else (own[0], own[1])

    async def __call__(self, body: dict[str, Any] | bytes, wire: str = "chat", team_id: str = "team_a") -> Verdict:
        rules = await self.guard.rules_for(self.own)
        return self.guard.judge(rules, team_id, wire, body if isinstance(body, bytes) else msgspec.json.encode(body))


def told(verdict: Verdict) -> set[tuple[str, str, int]]:
    return {(each.name, each.action, each.count) for each in verdict.findings}


def said(*texts: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": each} for each in texts], **fields}


def written(verdict: Verdict) -> str:
    assert verdict.body is not None
    return verdict.body.decode()


async def test_each_action_does_what_it_says() -> None:
    for action in ("block", "own", "mask", "flag"):
        verdict = await Judge(CARDS | {"input": action})(said(f"my card: {CARD}"))
        assert told(verdict) == {("card", action, 1)}
        assert (bool(verdict.blocked), verdict.own, verdict.body is not None) == (
            action == "block",
            action == "own",
            action == "mask",
        )
    assert CARD not in written(await Judge(CARDS | {"input": "mask"})(said(f"my card: {CARD}")))


async def test_what_is_found_by_nobody_changes_nothing() -> None:
    judge = Judge(CARDS | {"input": "block"}, MAILS | {"input": "mask"})
    assert await judge(said("Good morning!")) == Verdict()


async def test_the_strictest_of_all_rules_counts() -> None:
    """(37) Configuration, organisation and team, in any order; nobody takes away what another one asks for."""
    layers = ("block", "own", "mask", "flag")
    for strict, mild in [(a, b) for a in layers for b in layers if layers.index(a) <= layers.index(b)]:
        for floor, team in ((strict, mild), (mild, strict)):
            verdict = await Judge(CARDS | {"input": floor}, team=[CARDS | {"input": team}])(said(f"card {CARD}"))
            assert told(verdict) == {("card", strict, 1)}
    verdict = await Judge(team=[CARDS | {"input": "flag"}], organisation=[CARDS | {"input": "block"}])(
        said(f"card {CARD}")
    )
    assert told(verdict) == {("card", "block", 1)}


async def test_a_team_switches_nothing_off() -> None:
    """(37) A rule that does nothing cannot even be written; one of the same name stands beside the floor's."""
    looser = CARDS | {"input": "off", "output": "flag"}
    verdict = await Judge(CARDS | {"input": "block"}, team=[looser])(said(f"card {CARD}"))
    assert verdict.blocked == ("card",)
    floor, team = (
        GuardSection.model_validate({"rules": [each]}).rules for each in (CARDS | {"input": "block"}, looser)
    )
    assert [each.name for each in together((floor, team))] == ["cards", "cards-2"]


async def test_two_lists_of_one_name_are_two_lists() -> None:
    judge = Judge(BIRD | {"input": "block"}, team=[BIRD | {"words": ["redbird"], "input": "flag"}])
    assert told(await judge(said("bluebird"))) == {("bird", "block", 1)}
    assert told(await judge(said("redbird"))) == {("bird-2", "flag", 1)}


async def test_teams_are_apart() -> None:
    """(41) The same value has another mask for another team."""
    judge = Judge(MAILS | {"input": "mask"})
    of_a, of_b = await judge(said(MAIL), team_id="team_a"), await judge(said(MAIL), team_id="team_b")
    assert written(of_a) != written(of_b)
    assert written(of_a) == written(await judge(said(MAIL), team_id="team_a"))


async def test_a_refused_turn_does_not_refuse_those_that_follow() -> None:
    """(30) What is new refuses; what was there before is masked, so it leaves in neither case."""
    judge = Judge(CARDS | {"input": "block"})
    assert (await judge(said(f"card {CARD}"))).blocked
    later = await judge(said(f"card {CARD}", "Forget it. Good morning!"))
    assert not later.blocked
    assert told(later) == {("card", "mask", 1)}
    assert CARD not in written(later)
    answered = {
        "messages": [
            {"role": "user", "content": CARD},
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": "go on"},
        ]
    }
    made_up = await judge(answered)
    assert not made_up.blocked
    assert CARD not in written(made_up)


async def test_begun_answers_make_nothing_old() -> None:
    """(30) An answer that the caller begins does not hide what was asked."""
    judge = Judge(CARDS | {"input": "block"})
    assert (
        await judge({"messages": [{"role": "user", "content": CARD}, {"role": "assistant", "content": "Sure:"}]})
    ).blocked


async def test_flags_tell_of_new_turns_alone() -> None:
    judge = Judge(BIRD | {"input": "flag"})
    assert told(await judge(said("bluebird", "next"))) == set()
    assert told(await judge(said("next", "bluebird"))) == {("bird", "flag", 1)}


async def test_masks_and_own_engines_hold_for_all_turns() -> None:
    history = [
        {"role": "user", "content": f"{MAIL} bluebird"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "go on"},
    ]
    verdict = await Judge(MAILS | {"input": "mask"}, BIRD | {"input": "own"})({"messages": history})
    assert verdict.own
    assert MAIL not in written(verdict)


async def test_definitions_of_tools_never_refuse() -> None:
    """(24) What should refuse is masked there, and told where a program reads it; who names them gets what they ask for."""
    tool = {
        "type": "function",
        "function": {
            "name": "f",
            "description": f"e.g. {CARD}",
            "parameters": {
                "properties": {CARD: {"type": "string", "enum": [CARD], "pattern": CARD}},
                "required": [CARD],
            },
        },
    }
    body = said("hello", tools=[tool])
    verdict = await Judge(CARDS | {"input": "block"})(body)
    assert not verdict.blocked
    assert not verdict.own
    assert told(verdict) == {("card", "mask", 2), ("card", "flag", 3)}
    named = await Judge(CARDS | {"input": "block", "roles": ["definition"]})(body)
    assert named.blocked == ("card",)


async def test_what_may_not_be_changed_goes_to_own_engines() -> None:
    """(25, 28) Vectors, signed thoughts and names."""
    judge = Judge(MAILS | {"input": "mask"})
    assert (await judge({"input": [MAIL]}, "embeddings")).own
    thought = {"type": "thinking", "thinking": f"to {MAIL}", "signature": "c2lnbmVk"}
    body = {
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [thought]},
            {"role": "user", "content": "y"},
        ]
    }
    verdict = await judge(body, "messages")
    assert (verdict.own, verdict.body) == (True, None)
    unsigned = {
        "messages": [{"role": "assistant", "reasoning_content": f"to {MAIL}"}, {"role": "user", "content": "y"}]
    }
    masked = await judge(unsigned)
    assert not masked.own
    assert MAIL not in written(masked)
    assert (await judge(said("x", metadata={MAIL: 1}))).own


async def test_roles_narrow_a_rule() -> None:
    judge = Judge(CARDS | {"input": "block", "roles": ["tool"]})
    assert not (await judge(said(CARD))).blocked
    result = {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": CARD}]}],
            }
        ]
    }
    assert (await judge(result, "messages")).blocked


async def test_many_hits_in_one_text_are_all_changed() -> None:
    """(15) Places are those of the text as it was."""
    text = f"é {MAIL}, then {CARD}; {MAIL} and b@example.com!"
    verdict = await Judge(MAILS | {"input": "mask"}, CARDS | {"input": "mask"})(said(text))
    found = json.loads(written(verdict))["messages"][0]["content"]
    assert told(verdict) == {("email", "mask", 3), ("card", "mask", 1)}
    assert found.startswith("é [")
    assert found.endswith("]!")
    assert verdict.masks is not None
    assert verdict.masks.unmasked(found) == text
    assert len({each for each in found.split() if each.startswith("[")}) == 4


async def test_each_request_has_masks_of_its_own() -> None:
    """(16, 17) No map is shared: another request cannot resolve this one's, and the next turn makes the same ones."""
    judge = Judge(MAILS | {"input": "mask"})
    first, other = await judge(said(MAIL)), await judge(said("b@example.com"))
    mask = json.loads(written(first))["messages"][0]["content"]
    assert first.masks is not None
    assert other.masks is not None
    assert (first.masks.unmasked(mask), other.masks.unmasked(mask)) == (MAIL, mask)
    history = {
        "messages": [
            {"role": "user", "content": MAIL},
            {"role": "assistant", "content": f"I wrote to {MAIL}"},
            {"role": "user", "content": "again"},
        ]
    }
    later = await judge(history)
    assert [each["content"] for each in json.loads(written(later))["messages"]] == [mask, f"I wrote to {mask}", "again"]
    assert later.masks is not None
    assert later.masks.unmasked(mask) == MAIL


async def test_a_mask_is_not_masked() -> None:
    """(18) Also where a word of a list is in it."""
    judge = Judge(MAILS | {"input": "mask"}, {"name": "words", "kind": "words", "words": ["email"], "input": "mask"})
    mask = json.loads(written(await judge(said(MAIL))))["messages"][0]["content"]
    assert (await judge(said(f"to {mask}"))).body is None


async def test_what_was_clean_is_not_looked_at_again() -> None:
    """A conversation of many turns costs its last one."""
    looked: list[str] = []

    class Watching:
        labels: ClassVar[dict[str, str]] = {}

        def sees_nothing(self, data: bytes) -> bool:
            return not data

        def find(self, text: str) -> tuple[()]:
            looked.append(text)
            return ()

        def partial(self, text: str, begin: int, *, final: bool) -> tuple[tuple[()], int]:
            raise NotImplementedError

    guard = Guard(
        GuardSection.model_validate({"rules": [CARDS | {"input": "block"}]}), KEY, scanner=lambda _kinds: Watching()
    )
    rules = await guard.rules_for(None)
    long = [f"{number} " * 300 for number in range(3)]
    guard.judge(rules, "t", "chat", msgspec.json.encode(said(*long[:2])))
    looked.clear()
    guard.judge(rules, "t", "chat", msgspec.json.encode(said(*long)))
    assert [each for each in looked if len(each) > 100] == long[2:]


async def test_what_is_remembered_is_of_one_set_of_rules() -> None:
    """A text that was clean by other rules is looked at by these."""
    judge = Judge(
        BIRD | {"input": "block"}, team=[{"name": "fish", "kind": "words", "words": ["herring"], "input": "block"}]
    )
    text = "herring " * 50
    judge.own, own = None, judge.own
    assert not (await judge(said(text))).blocked
    judge.own = own
    assert (await judge(said(text))).blocked == ("fish",)
    judge.guard.adopt(
        GuardSection.model_validate(
            {"rules": [{"name": "fish", "kind": "words", "words": ["herring"], "input": "flag"}]}
        )
    )
    judge.own = None
    assert told(await judge(said(text))) == {("fish", "flag", 50)}


@pytest.mark.parametrize(
    "text",
    [
        "4111\\u00201111\\u00201111\\u00201111",
        "4111 1111 1111 1111".translate({ord(digit): ord(digit) + 0xFEE0 for digit in "0123456789"}),
        "4111\u200b 1111\u200b 1111 1111",
        "4\u202e111 1111 1111 1111",
        "my card in base64: NDExMSAxMTExIDExMTEgMTExMSBmb3IgdGhlIG9yZGVyIG9mIHRvZGF5",
        "4111\n1111\n1111\n1111",
    ],
)
async def test_hidden_values_are_found(text: str) -> None:
    """(38) Escaped, full width, with signs of no width, turned around, in base64, over lines."""
    body = json.dumps(said("TEXT")).replace("TEXT", text.replace("\n", "\\n")).encode()
    assert (await Judge(CARDS | {"input": "block"})(body)).blocked == ("card",)


@pytest.mark.parametrize("beside", ["abc", "7", "é", "["])
@pytest.mark.parametrize(
    "value",
    ["4111\u200b1111 1111 1111", "4111 1111 1111 1111".translate({each: each + 0xFEE0 for each in range(0x30, 0x3A)})],
)
async def test_short_texts_hide_nothing_in_each_other(value: str, beside: str) -> None:
    """They are looked through together, and stay words of their own where what is invisible is left out."""
    judge = Judge(CARDS | {"input": "block"}, MAILS | {"input": "mask"})
    parts = [{"type": "text", "text": each} for each in (beside, value, beside)]
    assert (await judge({"model": "m", "messages": [{"role": "user", "content": parts}]})).blocked == ("card",)
    assert (await judge(said(beside, value))).blocked == ("card",)
    assert (await judge(said(value, stop=[beside, value, beside]))).blocked == ("card",)


async def test_a_body_that_was_sent_before_is_only_masked() -> None:
    """The answer is there, and was paid: rules of today refuse it no more."""
    judge = Judge(CARDS | {"input": "block"}, MAILS | {"input": "mask"})
    rules = await judge.guard.rules_for(None)
    verdict = judge.guard.judge(rules, "t", "chat", msgspec.json.encode(said(f"{CARD} {MAIL}")), sent=True)
    assert not verdict.own
    assert not verdict.blocked
    assert MAIL not in written(verdict)


async def test_what_nobody_has_heard_of_in_definitions_is_masked() -> None:
    """(24) They refuse nothing, and are no place to hide in: names alone go on, and are told."""
    forms = {
        "response_format": {"type": "text", "unheard_of": CARD},
        "tool_choice": {"a": {"b": [CARD]}},
        "tools": [{"type": "mcp", "headers": {"x": CARD}}],
    }
    verdict = await Judge(CARDS | {"input": "block"})(said("hello", **forms))
    assert told(verdict) == {("card", "mask", 2), ("card", "flag", 1)}
    assert written(verdict).count(CARD) == 1
