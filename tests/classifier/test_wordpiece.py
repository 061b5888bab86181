import unicodedata
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordPiece as ReferenceModel
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

import classifier
from classifier.encoder import VOCABULARY_FILE
from classifier.wordpiece import CHARS_PER_TOKEN, VocabularyMalformed, WordPiece

VOCABULARY: Final = (
    (Path(classifier.__file__).parent / "artifacts" / VOCABULARY_FILE).read_text(encoding="utf-8").splitlines()
)
LIMIT: Final = 256
ROOM: Final = LIMIT - 2
TAIL: Final = ROOM // 4
# The library's tables are of another Unicode than Python's; of these two signs it is older and says otherwise.
CLASSED_ANEW: Final = "\u166d\u1734"


def reference() -> Tokenizer:
    ids = {piece: number for number, piece in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(ReferenceModel(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
    )
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


REFERENCE: Final = reference()
OURS: Final = WordPiece(VOCABULARY, LIMIT)
ENDLESS: Final = WordPiece(VOCABULARY, 100_000)
FIRST, LAST, UNKNOWN = (VOCABULARY.index(piece) for piece in ("[CLS]", "[SEP]", "[UNK]"))


def expected(text: str) -> list[int]:
    ids: list[int] = REFERENCE.encode(text).ids
    return [FIRST, *ids, LAST]


def settled(char: str) -> bool:
    """Old enough that every table of Unicode has it in the same class."""
    return unicodedata.ucd_3_2_0.category(char) != "Cn" and char not in CLASSED_ANEW


SETTLED: Final = st.characters(exclude_categories=["Cs"]).filter(settled)

TEXTS: Final = (
    "",
    " \t\n\r\n ",
    "Hello, World! It's 3.14159% of $1,000,000...",
    "def f(x):\n\treturn {'a': [x ** 2, ~x, x<<1]}  # ünïcödé `code` \\frac{1}{2}",
    "Größe, Straße, naïve café, Ærø, İstanbul, ΣΊΣΥΦΟΣ ΟΔΟΣ",
    "Привет, мир! Съешь же ещё этих мягких французских булок.",
    "你好，世界。这是一个测试𠀀豈",  # noqa: RUF001 - Full-width signs are the point.
    "こんにちは、世界！カタカナとひらがな。ガギグ",  # noqa: RUF001 - Full-width signs are the point.
    "안녕하세요 세계 한국어",
    "مرحبا بالعالم، كيف الحال؟ שלום עולם",
    "नमस्ते दुनिया। ภาษาไทย Tiếng Việt",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 \u200bzero\u200dwidth\ufeff \u00ad \ufffd",
    "\x00\x01\x0b\x0c\x1c\x1d\x1e\x1f\x7f\x80\x85\xa0a\x00b\u2028c\u2029d\u3000e",
    "[CLS] [SEP] [MASK] [UNK] ##ing #hash @name http://a.b/c?d=e&f=g",
    "a" * 100 + " " + "a" * 101 + " " + "é" * 100,
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis zzzzqxqx",
    "\u037e\u1fef\u2329x\u232a\u1e9e\u0130\u0345",
)


@pytest.mark.parametrize("text", TEXTS)
def test_known_texts_give_the_library_s_ids(text: str) -> None:
    """Languages, signs, emoji, control characters and long words are cut as the library cuts them."""
    assert ENDLESS.ids(text) == expected(text)


@given(st.text(SETTLED, max_size=120))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_the_library_s_ids(text: str) -> None:
    """No mix of characters tells the two apart."""
    assert ENDLESS.ids(text) == expected(text)


@given(st.lists(st.sampled_from(VOCABULARY), max_size=40), st.sampled_from(["", " ", "-"]))
@settings(max_examples=150, deadline=None)
def test_pieces_put_together_give_the_library_s_ids(pieces: list[str], between: str) -> None:
    """Words that are made of the vocabulary's own pieces are cut the same way."""
    text = between.join(piece.removeprefix("##") for piece in pieces)
    assert ENDLESS.ids(text) == expected(text)


@pytest.mark.parametrize(
    "char", ["\x00", "\x07", "\x1f", "\x7f", "\u0301", "\u4e00", "\u3000", "_", "\u2014", "\u200b"]
)
@pytest.mark.parametrize("around", ["a{}b", "{}", "a {}{} b", "é{}é"])
def test_every_kind_of_character_is_cleaned_like_the_library_s(char: str, around: str) -> None:
    """Beside ASCII and beside other letters, since the two take different ways."""
    text = around.replace("{}", char)
    assert ENDLESS.ids(text) == expected(text)


@given(st.integers(0, 600), st.integers(0, 10))
@settings(max_examples=60, deadline=None)
def test_a_long_text_keeps_its_head_and_its_end(words: int, rare: int) -> None:
    """Up to the limit all tokens are kept; beyond it three quarters from the front and the rest from the end."""
    text = " ".join(f"word {number}" for number in range(words)) + " zzqx" * rare
    ids = expected(text)[1:-1]
    kept = ids if len(ids) <= ROOM else ids[: ROOM - TAIL] + ids[-TAIL:]
    assert OURS.ids(text) == [FIRST, *kept, LAST]


@pytest.mark.parametrize("unit", ["word ", "漢", "x", " ", "\x00", "é" * 99 + "\u0e01 ", "\ud800", "🙂"])
def test_a_huge_text_gives_no_more_than_the_limit(unit: str) -> None:
    """However long the text is and whatever it is made of."""
    ids = OURS.ids(unit * (3_000_000 // len(unit)))
    assert len(ids) <= LIMIT
    assert (ids[0], ids[-1]) == (FIRST, LAST)


def test_a_huge_text_is_read_at_both_ends_only() -> None:
    """The middle of a text beyond the bound changes nothing."""
    head, tail = "Compare the two. " * 300, " Answer in one word." * 200
    assert len(head) + len(tail) > ROOM * CHARS_PER_TOKEN
    assert OURS.ids(head + "a" * 50_000 + tail) == OURS.ids(head + "和" * 900_000 + tail)


def test_a_text_of_unknown_letters_is_unknown() -> None:
    """A letter that no piece has makes its word unknown, and not the next one."""
    assert ENDLESS.ids("\u1681word house") == [FIRST, UNKNOWN, VOCABULARY.index("house"), LAST]


@pytest.mark.parametrize("vocabulary", [["a", "b"], ["[UNK]", "[CLS]", "[SEP]", "a", "a"], []])
def test_a_vocabulary_that_lacks_a_piece_is_refused(vocabulary: list[str]) -> None:
    """A vocabulary without the three pieces of every text, or with one twice, is no vocabulary."""
    with pytest.raises(VocabularyMalformed):
        WordPiece(vocabulary, LIMIT)
