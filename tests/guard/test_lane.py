"""A text in pieces gives what the whole text gives, whatever the pieces are, and little of it waits."""

# ruff: noqa: RUF001  Characters that read alike are what these are about.

import base64
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard.beginnings import beginnings
from guard.kinds import KINDS, block_list, compiled, examples, own_kind
from guard.lane import Lane, acted
from guard.scan import Scanner

pytestmark = pytest.mark.story

SCANNER = Scanner(
    [
        *KINDS.values(),
        own_kind("ticket", r"PRJ-\d{3,9}"),
        own_kind("far", r"(?s)begin.{0,20}end"),
        block_list("list", ["project falcon", "Müller GmbH", "机密"]),
    ]
)
VALUES = [value for example in examples() for value in example.values]
VALUES += ["project  falcon", "MÜLLER GMBH", "机密", "PRJ-1234", "begin xx end"]
WORDS = [
    "the",
    "card",
    "ssn",
    "phone",
    "is",
    "of",
    "my",
    "12",
    "4111",
    "a@",
    "foo.bar@x",
    "sk-",
    "eyJ",
    "--",
    "(",
    "+49",
    "DE89",
    "iban",
    "born",
    "birth",
    "ip",
    "[EMAIL_",
    "[CARD_k3f9a2]",
    "机密",
    "Proj",
    "project,",
    "https://",
    "x:y@",
    "\n",
    ".",
    "über",
    "–",
    "„q“",
    "１２",
    "\u200b",
    "client",
    "VIN",
    "078-05",
    "begin",
    "end",
    "2024-03-07",
    "hello",
]
WIDE = str.maketrans("0123456789", "０１２３４５６７８９")
CASES = [pytest.param(range(100), id="100"), pytest.param(range(100, 10_000), marks=pytest.mark.long, id="10,000")]


def act(kind: str, _value: str) -> str:
    """Return what is easily seen in a text that differs."""
    return f"<{kind}>"


def in_pieces(pieces: Iterable[str]) -> str:
    """Return what comes out of a lane."""
    lane = Lane(SCANNER, act)
    return "".join([*(lane.feed(piece) for piece in pieces), lane.finish()])


def oddly(chance: random.Random, value: str) -> str:
    """Return the value in a way that a reader reads alike, or encoded."""
    way = chance.random()
    if way < 0.1:
        place = chance.randint(0, len(value))
        return f"{value[:place]}\u200b{value[place:]}"
    if way < 0.2:
        return value.translate(WIDE)
    return base64.b64encode(f"secret: {value} ok".encode()).decode() if way < 0.3 else value


def a_text(chance: random.Random) -> str:
    """Return words with values planted among them, now and then without a blank between."""
    parts: list[str] = []
    for _ in range(chance.randint(1, 16)):
        parts.append(oddly(chance, chance.choice(VALUES)) if chance.random() < 0.2 else chance.choice(WORDS))
        parts.append(chance.choice([" ", " ", " ", "", "\n", ",", ": "]))
    return "".join(parts)


def cut(chance: random.Random, text: str) -> list[str]:
    """Return the text in pieces of some length."""
    most = chance.choice([1, 3, 8, 40])
    pieces: list[str] = []
    while text:
        size = chance.randint(1, most)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


@pytest.mark.parametrize("seeds", CASES)
def test_cases_7_and_12_any_pieces_give_what_the_whole_gives(seeds: range) -> None:
    """LL#41611, LL#38788: values at any place, split at any place."""
    for seed in seeds:
        chance = random.Random(seed)
        text = a_text(chance)
        assert in_pieces(cut(chance, text)) == acted(SCANNER, text, act), (seed, text)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(VALUES), st.sampled_from(WORDS), st.text(max_size=8)), max_size=6))
def test_pieces_of_any_text_give_what_the_whole_gives(pieces: list[str]) -> None:
    """With characters that nobody thinks of."""
    assert in_pieces(pieces) == acted(SCANNER, "".join(pieces), act)


@pytest.mark.parametrize("value", sorted({value for example in examples() for value in example.values[:1]}))
def test_case_7_each_kind_split_at_each_offset(value: str) -> None:
    """No part of a value goes out before the value is known."""
    text = f"my card, ssn, phone: {value} and client VIN.\n"
    wanted = acted(SCANNER, text, act)
    for place in range(len(text)):
        assert in_pieces((text[:place], text[place:])) == wanted


def test_case_8_prose_waits_for_the_end_of_its_word_alone() -> None:
    """A reader sees no delay: on average less than a word is held, and in Chinese next to nothing."""
    for text, mean in (
        ("The quick brown fox jumps over the lazy dog near the river bank, and nobody minds. " * 10, 6),
        ("def settled(self) -> bool:\n    return self.left <= 0 or not self._queue[self.at].open\n" * 10, 14),
        ("今天天气很好我们去公园散步吧然后一起吃饭。" * 30, 1),
    ):
        lane = Lane(SCANNER, act)
        held = []
        for char in text:
            lane.feed(char)
            held.append(lane.held_chars)
        assert sum(held) / len(held) <= mean
        assert max(held) <= 64


def test_what_goes_on_forever_is_let_go() -> None:
    """A run without an end is bounded, and the work of looking at it is linear."""
    lane = Lane(SCANNER, act)
    out = 0
    for _ in range(40_000):
        out += len(lane.feed("a1-b"))
        assert lane.held_chars <= 65_540
    assert out + len(lane.finish()) == 160_000


def test_a_private_key_is_swallowed_to_its_end() -> None:
    """However long it is, nothing of it goes out, and one mask stands for it."""
    body = "\n".join(base64.b64encode(random.Random(line).randbytes(48)).decode() for line in range(50))
    key = f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----"
    assert in_pieces(f"Here:\n{key}\nKeep it.") == "Here:\n<private_key>\nKeep it."


def test_words_behind_a_value_are_waited_for() -> None:
    """And those that went out before it are remembered."""
    assert in_pieces("It is 078-05-1120, which is her ssn.") == "It is <us_ssn>, which is her ssn."
    assert in_pieces("It is 078-05-1120, which is nothing at all, not of that sort.").startswith("It is 078-05-1120,")
    assert in_pieces(["The ssn ", "of her is ", "078-05-1120", " yes"]) == "The ssn of her is <us_ssn> yes"


def test_what_ends_the_answer_ends_it_before_the_value() -> None:
    """An act that raises has let out nothing of it."""

    class Ended(Exception):
        pass

    def end(_kind: str, _value: str) -> str:
        raise Ended

    lane = Lane(SCANNER, end)
    out = lane.feed("Her address is jane@")
    with pytest.raises(Ended):
        lane.feed("example.com, and")
    assert out == "Her address is "


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS.values() if kind.name != "private_key"], ids=lambda kind: kind.name
)
def test_each_beginning_of_a_value_is_a_beginning_by_the_derived_pattern(kind: object) -> None:
    """What is held is never less than what may go on."""
    for example in examples():
        for shape in KINDS[example.kind].shapes:
            regex, begun = compiled(shape.pattern), beginnings(shape.pattern)
            assert begun is not None
            derived = compiled(begun)
            for value in example.values:
                if example.kind == getattr(kind, "name", "") and regex.fullmatch(value.encode()) is not None:
                    assert all(derived.fullmatch(value[:end].encode()) for end in range(len(value) + 1)), value


@pytest.mark.parametrize("pattern", [r"\pL+x", r"\Qa.b\E", "[[:alpha:]]{3}", r"a\z", r"\x{41}b"])
def test_of_a_pattern_that_cannot_be_told_a_length_is_held(pattern: str) -> None:
    """RE2 knows more than the parser by which beginnings are derived."""
    assert beginnings(pattern) is None
    scanner = Scanner([own_kind("own", pattern)])
    lane = Lane(scanner, act)
    assert lane.feed("x" * 100) == ""
    assert len(lane.feed("y " * 300)) > 300
