"""What moderation services say, and what it means: a verdict, or nothing that lets anything pass."""

import json
from typing import Any

import pytest

from guard.moderation import (
    MOST_BODY_BYTES,
    MOST_PIECES,
    PIECE_CHARS,
    OddReply,
    Shape,
    TooLong,
    Verdict,
    calls,
    found,
    together,
    verdict,
)


def said(value: Any, texts: int = 1, shape: Shape = "openai") -> Verdict:
    return verdict(shape, json.dumps(value).encode(), texts)


def one(**result: Any) -> dict[str, Any]:
    return {"id": "modr-1", "model": "m", "results": [result]}


def chat(content: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]}


CLEAN = {"flagged": False, "categories": {"hate": False}, "category_scores": {"hate": 0.001}}
FLAGGED = {"flagged": True, "categories": {"hate": True, "violence": False}, "category_scores": {"hate": 0.9}}


def test_a_flagged_text_names_its_categories() -> None:
    """True ones alone."""
    assert found(said(one(**FLAGGED)), None, {}) == ["hate"]
    assert found(said(one(**CLEAN)), None, {}) == []


@pytest.mark.parametrize(
    ("result", "names"),
    [
        ({"flagged": True}, ["flagged"]),
        ({"flagged": True, "categories": {}}, ["flagged"]),
        ({"flagged": True, "categories": None}, ["flagged"]),
        ({"flagged": True, "categories": ["hate", "S1"]}, ["S1", "hate"]),
        ({"flagged": None, "categories": {"hate": True}}, ["hate"]),
        ({"categories": {"hate": True}}, ["hate"]),
        ({"flagged": False, "categories": {"hate": True}}, ["hate"]),
        ({"flagged": "yes", "categories": {"hate": True}}, ["hate"]),
        ({"flagged": True, "categories": {"new/category": True}}, ["new/category"]),
        ({"flagged": True, "categories": {"a\r\nb: c": True}}, ["a__b__c"]),
    ],
)
def test_a_yes_counts_in_whichever_form(result: dict[str, Any], names: list[str]) -> None:
    """BerriAI/litellm#38568: a block that was delivered blocks, whatever else is odd."""
    assert found(said(one(**result)), None, {}) == names


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ([], 1),
        ("safe", 1),
        (None, 1),
        ({}, 1),
        ({"results": {}}, 1),
        ({"results": []}, 1),
        ({"results": [None]}, 1),
        ({"results": ["no"]}, 1),
        (one(), 1),
        (one(flagged=None), 1),
        (one(flagged="false"), 1),
        (one(flagged=0), 1),
        (one(flagged=None, category_scores={}), 1),
        (one(flagged=None, category_scores={"hate": "0.1"}), 1),
        (one(flagged=None, category_scores={"hate": True}), 1),
        (one(flagged=None, category_scores={"hate": 7}), 1),
        ({"results": [CLEAN]}, 2),
        ({"results": [CLEAN, CLEAN]}, 1),
        ({"results": [CLEAN, {}]}, 2),
        ({"error": True, "results": [CLEAN]}, 1),
        ({"error": {"message": "overloaded"}, "results": [CLEAN]}, 1),
    ],
)
def test_what_is_no_verdict_lets_nothing_pass(value: Any, texts: int) -> None:
    """BerriAI/litellm#40416, ogx-ai/ogx#6026: an envelope of an error, a missing flag, a result too few."""
    with pytest.raises(OddReply):
        said(value, texts)


@pytest.mark.parametrize("body", [b"", b"<html>", b"{", b'{"results": [{"flagged": NaN}]}', b"\xff", b"[" * 100_000])
def test_what_is_no_json_lets_nothing_pass(body: bytes) -> None:
    """A proxy's page, an end in the middle, a nesting that no reader ends."""
    with pytest.raises(OddReply):
        verdict("openai", body, 1)


def test_an_odd_reply_forbids_what_it_forbids_and_allows_nothing() -> None:
    """One flagged result and one unreadable: who looks for that category refuses, who looks for another cannot tell."""
    partial = said({"results": [FLAGGED, {}]}, 2)
    assert found(partial, None, {}) == ["hate"]
    with pytest.raises(OddReply):
        found(partial, ["violence"], {})


def test_scores_alone_need_thresholds_of_theirs() -> None:
    """BerriAI/litellm#40416: a score that is not there is not a low one."""
    scores = said(one(flagged=None, category_scores={"hate": 0.4, "violence": 0.1}))
    assert found(scores, None, {"hate": 0.3}) == ["hate"]
    assert found(scores, None, {"hate": 0.5}) == []
    for thresholds in ({}, {"hate": 0.5, "sexual": 0.5}):
        with pytest.raises(OddReply):
            found(scores, None, thresholds)


def test_a_threshold_does_not_switch_off_the_services_own_yes() -> None:
    """BerriAI/litellm#30727: thresholds for one category let everything else pass that was flagged."""
    assert found(said(one(**FLAGGED)), None, {"violence": 0.5}) == ["hate"]
    assert found(said(one(flagged=True)), ["violence"], {}) == ["flagged"]


def test_a_rule_takes_the_categories_that_it_names() -> None:
    """Others are for other rules."""
    assert found(said(one(**FLAGGED)), ["violence"], {}) == []
    assert found(said(one(**FLAGGED)), ["hate"], {}) == ["hate"]


def test_categories_are_bounded() -> None:
    """A service that names a million."""
    many = said(one(flagged=True, categories={f"c{at}" * 99: True for at in range(10_000)}))
    assert len(many.categories) == 64
    assert max(map(len, many.categories)) == 64


def test_a_verdict_on_parts_is_the_strictest() -> None:
    """The highest score, all categories, and unknown rather than no."""
    whole = together([Verdict(flagged=False, scores={"a": 0.2}), Verdict(flagged=None, scores={"a": 0.7, "b": 0.1})])
    assert whole.flagged is None
    assert whole.scores == {"a": 0.7, "b": 0.1}


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("safe", []),
        ("\n\nsafe", []),
        ("safe\n", []),
        ("Safe.", []),
        ("**safe**"[2:], []),
        ("unsafe\nS1,S2", ["S1", "S2"]),
        ("unsafe \nS1, S2", ["S1", "S2"]),
        ("\n\nunsafe\nS10", ["S10"]),
        ("unsafe S3", ["S3"]),
        ("UNSAFE\ns3", ["flagged"]),
        ("unsafe", ["flagged"]),
        ("unsafe\nviolence", ["flagged"]),
    ],
)
def test_llama_guard_says_it_in_many_ways(content: str, names: list[str]) -> None:
    """ogx-ai/ogx#4476, JoshuaC215/agent-service-toolkit#122, NVIDIA-NeMo/Guardrails#1762: blanks, no category, other case."""
    assert found(said(chat(content), shape="llama_guard"), None, {}) == names


@pytest.mark.parametrize(
    "value",
    [
        *map(
            chat,
            ("", None, 7, [], "I cannot help with that.", "This is unsafe", "unsafely", "safe\nS1", "safe, but rude"),
        ),
        {"choices": []},
        {"choices": None},
        {"error": {"message": "model not loaded"}},
        {"choices": [{"message": None}]},
    ],
)
def test_llama_guard_that_says_something_else_says_nothing(value: Any) -> None:
    """NVIDIA-NeMo/Guardrails#2207: `safe` with a category is neither; so is a refusal or a chat."""
    with pytest.raises(OddReply):
        said(value, shape="llama_guard")


def test_a_guardrail_blocks_passes_or_rewrites() -> None:
    """The three actions of the generic guardrail."""
    assert found(said({"action": "NONE"}, shape="litellm"), None, {}) == []
    assert found(said({"action": "BLOCKED", "blocked_reason": "x"}, shape="litellm"), None, {}) == ["blocked"]
    assert said({"action": "GUARDRAIL_INTERVENED", "texts": ["a", "b"]}, 2, "litellm").texts == ("a", "b")


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"action": None},
        {"action": "none"},
        {"action": "ALLOW"},
        {"action": ["NONE"]},
        {"action": "GUARDRAIL_INTERVENED"},
        {"action": "GUARDRAIL_INTERVENED", "texts": None},
        {"action": "GUARDRAIL_INTERVENED", "texts": ["a"]},
        {"action": "GUARDRAIL_INTERVENED", "texts": ["a", None]},
        {"action": "GUARDRAIL_INTERVENED", "texts": "ab"},
    ],
)
def test_a_guardrail_that_says_neither_lets_nothing_pass(value: Any) -> None:
    """An unknown action, and texts that cannot be put where they belong."""
    with pytest.raises(OddReply):
        said(value, 2, "litellm")


def test_a_long_text_is_asked_about_in_pieces_that_overlap() -> None:
    """Wei-Shaw/sub2api#5214: above some thousand tokens the service scores an empty text, without an error."""
    text = "".join(chr(0x4E00 + at % 500) for at in range(20 * PIECE_CHARS))
    asked = calls("openai", ["short", text], "input", "omni-moderation-latest")
    pieces = [piece for call in asked for piece in json.loads(call.body)["input"]]
    assert sum(call.texts for call in asked) == len(pieces)
    assert max(map(len, pieces)) <= PIECE_CHARS
    assert pieces[0] == "short"
    for at in range(0, len(text) - 150, 97):
        assert any(text[at : at + 150] in piece for piece in pieces[1:])
    assert all(json.loads(call.body)["model"] == "omni-moderation-latest" for call in asked)


def test_texts_without_end_are_not_asked_about() -> None:
    """BerriAI/litellm#19501: too much is said to be so, and not sent."""
    shapes: tuple[Shape, ...] = ("openai", "llama_guard")
    for shape in shapes:
        with pytest.raises(TooLong):
            calls(shape, ["x" * PIECE_CHARS * (MOST_PIECES + 1)], "input", None)
    with pytest.raises(TooLong):
        calls("litellm", ["x" * MOST_BODY_BYTES], "input", None)


def test_the_generic_guardrail_is_told_which_side_it_is() -> None:
    """`request` and `response`, with the texts as they are."""
    assert json.loads(calls("litellm", ["a", "b"], "output", None)[0].body) == {
        "texts": ["a", "b"],
        "input_type": "response",
    }


def test_llama_guard_judges_the_last_turn() -> None:
    """A text of a request as the user's, one of an answer as the assistant's."""
    asked = json.loads(calls("llama_guard", ["a"], "output", "guard")[0].body)
    assert (asked["model"], asked["messages"][-1]) == ("guard", {"role": "assistant", "content": "a"})
    assert json.loads(calls("llama_guard", ["a"], "input", "guard")[0].body)["messages"] == [
        {"role": "user", "content": "a"}
    ]
