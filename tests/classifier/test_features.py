"""The feature code: deterministic, bounded, never failing."""

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.asking.normalization import with_plain_marks
from classifier.asking.resolution import to_search
from classifier.compiled import CompiledFeaturizer
from classifier.features import (
    BUCKET_BITS,
    CONTEXT_WORDS,
    HEAD_BYTES,
    HEAD_WORDS,
    SHAPES,
    STRUCTURE,
    TAIL_BYTES,
    TAIL_WORDS,
    WORD_BITS,
    Features,
    ask_in,
    compiled_featurizer,
    extract,
    extract_by_numpy,
    extract_compiled,
    feature_hash,
    meaning_of,
    question_in,
    read_text,
    shape_of,
    texts_of,
    words_of,
)
from classifier.prediction import Prompt
from hatch_build import LIBRARY, SOURCE, compile_library
from tests.examples import examples

ROOT = Path(__file__).parents[2]
TEXT = st.text(alphabet=st.characters(), max_size=500)
PROMPTS = st.builds(
    Prompt,
    text=TEXT,
    system=TEXT,
    before=TEXT,
    history=TEXT,
    since=TEXT,
    turns=st.integers(-1, 50),
    tools=st.integers(-1, 200),
    images=st.integers(-1, 20),
    json_mode=st.booleans(),
)


WIDE = str.maketrans(
    {"，": ",", "。": ".", "；": ";", "：": ":", "？": "?", "！": "!", "、": ",", "（": "(", "）": ")"}
    | dict.fromkeys("«»\u2018\u2019\u201a“”„‹›¿¡\u00a0\u2013—…\u202f", " ")
)
IDEOGRAPHS = range(0x3000, 0xE000)


def slow_words(text: str) -> list[str]:
    """The words as a loop would find them; a Chinese, Japanese or Korean character is one by itself."""
    words, word = [], ""
    for character in text.translate(WIDE).encode("utf-8", "replace").decode():
        alone = ord(character) in IDEOGRAPHS
        if not alone and (character >= "\x80" or character.isalnum() or character == "_"):
            word += "0" if character in "0123456789" else character.lower() if character.isascii() else character
            continue
        words += [word] if word else []
        words += [character] if alone else []
        word = ""
    return [*words, word] if word else words


def facts_of(features: Features) -> dict[str, float]:
    """The plain facts by name."""
    return dict(zip(STRUCTURE, features.structure.tolist(), strict=True))


@settings(deadline=None)
@given(PROMPTS)
def test_any_prompt_has_finite_bounded_features(prompt: Prompt) -> None:
    """Any prompt gives rising bucket numbers in range, positive counts and finite facts, the same each time."""
    found, again = extract(prompt), extract(prompt)
    assert np.all(np.diff(found.indices) > 0)
    assert np.all((found.indices >= 0) & (found.indices < 2**BUCKET_BITS))
    assert np.all(found.counts >= 1)
    assert len(found.indices) == len(found.counts)
    assert found.structure.shape == (len(STRUCTURE),)
    assert np.all(np.isfinite(found.structure))
    assert np.array_equal(found.indices, again.indices)
    assert np.array_equal(found.counts, again.counts)
    assert np.array_equal(found.structure, again.structure)
    for words, most in ((found.words, HEAD_WORDS + TAIL_WORDS), (found.before, CONTEXT_WORDS)):
        assert len(words) <= most
        assert np.all((words >= 0) & (words < 2**WORD_BITS))
    assert np.array_equal(found.words, again.words)
    assert np.array_equal(found.before, again.before)
    assert 0 <= shape_of(found) < len(SHAPES)


@settings(deadline=None)
@given(TEXT | st.text(alphabet="a1 证明。，\u3000한é", max_size=40))
def test_words_are_counted_as_a_loop_would(text: str) -> None:
    """Words and word pairs are as many as a plain loop over the bytes finds."""
    words = slow_words(with_plain_marks(text.encode("utf-8", "replace")).decode("utf-8", "replace"))
    assert extract(Prompt(text=text)).counts.sum() == len(words) + max(0, len(words) - 1)


@settings(deadline=None)
@given(st.text(alphabet="\nAJKa.)(1 ?", max_size=60))
def test_facts_are_counted_as_a_loop_would(text: str) -> None:
    """Choices, numbers and letters are as many as plain loops over the text find."""
    facts = facts_of(extract(Prompt(text=text)))
    words = slow_words(text)
    letters = sum(character.isalpha() for character in text)
    assert facts["log_options"] == pytest.approx(np.log1p(len(re.findall(r"\n[A-J][.)]", text))))
    assert facts["log_numbers"] == pytest.approx(np.log1p(sum(word[0] == "0" for word in words)))
    assert facts["log_words"] == pytest.approx(np.log1p(len(words)))
    assert facts["upper_share"] == pytest.approx(sum(map(str.isupper, text)) / max(1, letters))
    assert facts["bracket_share"] == pytest.approx((text.count("(") + text.count(")")) / max(1, len(text)))


@settings(deadline=None)
@given(st.lists(st.sampled_from(["truck", "road", "load", "scale", "gate"]), min_size=1, max_size=30))
def test_a_word_has_one_bucket_wherever_it_stands(words: list[str]) -> None:
    """A word hashes alike at every position: no more buckets than different words and pairs."""
    pairs = set(itertools.pairwise(words))
    assert len(extract(Prompt(text=" ".join(words))).indices) == len(set(words)) + len(pairs)


def test_case_and_digits_do_not_matter() -> None:
    """Case and the particular digits are not features: only that there is a number, and how long."""
    one, other = extract(Prompt(text="Load 1975 crates")), extract(Prompt(text="load 2024 CRATES"))
    assert np.array_equal(one.indices, other.indices)


@pytest.mark.parametrize("character", ["a", "a ", "漢", "🙂 ", "\ud800", "\x00", "\n"])
def test_a_huge_text_is_bounded(character: str) -> None:
    """Of a text of a megabyte only the head and the tail are read."""
    prompt = Prompt(text=character * (2**20 // len(character)))
    assert len(read_text(prompt)) <= HEAD_BYTES + TAIL_BYTES + 1
    assert len(extract(prompt).indices) <= HEAD_BYTES + TAIL_BYTES


def test_the_tail_of_a_huge_text_is_read() -> None:
    """A question that stands at the very end of a long text is seen."""
    text = "lorem " * 100_000
    assert not np.array_equal(
        extract(Prompt(text=text)).indices, extract(Prompt(text=text + "Prove the theorem.")).indices
    )


def test_of_a_conversation_only_the_message_before_is_read() -> None:
    """The user message before is looked up by meaning; no other word of the conversation is read."""
    alone = Prompt(text="And in Rust?")
    talk = "Write a lock-free queue and justify every memory ordering."
    told = extract(Prompt(text="And in Rust?", system=talk, history=talk, since=talk))
    follow_up = extract(Prompt(text="And in Rust?", before=talk, history=talk))
    assert np.array_equal(told.indices, extract(alone).indices)
    assert np.array_equal(follow_up.indices, extract(alone).indices)
    assert np.array_equal(follow_up.before, meaning_of(talk))
    assert len(extract(alone).before) == len(told.before) == 0


def test_what_came_after_the_last_user_message_is_not_read() -> None:
    """A tool's results and the model's own words change no number."""
    one, other = (extract(Prompt(text="Book it.", since=since)) for since in ("", "Prove the lemma. " * 50))
    assert np.array_equal(one.structure, other.structure)
    assert np.array_equal(one.words, other.words)


def test_of_a_huge_conversation_only_the_start_of_the_message_before_is_read() -> None:
    """A megabyte of conversation adds at most CONTEXT_WORDS words to what is read."""
    prompt = Prompt(text="And in Rust?", before="漢 " * 2**19, history="漢 " * 2**19, system="x" * 2**20)
    assert len(read_text(prompt)) == len(prompt.text)
    assert len(extract(prompt).before) == CONTEXT_WORDS


def test_an_ideograph_is_a_word_and_two_neighbours_have_a_meaning() -> None:
    """Four characters are four words, three pairs among the terms, and three pairs more by meaning."""
    found = extract(Prompt(text="证明定理"))
    assert found.terms == 4 + 3
    assert len(found.words) == 4 + 3
    assert set(meaning_of("证明")) < set(found.words)
    # Whoever writes a blank or a wide comma between them parts the pair.
    assert len(extract(Prompt(text="证明，定理")).words) == 4 + 2
    assert len(extract(Prompt(text="prove it 证")).words) == 3


@pytest.mark.parametrize("text", ["¿word?", "«word»", "„word“", "a – word…", "a\u00a0word"])
def test_a_sign_beside_a_word_is_no_part_of_it(text: str) -> None:
    """Quotation marks, inverted ones, dashes and blanks that do not break part words as ASCII's do."""
    assert meaning_of("word")[0] in extract(Prompt(text=text)).words


def test_of_a_long_message_head_and_tail_are_looked_up() -> None:
    """Words in the middle of a long message have no part in its meaning; its first and last ones do."""
    plain = "word " * 1000
    assert len(extract(Prompt(text=plain)).words) == HEAD_WORDS + TAIL_WORDS
    (lemma,) = meaning_of("lemma")
    for text, read in ((f"lemma {plain}", True), (f"{plain} lemma", True), (f"{plain} lemma {plain}", False)):
        assert (lemma in extract(Prompt(text=text)).words) is read


@settings(deadline=None)
@given(st.text(alphabet="Ab9_ ,.é\n", max_size=60))
def test_a_words_meaning_is_where_it_is_looked_up(text: str) -> None:
    """What training calls a word has the bucket by meaning that serving finds."""
    assert words_of(text) == slow_words(text)
    # Of a short text not all is read: its last lines may be a signature.
    read = words_of(read_text(Prompt(text=text)).decode())
    assert [int(at) for word in read for at in meaning_of(word)] == extract(Prompt(text=text)).words.tolist()


def test_facts_count_what_they_say() -> None:
    """The named facts follow the text and the request."""
    choice = "Which one?\nA. first\nB) second\nC. third"
    facts = facts_of(extract(Prompt(text=choice, tools=2, images=1, json_mode=True, turns=3)))
    assert facts["log_options"] == pytest.approx(np.log1p(3))
    assert facts["log_tools"] == pytest.approx(np.log1p(2))
    assert facts["log_images"] == pytest.approx(np.log1p(1))
    assert facts["log_turns"] == pytest.approx(np.log1p(2))
    assert facts["json_mode"] == 1
    listed = facts_of(
        extract(
            Prompt(
                text="Sort these lists, please:\n- the red rows, now.\n* the blue rows;\n1. the columns!\n2. the cells"
            )
        )
    )
    assert listed["log_commas"] == pytest.approx(np.log1p(2))
    assert listed["log_stops"] == pytest.approx(np.log1p(6))
    assert listed["log_items"] == pytest.approx(np.log1p(4))
    assert facts_of(extract(Prompt(text="你好，谢谢。")))["log_commas"] == pytest.approx(np.log1p(1))
    assert facts_of(extract(Prompt(text="```x```")))["code_fence"] == 1
    assert facts_of(extract(Prompt(text="Prove this lemma")))["cue_maths"] == pytest.approx(np.log1p(2))


@pytest.mark.parametrize(
    ("prompt", "shape"),
    [
        (Prompt(text="What is love?"), "open"),
        (Prompt(text="Pick:\nA. a\nB. b"), "open"),
        (Prompt(text="Pick:\nA. a\nB. b\nC. c"), "choice"),
        (Prompt(text="Pick:\nA. a\nB. b\nC. c", tools=1), "tools"),
    ],
)
def test_shapes(prompt: Prompt, shape: str) -> None:
    """Tools come first, then three choices or more; everything else is open text."""
    assert SHAPES[shape_of(extract(prompt))] == shape


def test_the_feature_hash_does_not_depend_on_the_process() -> None:
    """Another process with another hash seed names the features alike."""
    code = "from classifier.features import feature_hash; print(feature_hash())"
    other = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": "7"}
    )
    assert other.stdout.strip() == feature_hash()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledFeaturizer:
    """classifier/featurize.c, compiled from what is in the tree."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / SOURCE).parent.mkdir()
    shutil.copy(ROOT / SOURCE, folder / SOURCE)
    refused = compile_library(folder)
    if refused is not None:
        pytest.skip(f"nothing can be compiled here: {refused}")
    found = compiled_featurizer(folder / LIBRARY)
    assert found is not None
    return found


def described(features: Features) -> dict[str, object]:
    """Every field as plain values, with its type."""
    values = {name: getattr(features, name) for name in features.__struct_fields__}
    for part in ("ask", "question"):
        of_part = values.pop(part)
        values |= {f"{part}.{name}": getattr(of_part, name) for name in of_part.__struct_fields__}
    return {
        name: value if isinstance(value, int | tuple) else (str(value.dtype), value.tolist())
        for name, value in values.items()
    }


MARKS = [
    "a",
    "B",
    "1",
    "_",
    " ",
    "é",
    "漢",
    "字",
    "한",
    "。",
    "，",
    "🙂",
    "`",
    "```",
    "$",
    "\\",
    "?",
    "\x00",
    "\ud800",
    "prove",
]
LINES = ["\nA. ", "\nJ)", "\n- ", "\n2. ", "\n1."]
LENGTHS = ["300", "7", "123456", "-", "  ", "\u00a0", "\u202f", "words", "Line", "pages", "sentence", "paragraphs", "s"]
LONG = ["x" * 700, "漢" * 300, "a " * 900]
PIECES = st.lists(st.sampled_from([*MARKS, *LINES, *LENGTHS, *LONG]), max_size=60).map("".join)


@settings(max_examples=examples(400), deadline=None)
@given(PROMPTS, PIECES, PIECES)
def test_the_compiled_features_are_those_of_numpy(
    compiled: CompiledFeaturizer, any_prompt: Prompt, text: str, before: str
) -> None:
    """To the last bit, whatever the text: training may run with one and serving with the other."""
    for prompt in (any_prompt, Prompt(text=text, before=before)):
        assert described(extract_compiled(prompt, compiled)) == described(extract_by_numpy(prompt))


QUOTES = [
    "'",
    '"',
    "`",
    "```",
    "“",
    "»",
    "it's",
    "a longer quotation of some words",
    "\n",
    " ",
    "\t",
    "? ",
    "?",
    ".",
    "! ",
    "。",
    "word",
    "漢字",
    "\x00",
]


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.sampled_from(QUOTES), max_size=60).map("".join))
def test_the_compiled_parts_are_those_of_the_rules(compiled: CompiledFeaturizer, text: str) -> None:
    """Plain marks, what is asked, and its question: byte by byte what the expressions say, however marks are nested or left open."""
    prompt = Prompt(text=text, system=text[::-1])
    data, system, settled = to_search(prompt)
    assert compiled.parts(data, system, settled=settled) == texts_of(prompt)


def test_a_text_that_the_library_has_no_room_for_is_refused(compiled: CompiledFeaturizer) -> None:
    """Whoever reads more of a text has to give the library more room."""
    with pytest.raises(ValueError, match="5000 bytes"):
        compiled.words(b"x" * 5000, 10)
    with pytest.raises(ValueError, match="50000 bytes"):
        compiled.parts(b"x" * 50_000, b"", settled=False)


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_without_a_library_that_loads_numpy_does_the_work(tmp_path: Path, content: bytes | None) -> None:
    """None is compiled, or it is for another machine."""
    library = tmp_path / "words.so"
    if content is not None:
        library.write_bytes(content)
    assert compiled_featurizer(library) is None


def test_a_library_of_other_numbers_is_not_used(tmp_path: Path) -> None:
    """One that an earlier version left behind would give features that the model does not know."""
    (tmp_path / SOURCE).parent.mkdir()
    source = (ROOT / SOURCE).read_text()
    other = source.replace("0xFF] * power", "0xFF] + power")
    assert other != source
    (tmp_path / SOURCE).write_text(other)
    if compile_library(tmp_path) is not None:
        pytest.skip("nothing can be compiled here")
    assert compiled_featurizer(tmp_path / LIBRARY) is None


def test_a_library_of_another_source_is_not_called(tmp_path: Path) -> None:
    """Not even tried: it would take the tables that it is given for others."""
    (tmp_path / SOURCE).parent.mkdir()
    shutil.copy(ROOT / SOURCE, tmp_path / SOURCE)
    if compile_library(tmp_path) is not None:
        pytest.skip("nothing can be compiled here")
    assert compiled_featurizer(tmp_path / LIBRARY) is not None
    with (tmp_path / SOURCE).open("a") as source:
        source.write("/* a later version */\n")
    assert compiled_featurizer(tmp_path / LIBRARY) is None


def test_an_installation_without_a_compiler_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves nothing behind."""
    (tmp_path / SOURCE).parent.mkdir()
    shutil.copy(ROOT / SOURCE, tmp_path / SOURCE)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no-such-compiler" in str(compile_library(tmp_path))
    assert list((tmp_path / SOURCE).parent.iterdir()) == [tmp_path / SOURCE]


@pytest.mark.parametrize(
    ("text", "ask", "question"),
    [
        ("what is 2+2", "what is 2+2", "what is 2+2"),
        ("Hi. Is it 5? Thanks.", "Hi. Is it 5? Thanks.", " Is it 5?"),
        ('Who signed it? "Dear all, the lift is out of order. Bo"', "Who signed it?  ", "Who signed it?"),
        ("fix:\n```\nx = 1\nassert x > 2\n```\nthanks", "fix:\nthanks", "fix:\n"),
        ("page 1\nTotal 9.\nTax 2.\nhow much was the tax", "page 1\nhow much was the tax", "page 1\n"),
        (
            "it's Bo's, 'isn't it', I don't know",
            "it's Bo's, 'isn't it', I don't know",
            "it's Bo's, 'isn't it', I don't know",
        ),
        ("shorten 'this is what we wrote to them' now", "shorten   now", "shorten   now"),
        (
            '"All of this is a long quotation, and nothing else"',
            '"All of this is a long quotation, and nothing else"',
            "",
        ),
        ("哪个最高？一季度一百。“致各位业主,电梯周四维修,请走楼梯。”", "哪个最高?一季度一百. ", "哪个最高?"),
        ("?", "?", "?"),
        ("", "", ""),
    ],
)
def test_what_is_asked_is_told_from_what_is_pasted(text: str, ask: str, question: str) -> None:
    """Long quotations, fences and the middle of many lines are no part of it; its question is the last one, or how it begins."""
    found = ask_in(read_text(Prompt(text=text)))
    assert found.decode() == ask
    assert question_in(found).decode() == (question or ask)


@given(PROMPTS)
def test_the_parts_of_any_text_are_read_like_texts(prompt: Prompt) -> None:
    """What is asked has the features of a message of its own, and the question, too; neither is longer than what is searched."""
    features = extract(prompt)
    data, ask, question = texts_of(prompt)
    for part, read in ((features.ask, ask), (features.question, question)):
        assert len(read) <= HEAD_BYTES + TAIL_BYTES + 1
        assert part.structure[0] == np.float32(np.log1p(len(read)))
        assert len(part.indices) == len(part.counts) == len(part.sublinear)
    if ask == data:
        assert np.array_equal(features.ask.words, features.words)
