"""Answers as a guard lets their caller have them: thousands of streams in three dialects, cut anywhere."""

import asyncio
import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import msgspec
import pytest

from cost.usage import Usage
from guard.guard_config import GuardSection
from guard.inspector import Guard
from guard.ruleset import Ruleset, Verdict
from providers.wire import Event
from proxy.admit.guarding import Guarded
from proxy.relay.guarded_answer import GuardedAnswer
from tests.scenarios.test_guarded_answers import (
    CARD,
    HER_MAIL,
    MAIL,
    RULES,
    TOKEN,
    Script,
    chat,
    messages,
    planted,
    responses,
)

GUARD: Final = Guard(GuardSection.model_validate({"rules": RULES}), b"k" * 32)
USED: Final = Usage(input_tokens=1, output_tokens=7, source="estimated")
DIALECTS: Final[dict[str, Any]] = {"chat": chat, "messages": messages, "responses": responses}


@pytest.fixture(scope="module")
def rules() -> Ruleset:
    return asyncio.run(GUARD.rules_for(None))


def guarded(rules: Ruleset, *, masked: bool = True) -> tuple[Guarded, str]:
    """Return a request in which an address was masked, and its mask."""
    masks = GUARD.masks(rules, "team_a")
    mask = masks.mask("email", HER_MAIL)
    parsed: Any = type("Parsed", (), {"body": b"{}"})
    verdict = Verdict(masks=masks if masked else None)
    return Guarded(rules=rules, verdict=verdict, parsed=parsed, masks=partial(GUARD.masks, rules, "team_a")), mask


def answer(found: Guarded, *, in_blocks: bool = False) -> GuardedAnswer:
    return GuardedAnswer(found, 1, lambda: USED, in_blocks=in_blocks)


def event(dialect: str, said: Any) -> Event:
    written = msgspec.json.encode(said)
    finished = said.get("type") == "message_delta"
    if dialect == "messages":
        return Event(b"{}", True, 1, 0, None, finished, None, "", said.get("type", ""), native=written)
    return Event(written, True, 1, 0, None, False, None, "", said.get("type", ""))


def said_by(events: Iterator[Event] | list[Event]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(each.native or each.payload) for each in events]


def streamed(guard: GuardedAnswer, dialect: str, events: list[Any], chance: random.Random) -> list[dict[str, Any]]:
    """Return what goes out, of events that are read in batches of any size."""
    out: list[Event] = []
    while events and not guard.blocked:
        size = chance.randint(1, 5)
        out += guard.events([event(dialect, said) for said in events[:size]])
        events = events[size:]
    out += guard.rest()
    return said_by(out)


def texts(dialect: str, events: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the text and the arguments of a stream."""
    text = arguments = ""
    for said in events:
        if dialect == "chat":
            for choice in said["choices"]:
                text += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls") or ():
                    arguments += call["function"]["arguments"]
        elif dialect == "messages" and said["type"] == "content_block_delta":
            text += said["delta"].get("text", "")
            arguments += said["delta"].get("partial_json", "")
        elif said.get("type") == "response.output_text.delta":
            text += said["delta"]
        elif said.get("type") == "response.function_call_arguments.delta":
            arguments += said["delta"]
    return text, arguments


def whole_texts(dialect: str, said: dict[str, Any]) -> tuple[str, Any]:
    if dialect == "chat":
        message = said["choices"][0]["message"]
        calls = message.get("tool_calls") or ()
        return message["content"], json.loads(calls[0]["function"]["arguments"]) if calls else None
    parts = said["content"] if dialect == "messages" else said["output"]
    text = next(
        part["text"] if dialect == "messages" else part["content"][0]["text"]
        for part in parts
        if part["type"] in {"text", "message"}
    )
    called = [part for part in parts if part["type"] in {"tool_use", "function_call"}]
    if not called:
        return text, None
    return text, called[0]["input"] if dialect == "messages" else json.loads(called[0]["arguments"])


@pytest.mark.parametrize("count", [900, pytest.param(30_000, marks=pytest.mark.long)])
def test_no_stream_leaks_and_each_says_what_the_whole_says(rules: Ruleset, count: int) -> None:
    """[6, 7, 12-14, 25] In every dialect, with values planted at any place."""
    found, mask = guarded(rules)
    for seed in range(count):
        chance = random.Random(seed)
        dialect = list(DIALECTS)[seed % 3]
        text, blocked = planted(chance)
        text = text.replace("{mask}", mask)
        arguments = planted(chance)[0].replace(CARD, "none").replace("{mask}", mask)
        script = Script(
            text=text,
            arguments=json.dumps({"a": arguments, "n": [1.5, None]}) if seed % 2 else "",
            thought=f"It is {MAIL} then" if seed % 5 == 0 else "",
            seed=seed,
            most=chance.choice([1, 3, 9, 60]),
        )
        whole, events = DIALECTS[dialect](script)
        out = streamed(answer(found, in_blocks=dialect != "chat"), dialect, list(events), chance)
        told = json.dumps(out)
        for value in (MAIL, TOKEN, CARD, MAIL[:8], TOKEN[4:14]):
            assert value not in told, (seed, dialect)
        assert blocked == ("content_filter" in told or "refusal" in told), (seed, dialect)
        guard = answer(found)
        whole = said_by([guard.whole(event(dialect, whole))])[0]
        assert guard.blocked == blocked
        if not blocked:
            said, called = texts(dialect, out)
            assert (said, json.loads(called) if called else None) == whole_texts(dialect, whole), (seed, dialect)
            assert mask not in said
        if dialect == "responses":
            numbers = [each["sequence_number"] for each in out]
            assert numbers == list(range(len(out))), seed


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_block_says_all_before_the_value_and_nothing_behind(rules: Ruleset, dialect: str) -> None:
    """[8, 11] Whatever size the events are of; and each ending once."""
    found, _ = guarded(rules)
    for most in (1, 2, 7, 500):
        _, events = DIALECTS[dialect](Script(text=f"The number is {CARD}, and on.", most=most))
        out = streamed(answer(found), dialect, list(events), random.Random(most))
        assert texts(dialect, out)[0] == "The number is "
        match dialect:
            case "chat":
                assert out[-1]["choices"][0]["finish_reason"] == "content_filter"
            case "messages":
                assert [said["type"] for said in out[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
                assert out[-2]["delta"]["stop_details"]["type"] == "refusal"
                assert out[-2]["usage"] == {"output_tokens": 7}
            case _:
                assert out[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}
                assert out[-1]["response"]["output"] == []


def test_probabilities_of_tokens_go_where_answers_are_looked_at(rules: Ruleset) -> None:
    """They say the text once more, token by token."""
    found, _ = guarded(rules)
    content = [{"token": "jane", "logprob": 0, "bytes": [1], "top_logprobs": []}]
    choice = {"index": 0, "delta": {"content": "hi "}, "logprobs": {"content": content}, "finish_reason": None}
    (said,) = said_by(answer(found).events([event("chat", {"choices": [choice]})]))
    assert said["choices"][0]["logprobs"] is None
    whole = {"choices": [{"index": 0, "message": {"content": "hi"}, "logprobs": {"content": content}}]}
    assert "jane" not in json.dumps(said_by([answer(found).whole(event("chat", whole))]))


def test_two_choices_are_two_texts(rules: Ruleset) -> None:
    """What one says does not go on in the other."""
    found, _ = guarded(rules)
    guard = answer(found)
    out = []
    for index, piece in ((0, "4111 1111 "), (1, "1111 1111 no"), (0, "or so "), (1, "thing ")):
        out += guard.events([event("chat", {"choices": [{"index": index, "delta": {"content": piece}}]})])
    out += guard.rest()
    said = {0: "", 1: ""}
    for each in said_by(out):
        for choice in each["choices"]:
            said[choice["index"]] += choice["delta"]["content"]
    assert said == {0: "4111 1111 or so ", 1: "1111 1111 nothing "}


def test_what_is_found_is_counted_by_name(rules: Ruleset) -> None:
    """Names and counts for header, log and metric."""
    found, _ = guarded(rules)
    guard = answer(found)
    whole, _ = chat(Script(text=f"{MAIL}, {HER_MAIL} and {TOKEN}"))
    guard.whole(event("chat", whole))
    assert [(each.name, each.action, each.count, each.side) for each in guard.findings] == [
        ("email", "mask", 2, "output"),
        ("github_token", "mask", 1, "output"),
    ]


def test_without_rules_for_answers_only_the_callers_values_come_back(rules: Ruleset) -> None:
    """And of a request that masked nothing there is no guard."""
    none = asyncio.run(
        Guard(GuardSection.model_validate({"rules": [{**RULES[1], "output": "off"}]}), b"k" * 32).rules_for(None)
    )
    found, mask = guarded(none)
    whole, _ = chat(Script(text=f"{mask} and {MAIL}"))
    said = said_by([answer(found).whole(event("chat", whole))])[0]
    assert said["choices"][0]["message"]["content"] == f"{HER_MAIL} and {MAIL}"
    request: Any = type("Asked", (), {"operation": "chat", "n": 1})
    assert GuardedAnswer.of(guarded(none, masked=False)[0], request, lambda: USED, in_blocks=False) is None
    assert GuardedAnswer.of(None, request, lambda: USED, in_blocks=False) is None


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_names_of_tools_that_a_model_makes_up_are_looked_at(rules: Ruleset, dialect: str, *, stream: bool) -> None:
    """One that the request has is its caller's own word, whatever it looks like; any other may carry a value out."""
    found, _ = guarded(rules)
    names = {TOKEN: False, "mail_" + MAIL: False, "4111111111111111": True, "weigh": False}
    for known in (False, True):
        for name, blocks in names.items():
            parsed: Any = type("Parsed", (), {"body": json.dumps({"tools": [name]}).encode() if known else b"{}"})
            guard = answer(msgspec.structs.replace(found, parsed=parsed))
            whole, events = DIALECTS[dialect](Script(text="ok", arguments="{}"))
            renamed = [json.loads(json.dumps(said).replace("weigh", name)) for said in events]
            if stream:
                out = streamed(guard, dialect, renamed, random.Random(1))
            else:
                out = said_by([guard.whole(event(dialect, json.loads(json.dumps(whole).replace("weigh", name))))])
            assert (name in json.dumps(out)) == (known or name == "weigh"), (name, known)
            assert guard.blocked == (blocks and not known)


def test_calls_of_ones_own_form_are_looked_at(rules: Ruleset) -> None:
    """A custom tool of chat takes any text."""
    found, _ = guarded(rules)
    guard = answer(found)
    begun = {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "f", "input": ""}}
    pieces = [begun, *({"index": 0, "custom": {"input": each}} for each in ("to jane.d", "oe@exam", "ple.com", " now"))]
    out = said_by(
        guard.events([event("chat", {"choices": [{"index": 0, "delta": {"tool_calls": [each]}}]}) for each in pieces])
    )
    out += said_by(guard.rest())
    said = "".join(each["choices"][0]["delta"]["tool_calls"][0]["custom"].get("input", "") for each in out)
    assert said.startswith("to [EMAIL_")
    assert said.endswith("] now")
    assert "jane" not in json.dumps(out)


@pytest.mark.parametrize("stream", [False, True], ids=["rest", "finish"])
@pytest.mark.parametrize(
    ("of", "piece", "said"),
    [
        ("audio", lambda text: {"id": "a", "transcript": text}, lambda value: value.get("transcript", "")),
        (
            "reasoning_details",
            lambda text: [{"type": "reasoning.text", "index": 0, "text": text}],
            lambda value: value[0]["text"],
        ),
        (
            "thinking_blocks",
            lambda text: [{"type": "thinking", "thinking": text}],
            lambda value: value[0]["thinking"],
        ),
    ],
)
def test_what_else_a_delta_says_in_pieces_is_one_text(
    rules: Ruleset, of: str, piece: Any, said: Any, *, stream: bool
) -> None:
    """A transcript of what is spoken, and thoughts in lists: a value goes over two pieces."""
    found, _ = guarded(rules)
    guard = answer(found)
    deltas = [{of: piece(each)} for each in ("Write to jane.d", "oe@exam", "ple.com", " now, ", "or not.")]
    out = said_by(guard.events([event("chat", {"choices": [{"index": 0, "delta": each}]}) for each in deltas]))
    if stream:
        out += said_by(guard.events([event("chat", {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})]))
    out += said_by(guard.rest())
    told = "".join(said(each["choices"][0]["delta"][of]) for each in out if each["choices"][0]["delta"])
    assert told.startswith("Write to [EMAIL_")
    assert told.endswith("] now, or not.")
    assert "jane" not in json.dumps(out)
