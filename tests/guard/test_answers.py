"""The texts of an answer: arguments as they are meant, and JSON with all its texts."""

import asyncio
import json
import random
from typing import Any, Final

import pytest

from guard.answers import Answer, Blocked
from guard.guard_config import GuardSection
from guard.inspector import Guard
from guard.ruleset import Ruleset

CARD: Final = "4111 1111 1111 1111"
OWN: Final = 'o"wn\\@example.com'
GUARD: Final = Guard(
    GuardSection.model_validate(
        {
            "rules": [
                {"name": "p", "kind": "pii", "entities": ["email", "us_ssn", "card"], "output": "mask"},
                {"name": "birds", "kind": "words", "words": ["bluebird", "blue bird a@example.com"], "output": "flag"},
                {"name": "end", "kind": "words", "words": ["stop here"], "output": "block"},
            ]
        }
    ),
    b"k" * 32,
)


@pytest.fixture(scope="module")
def rules() -> Ruleset:
    return asyncio.run(GUARD.rules_for(None))


def answer(rules: Ruleset) -> tuple[Answer, str]:
    """Return an answer, and a mask of what its caller sent."""
    own = GUARD.masks(rules, "team_a")
    return Answer(rules, own, GUARD.masks(rules, "team_a")), own.mask("email", OWN)


@pytest.mark.parametrize("escaped", [False, True])
def test_case_13_arguments_stay_json_whatever_they_are_cut_to(rules: Ruleset, escaped: bool) -> None:
    """LL#31950: values within escapes, numbers that become strings, words that are names; and any piece gives the same."""
    made, mask = answer(rules)
    arguments: Any = {
        "to": f"<{mask}>",
        "number": 4111111111111111,
        "ssn": "078-05-1120",
        "text": f'é "q" \n{CARD}\u2028😀 \t\\n',
        "list": [1, 2.5, None, True, {"x": "a@example.com"}, "\ud83d"],
    }
    written = json.dumps(arguments, ensure_ascii=escaped) if escaped else json.dumps(arguments)
    whole = made.whole(written, "arguments")
    said = json.loads(whole)
    assert said["to"] == f"<{OWN}>"
    assert said["number"].startswith("[CARD_")
    assert said["ssn"].startswith("[SSN_")
    assert said["text"].startswith('é "q" \n[CARD_')
    assert said["text"].endswith("\u2028😀 \t\\n")
    assert said["list"][:4] == [1, 2.5, None, True]
    assert said["list"][5] == "\ud83d"
    for seed in range(200):
        chance = random.Random(seed)
        voice, rest, out = answer(rules)[0].voice("arguments"), written, ""
        while rest:
            size = chance.randint(1, 6)
            out += voice.feed(rest[:size])
            rest = rest[size:]
        assert out + voice.finish() == whole


@pytest.mark.parametrize(
    "odd", ["", "{", '{"a', '{"a": "b\\', '{"a": "\\u12', '"\\x"', "no json at all", '{"a": "\\ud83d']
)
def test_arguments_that_are_no_json_go_out_all_the_same(rules: Ruleset, odd: str) -> None:
    """Some models break off, and some write none."""
    made, _ = answer(rules)
    said = made.whole(odd, "arguments")
    assert said.startswith(odd[:2].rstrip("\\"))
    assert CARD not in made.whole(f'{{"a": "{CARD}', "arguments")


def test_all_texts_of_json_are_looked_at_but_what_both_sides_go_by(rules: Ruleset) -> None:
    """A field that nobody has heard of yet hides nothing."""
    made, mask = answer(rules)
    said = made.tree(
        {
            "id": "a@example.com",
            "new": [{"deep": f"to {mask} and a@example.com"}],
            "logprobs": {"content": [{"token": "a@example.com"}]},
            "input": {"a": "a@example.com", "n": 1},
            "thinking": "a@example.com",
            "signature": "c2ln",
            "count": 3,
        }
    )
    assert said["id"] == "a@example.com"
    assert said["new"][0]["deep"].startswith(f"to {OWN} and [EMAIL_")
    assert said["logprobs"] is None
    assert said["input"]["n"] == 1
    assert said["input"]["a"].startswith("[EMAIL_")
    assert (said["signature"], said["count"]) == ("", 3)


def test_of_two_rules_over_one_place_the_stricter_counts(rules: Ruleset) -> None:
    """And what is told alone stays."""
    made, _ = answer(rules)
    assert made.whole("a bluebird sings") == "a bluebird sings"
    assert made.whole("the blue bird a@example.com sings").startswith("the [EMAIL_")
    assert {(each.name, each.action) for each in made.findings} == {("birds", "flag"), ("email", "mask")}


def test_what_ends_an_answer_says_what_may_still_go_out(rules: Ruleset) -> None:
    """With the caller's values in it."""
    made, mask = answer(rules)
    with pytest.raises(Blocked) as ended:
        made.whole(f"I told {mask} to stop here, and on")
    assert ended.value.before == f"I told {OWN} to "
    assert ended.value.args == ("end",)
