"""What a plug-in is asked, and what its verdict comes to: it tightens and never loosens."""

from typing import Any

import msgspec
import pytest

from guard.guard_config import GuardRule
from guard.masks import Masks
from guard.plugin_verdicts import Question, questions, with_verdicts
from guard.ruleset import Finding, Verdict
from guard.walker import Walk
from weighbridge.plugins import Span
from weighbridge.plugins import Verdict as Said

LABELS = {"house": "HOUSE", "other": "OTHER", "email": "EMAIL"}


def rule(name: str = "house", **fields: Any) -> GuardRule:
    return GuardRule.model_validate({"name": name, "kind": "plugin", "use": "house", "input": "flag", **fields})


def walk_over(*messages: dict[str, Any], **fields: Any) -> Walk:
    return Walk("chat", msgspec.json.encode({"messages": list(messages), **fields})).all()


def said(*texts: str) -> Walk:
    roles = ("user", "assistant")
    return walk_over(*({"role": roles[at % 2], "content": text} for at, text in enumerate(texts)))


def masks() -> Masks:
    return Masks(b"k" * 32, "team_a", LABELS)


def found(word: str, question: Question, action: Any = "mask") -> Said:
    """Return a verdict with the places of a word."""
    spans = [
        Span(text=at, start=text.value.index(word), end=text.value.index(word) + len(word), kind="word")
        for at, text in enumerate(question.told)
        if word in text.value
    ]
    return Said(action=action if spans else "pass", spans=tuple(spans))


def test_it_is_asked_apart_of_what_may_refuse() -> None:
    """Earlier turns and definitions of tools are in the second question; texts have their role and place."""
    tool = {"type": "function", "function": {"name": "f", "description": "looks up", "parameters": {"type": "object"}}}
    walk = walk_over(
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [{"type": "text", "text": "second"}]},
        tools=[tool],
    )
    asked = {
        each.refuses: [(text.value, text.role, text.path) for text in each.told] for each in questions([rule()], walk)
    }
    assert ("second", "user", "messages[3].content[0].text") in asked[True]
    assert ("be brief", "system", "messages[0].content") in asked[True]
    assert {("first", "user", "messages[1].content"), ("yes", "assistant", "messages[2].content")} <= set(asked[False])
    assert "looks up" in {value for value, *_ in asked[False]}
    named = questions([rule(roles=["definition"])], walk)
    assert {text.role for each in named for text in each.told} == {"definition"}


@pytest.mark.parametrize(
    ("said_action", "of_rule", "does"),
    [
        ("pass", "block", None),
        ("flag", "flag", "flag"),
        ("flag", "mask", "mask"),
        ("flag", "own", "own"),
        ("flag", "block", "block"),
        ("mask", "flag", "mask"),
        ("mask", "own", "own"),
        ("mask", "block", "block"),
        ("own", "mask", "own"),
        ("own", "block", "block"),
        ("block", "flag", "block"),
        ("block", "mask", "block"),
    ],
)
def test_the_stricter_of_rule_and_plugin_counts(said_action: str, of_rule: str, does: str | None) -> None:
    """Neither of the two loosens the other."""
    (question,) = questions([rule(input=of_rule)], said("a word"))
    spans = () if said_action == "pass" else (Span(text=0, start=2, end=6, kind="word"),)
    verdict = with_verdicts(Verdict(), [(question, Said(action=said_action, spans=spans))], masks())  # type: ignore[arg-type]
    assert [each.action for each in verdict.findings] == ([] if does is None else [does])
    assert (verdict.blocked, verdict.own) == (("house",) if does == "block" else (), does == "own")
    assert (verdict.masks is not None) == (does == "mask")


def test_what_has_no_place_cannot_be_masked() -> None:
    """Of what is new it is refused; what was there before goes on, as the conversation has to."""
    walk = said("a word", "yes", "a word")
    verdict = with_verdicts(
        Verdict(), [(each, Said(action="flag")) for each in questions([rule(input="mask")], walk)], masks()
    )
    assert verdict.blocked == ("house",)
    assert verdict.findings == (Finding("house", "plugin", "block", 1),)


def test_what_refused_once_is_masked_in_the_turns_that_follow() -> None:
    """A conversation goes on, without what it was refused for."""
    walk = said("a word", "I cannot.", "hello")
    verdict = with_verdicts(
        Verdict(), [(each, found("word", each, "block")) for each in questions([rule()], walk)], masks()
    )
    assert verdict.blocked == ()
    assert b"word" not in (walk.written() or b"word")


def test_a_pass_takes_nothing_of_other_rules_away() -> None:
    """What was blocked, own or found stays so."""
    before = Verdict(blocked=("cards",), own=True, findings=(Finding("cards", "card", "block", 1),), masks=masks())
    (question,) = questions([rule()], said("a word"))
    assert with_verdicts(before, [(question, Said())], masks()) == before


def test_one_that_is_missing_and_lets_pass_is_told_once() -> None:
    """And opens nothing of the others."""
    asked = questions([rule(on_error="open"), rule("other")], said("a word", "yes", "a word"))
    answers = [(each, None if each.rule.name == "house" else found("word", each, "block")) for each in asked]
    verdict = with_verdicts(Verdict(), answers, masks())
    assert Finding("house", "plugin", "open", 1) in verdict.findings
    assert verdict.blocked == ("other",)


def test_a_place_within_a_mask_covers_all_of_it_and_leads_back_to_the_value() -> None:
    """What another rule masked is never torn: the answer gets the value back, and the provider neither."""
    made = masks()
    mask = made.mask("email", "jane@example.com")
    walk = said(f"write to {mask} now, or then")
    (question,) = questions([rule()], walk)
    spans = (
        Span(text=0, start=9, end=13, kind="word"),
        Span(text=0, start=12, end=9 + len(mask) + 4, kind="word"),
        Span(text=0, start=walk.texts[0].text.index("then"), end=walk.texts[0].text.index("then") + 4, kind="word"),
    )
    verdict = with_verdicts(Verdict(masks=made), [(question, Said(action="mask", spans=spans))], masks())
    sent = walk.texts[0].text
    assert (sent.count("[HOUSE_"), "[EMAIL_" in sent, "now" in sent) == (2, False, False)
    assert verdict.masks is made
    assert made.unmasked(sent) == "write to jane@example.com now, or then"


def test_masks_of_others_stay() -> None:
    """One beside a place is left as it is."""
    made = masks()
    mask = made.mask("email", "jane@example.com")
    walk = said(f"{mask}word{mask}")
    (question,) = questions([rule()], walk)
    with_verdicts(Verdict(masks=made), [(question, found("word", question))], masks())
    assert walk.texts[0].text.count(mask) == 2
    assert made.unmasked(walk.texts[0].text) == "jane@example.comwordjane@example.com"


def test_what_may_not_be_changed_goes_to_own_engines() -> None:
    """A name that both sides have to go on using."""
    walk = walk_over({"role": "user", "name": "word", "content": "hello"})
    answers = [(each, found("word", each)) for each in questions([rule()], walk)]
    verdict = with_verdicts(Verdict(), answers, masks())
    assert (verdict.own, verdict.masks) == (True, None)
