"""What is looked up for the graph: the same by the library and by numpy, and refused where it fits nothing."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from classifier.compiled import CompiledFeaturizer
from classifier.features import STRUCTURE
from classifier.manifest import Artifact, ArtifactMalformed
from classifier.onnx_classifier import OnnxClassifier
from classifier.prediction import Prompt
from classifier.tables import BLOCK, Inputs, LookUp, Tables, look_up_in, read_tables, widened, write_tables
from tests.classifier.test_features import PIECES, PROMPTS, compiled
from tests.examples import examples

__all__ = ["compiled"]
LOADS = 5
"""Those of the made-up model."""
ALONE = np.ones((1, BLOCK), np.int8)


@pytest.fixture(scope="module")
def tables(made_up_artifact: Artifact) -> Tables:
    return read_tables(made_up_artifact.tables, made_up_artifact.manifest.loads)


@pytest.fixture(scope="module")
def both(compiled: CompiledFeaturizer, tables: Tables) -> tuple[LookUp, LookUp]:
    """The way of the library, and that of numpy."""
    return look_up_in(tables, compiled), look_up_in(tables, None)


def looked_up(tables: Tables, how: LookUp, prompt: Prompt) -> Inputs:
    inputs = Inputs(tables)
    how(prompt, inputs)
    return inputs


@settings(max_examples=examples(300), deadline=None)
@given(PROMPTS, PIECES, PIECES)
def test_the_library_looks_up_what_numpy_does(
    both: tuple[LookUp, LookUp], tables: Tables, any_prompt: Prompt, text: str, before: str
) -> None:
    """To the digits of a float, for any text; what is counted and asked for exactly."""
    assert both[0].__qualname__ != both[1].__qualname__
    for prompt in (any_prompt, Prompt(text=text, before=before)):
        found, expected = (looked_up(tables, how, prompt) for how in both)
        assert found.gist == pytest.approx(expected.gist, abs=1e-4, rel=1e-5)
        assert found.sums == pytest.approx(expected.sums, abs=1e-3, rel=1e-5)
        assert np.array_equal(found.sketch, expected.sketch)
        assert found.asked == expected.asked
        assert found.tools == expected.tools == (prompt.tools > 0)


@pytest.mark.parametrize(
    "text",
    [
        "  one 2, two? ",
        "A. one\n\n\t- 22 two  \n",
        "漢字 \n 漢",
        "one\n\n\ntwo\n",
        " \n `",
        "word, 2 words. " * 150 + "\n",
    ],
)
def test_what_is_asked_in_the_same_words_is_looked_up_as_such(
    both: tuple[LookUp, LookUp], tables: Tables, text: str
) -> None:
    """Where only blanks and line ends are left out of a text, its words are not looked up anew; its size and lines are."""
    found, expected = (looked_up(tables, how, Prompt(text=text)) for how in both)
    assert found.numbers == pytest.approx(expected.numbers, abs=1e-4, rel=1e-5)


@pytest.mark.parametrize("size", [2303, 2304, 2305, 2306, 8191, 8193])
@pytest.mark.parametrize("word", ["word, ", "é", "漢 字 "])
def test_of_a_long_text_the_same_ends_are_read(
    both: tuple[LookUp, LookUp], tables: Tables, word: str, size: int
) -> None:
    """Whoever takes them out of it: so many characters, and so many bytes."""
    text = word * size
    for cut in (text[:size], text.encode()[:size].decode(errors="ignore")):
        found, expected = (looked_up(tables, how, Prompt(text=cut)) for how in both)
        assert found.numbers == pytest.approx(expected.numbers, abs=1e-4, rel=1e-5)


def test_without_a_library_the_score_is_the_same(
    made_up_artifact: Artifact, compiled: CompiledFeaturizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has no compiler gets the same predictions."""
    with_library, without = OnnxClassifier(made_up_artifact), OnnxClassifier(made_up_artifact)
    tables = read_tables(made_up_artifact.tables, with_library.loads)
    monkeypatch.setattr(with_library, "_look_up", look_up_in(tables, compiled))
    monkeypatch.setattr(without, "_look_up", look_up_in(tables, None))
    for text in ("", "hi", "Prove that the gate road truck is even, in 300 words. " * 30):
        prompt = Prompt(text=text, before="ok", turns=2, tools=len(text) % 2)
        one, other = with_library.classify(prompt), without.classify(prompt)
        assert one.source == other.source == "onnx"
        assert one.complexity == pytest.approx(other.complexity, abs=1e-5)
        assert one.expected_output_tokens == other.expected_output_tokens


def test_a_library_that_looks_up_something_else_is_not_used(tables: Tables, compiled: CompiledFeaturizer) -> None:
    """It gives other numbers for some prompts that numpy is asked for, too."""

    class Other(CompiledFeaturizer):
        def __init__(self) -> None:
            """Like the library, with tables that are a little different."""

        def with_model(self, tables: Any, numbers: Any) -> Any:
            return compiled.with_model({**tables, "gate": tables["gate"] * 2}, numbers)

    prompt = Prompt(text="gate road truck")
    one, other = (looked_up(tables, look_up_in(tables, how), prompt) for how in (Other(), None))
    assert np.array_equal(one.numbers, other.numbers)


def test_what_is_written_is_read(made_up_artifact: Artifact, tables: Tables) -> None:
    """Bit by bit, and where a line of the cache begins."""
    assert write_tables(tables) == made_up_artifact.tables
    assert not any(getattr(tables, name).ctypes.data % 64 for name in ("terms", "own", "meanings", "meaning_at"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sizes": np.array([7, 9, 1])}, f"there are {LOADS} loads"),
        ({"sizes": np.array([LOADS])}, f"there are {LOADS} loads"),
        ({"sizes": np.array([LOADS, 200, 3])}, "each bucket has loads"),
        ({"sizes": np.array([LOADS, 7, 3])}, "each bucket has loads"),
        ({"terms": ALONE}, "each bucket has loads"),
        ({"terms": np.ones(5, np.int8)}, "rows and columns"),
        ({"own": np.ones((9, BLOCK + 1), np.int8)}, f"a multiple of {BLOCK}"),
        ({"meanings": np.ones((9, 320), np.int8)}, "256 at most"),
        ({"own": ALONE}, "lies within the whole"),
        ({"own_first": np.zeros(1)}, "a place and a shift"),
        ({"own_shift": np.zeros((0,))}, "a place and a shift"),
        ({"own_first": np.array([-1, 0, 0])}, "lies within the whole"),
        ({"own_shift": np.array([99, 0, 0])}, "lies within the whole"),
        ({"gate": np.zeros((1, 3))}, "a weight for each fact"),
        ({"gate": np.full((3, len(STRUCTURE) + 2), np.nan)}, "every number is finite"),
        ({"meaning_at": np.zeros(3)}, "each word has a place"),
        ({"meanings": ALONE}, "each word's row"),
        ({"needed": np.zeros(0)}, "two bounds"),
        ({"gist_bounds": np.zeros((2, 3))}, "two bounds"),
        ({"fact_bounds": np.zeros((2, 3))}, "each fact has two bounds"),
    ],
)
def test_tables_that_fit_nothing_are_refused(tables: Tables, change: dict[str, Any], told: str) -> None:
    """The compiled loop reads where they say, so each number that says where is looked at first."""
    content = write_tables(msgspec.structs.replace(tables, **change))
    with pytest.raises(ArtifactMalformed, match=told):
        read_tables(content, LOADS)


@pytest.mark.parametrize("at", [-1, 10_000])
def test_a_gist_of_unknown_numbers_is_refused(tables: Tables, at: int) -> None:
    """What the small networks read has to be there."""
    needed = tables.needed.copy()
    needed[0] = at
    with pytest.raises(ArtifactMalformed, match="each number of the gist is known"):
        read_tables(write_tables(msgspec.structs.replace(tables, needed=needed)), LOADS)


@pytest.mark.parametrize("content", [b"", b"no tables"])
def test_what_is_no_archive_is_refused(content: bytes) -> None:
    """By name, whatever fails in reading it."""
    with pytest.raises(ArtifactMalformed, match="the tables cannot be read"):
        read_tables(content, LOADS)


def test_a_table_is_widened_to_whole_blocks() -> None:
    """With columns of nothing, one more at least where one is wanted."""
    for columns, more, expected in ((16, 0, 16), (16, 1, 32), (17, 0, 32), (31, 1, 32), (1, 0, 16)):
        found = widened(np.ones((2, columns), np.int8), more)
        assert found.shape == (2, expected)
        assert found.sum() == 2 * columns
