"""The look at a body's bytes that spares the walk: it says that there is nothing only where the walk finds nothing."""

import asyncio
import base64
import json
import random
from typing import Any, Final

import pytest

from guard.clean import MOST_BYTES, is_clean
from guard.guard_config import GuardSection, kinds_of
from guard.inspector import Guard
from guard.ruleset import KnownScanner, Ruleset
from guard.scan import Scanner

RULES: Final[list[dict[str, Any]]] = [
    {
        "name": "personal",
        "kind": "pii",
        "entities": ["card", "email", "iban", "phone", "us_ssn"],
        "input": "mask",
    },
    {"name": "keys", "kind": "secret", "input": "mask"},
]
CARD: Final = "4111 1111 1111 1111"
KINDS: Final = {"personal": RULES[0]["entities"], "keys": kinds_of("secret")}
VALUES: Final = (CARD, "jane.doe@example.com", "DE89 3704 0044 0532 0130 00", "AKIAZ5GMXQ7PLKR2WVNB", "+49 170 1234567")
WORDS: Final = 'the a card is 12 her "mail" sk- at no, {yes: 1} \n \t so on @ - key= call me ssn ok. 2026'.split(" ")  # noqa: SIM905  A list of one column.


@pytest.fixture(scope="module")
def rules() -> Ruleset:
    return asyncio.run(Guard(GuardSection.model_validate({"rules": RULES}), b"k" * 32).rules_for(None))


class Blind:
    """A scanner that is never content with bytes, so that all is walked over."""

    def __init__(self, scanner: KnownScanner) -> None:
        self.labels = scanner.labels
        self.find, self.partial = scanner.find, scanner.partial

    def sees_nothing(self, data: bytes) -> bool:
        return not data


def scanner_of(rules: Ruleset) -> Scanner:
    known = rules._known
    assert isinstance(known, Scanner)
    return known


def hidden(chance: random.Random, value: str) -> str:
    """Return a value in one of the ways in which it may be written."""
    match chance.randrange(6):
        case 0:
            return base64.b64encode(f"it is {value} then".encode()).decode()
        case 1:
            return value[:6] + "\u200b" + value[6:]
        case 2:
            return "".join(chr(ord(each) + 0xFEE0) if each.isdigit() else each for each in value)
        case 3:
            return value.replace(" ", "\n")
        case _:
            return value


def text_of(chance: random.Random) -> str:
    words = [chance.choice(WORDS) for _ in range(chance.randint(0, 12))]
    if chance.random() < 0.3:
        words.insert(chance.randint(0, len(words)), hidden(chance, chance.choice(VALUES)))
    return " ".join(words)


def body_of(chance: random.Random) -> tuple[str, Any]:
    wire = chance.choice(["chat", "messages", "responses"])
    turns: list[Any] = [{"role": "user", "content": text_of(chance)} for _ in range(chance.randint(1, 3))]
    if chance.random() < 0.4:
        kind = "input_text" if wire == "responses" else "text"
        turns.append({"role": "user", "content": [{"type": kind, "text": text_of(chance)}]})
    if wire == "chat" and chance.random() < 0.4:
        arguments = json.dumps(
            {"a": text_of(chance), text_of(chance) or "b": chance.choice([1, 4111111111111111, 4.1e15])}
        )
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        turns.append({"role": "assistant", "content": None, "tool_calls": [call]})
        turns.append({"role": "tool", "tool_call_id": "call_1", "content": text_of(chance)})
    body: dict[str, Any] = {"model": "m", "stream": True, "input" if wire == "responses" else "messages": turns}
    if chance.random() < 0.2:
        body["metadata"] = {text_of(chance): text_of(chance)}
    if chance.random() < 0.1:
        body["max_tokens"] = chance.choice([9, 4111111111111111])
    if chance.random() < 0.1:
        body[text_of(chance) or "x"] = text_of(chance)
    return wire, body


def written(chance: random.Random, body: Any) -> bytes:
    found = json.dumps(body, ensure_ascii=chance.random() < 0.5)
    if chance.random() < 0.2:
        # What is there twice is read once by some, and the other time by others.
        return (
            '{"model": "' + text_of(chance).encode("unicode_escape").decode().replace('"', "") + '", ' + found[1:]
        ).encode()
    return found.encode()


@pytest.mark.parametrize("count", [3_000, pytest.param(60_000, marks=pytest.mark.long)])
def test_where_bytes_say_nothing_the_walk_finds_nothing(rules: Ruleset, count: int) -> None:
    """With values at any place and in any form, escapes, arguments, names twice."""
    known = scanner_of(rules)
    walking = Ruleset(rules.rules, KINDS, known=Blind(known), own=None)
    whole = Ruleset(rules.rules, KINDS, known=known, own=None)
    guard = Guard(GuardSection(), b"k" * 32)
    clean = 0
    for seed in range(count):
        chance = random.Random(seed)
        wire, body = body_of(chance)
        raw = written(chance, body)
        if not is_clean(wire, raw, known):
            continue
        clean += 1
        verdict = walking.judge(wire, raw, lambda used: guard.masks(used, "t"), None)
        assert (verdict.findings, verdict.masks, verdict.own) == ((), None, False), seed
        assert whole.judge(wire, raw, lambda used: guard.masks(used, "t"), None).body is None
    assert clean > count // 30


@pytest.mark.parametrize(
    "body",
    [
        {
            "model": "m",
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a"}}]}],
        },
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
        {"model": "m", "messages": [], "prompt": [1, 2, 3]},
        {"model": "m", "messages": [{"role": "user", "content": "a\\nb"}]},
        {"model": "m", "messages": [{"role": "user", "content": "x " * MOST_BYTES}]},
        {"model": "m", "messages": [], "seed": 4111111111111111},
        ["x"],
    ],
)
def test_other_forms_are_walked_over(rules: Ruleset, body: Any) -> None:
    """What has to be told of (pictures, files, tokens) or is read otherwise than it stands."""
    assert not is_clean("chat", json.dumps(body).encode(), scanner_of(rules))
    assert not is_clean("rerank", b'{"model": "m"}', scanner_of(rules))
    assert is_clean(
        "chat", b'{"model": "m", "messages": [{"role": "user", "content": "line\\n\\"two\\""}]}', scanner_of(rules)
    )
