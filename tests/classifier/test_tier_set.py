"""Prompts of known tiers: the set is whole, nothing that is judged was learned from, and the shipped model orders it."""

import collections
from pathlib import Path

import numpy as np
import pytest

from classifier.onnx_classifier import OnnxClassifier, open_classifier
from classifier.prediction import Prompt
from classifier.training.data import BadData
from classifier.training.splits import normalised
from classifier.training.tier_measures import Judged, agreement, judged, order_of, weak_order
from classifier.training.tier_set import (
    HELD_KINDS,
    LANGUAGES,
    Tiered,
    held_rows,
    ladders,
    learned_from,
    second_labels,
    written,
)
from classifier.training.word_table import lexicon, ratings


@pytest.fixture(scope="module")
def rows() -> list[Tiered]:
    return written()


@pytest.fixture(scope="module")
def shipped() -> OnnxClassifier:
    return open_classifier()


@pytest.fixture(scope="module")
def held(rows: list[Tiered], shipped: OnnxClassifier) -> Judged:
    kept = [row for row in rows if row.kind in HELD_KINDS]
    return judged(kept, lambda asked: np.array([shipped.classify(prompt).complexity for prompt in asked]))


def test_the_written_set_fills_its_grid(rows: list[Tiered]) -> None:
    """Kinds, tiers and languages are there with each other, with and without system prompt, tools and history."""
    assert len(rows) >= 8_500
    assert len({row.row_id for row in rows}) == len(rows)
    assert len({row.kind for row in rows}) > 150
    cells = collections.Counter((row.tier, row.language) for row in rows)
    assert all(cells[tier, language] >= 15 for tier in range(4) for language in LANGUAGES)
    for share in (
        np.mean([bool(row.prompt.system) for row in rows]),
        np.mean([row.prompt.tools > 0 for row in rows]),
        np.mean([row.prompt.turns > 1 for row in rows]),
    ):
        assert 0.1 < share < 0.4
    assert len({row.kind for row in rows if row.kind in HELD_KINDS}) == len(HELD_KINDS)


def test_nothing_that_is_judged_is_learned_from(rows: list[Tiered]) -> None:
    """No kind that is held out, and no text of one in other words of case and signs, is among what is learned from."""
    learned = learned_from()
    assert not {row.kind for row in learned} & HELD_KINDS
    assert not {row.row_id for row in learned} & held_rows()
    assert held_rows() <= {row.row_id for row in rows}
    texts = {normalised(row.prompt.text) for row in learned if not row.prompt.history}
    both = [row.row_id for row in rows if row.kind in HELD_KINDS and normalised(row.prompt.text) in texts]
    # "thanks" after a conversation is a row of many kinds.
    assert len([row_id for row_id in both if not row_id.startswith("followup")]) <= 5


def test_what_is_judged_was_labelled_twice(rows: list[Tiered]) -> None:
    """The second labels cover the whole written set, those kinds that are held out among it, and agree with the first."""
    second = second_labels().keys()
    assert second <= {row.row_id for row in (*rows, *ladders())}
    assert all(row.row_id in second for row in rows)
    assert agreement()["n"] > 9_500
    assert agreement()["kappa"] > 0.8


def test_ladders_have_a_request_for_each_tier() -> None:
    """Of each domain the four tiers have as many requests."""
    for kind, found in collections.Counter((row.kind, row.tier) for row in ladders()).items():
        assert found >= 9, kind


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("made-up.jsonl", '{"id": "a", "kind": "a", "tier": 4, "lang": "en", "user": "hi"}'),
        ("made-up.jsonl", '{"id": "a", "kind": "a", "tier": 1, "lang": "en", "user": "hi", "teir": 1}'),
        ("ladders/made-up.tsv", "7\ten\thi"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, name: str, line: str) -> None:
    """Another tier, a field that nobody knows, a ladder of other columns: the file and the line are told."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f"{line}\n")
    with pytest.raises(BadData, match=r"made-up\.\w+, line 1"):
        (ladders if name.startswith("ladders") else written)(tmp_path)


def test_pairs_are_counted_as_they_stand() -> None:
    """A tie counts half, neighbours are no clear pairs, and without pairs there is no share."""
    assert order_of([0, 1, 3], [0.1, 0.1, 0.9]).every == pytest.approx(2.5 / 3, abs=1e-4)
    assert order_of([0, 1, 3], [0.1, 0.1, 0.05]).clear == 0.0
    assert np.isnan(order_of([2, 2], [0.1, 0.2]).every)


def test_origins_are_ordered_by_hardness() -> None:
    """Commands and everyday tasks are held against what was kept as hard."""
    kinds = ("clinc_oos", "self_instruct", "arena_hard_v01", "arena_hard_v2")
    found = [Tiered(row_id=kind, kind=kind, tier=0, language="en", prompt=Prompt(text="")) for kind in kinds]
    said = weak_order(found, np.array([0.1, 0.6, 0.5, 0.9]))
    assert said == {"commands < hard": 1.0, "everyday < hard": 0.5}


def test_the_shipped_model_orders_kinds_that_it_never_saw(held: Judged) -> None:
    """The bars of docs/classifier.md, on the artifact that ships."""
    assert held.whole.clear >= 0.985
    assert held.whole.every >= 0.95
    assert all(order.every >= 0.9 for order in held.languages.values())
    assert held.with_tools.every >= 0.9
    assert held.with_history.every >= 0.9


def test_the_shipped_model_minds_the_task_and_not_its_wording(held: Judged) -> None:
    """Case, typos, politeness, text beside the point, other words and other languages move complexity little."""
    assert held.changes.keys() == {"case", "typos", "politeness", "appended", "paraphrase", "translation"}
    assert max(held.changes.values()) < 0.1


def complexity(classifier: OnnxClassifier, text: str, **fields: object) -> float:
    return classifier.classify(Prompt(text=text, **fields)).complexity  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["what is 2+2", "2+2", "ok", "thanks!", "Set a timer", "hola", "你好", "wie spät ist es"]
)
def test_what_anybody_would_call_easy_is(shipped: OnnxClassifier, text: str) -> None:
    """With and without tools on offer, and after a proof."""
    assert complexity(shipped, text) < 0.35
    assert complexity(shipped, text, tools=5) < 0.35
    assert complexity(shipped, text, before="Prove Sylow's theorems.", history="Prove …", turns=2) < 0.35


@pytest.mark.parametrize(
    "text",
    [
        "Prove the Riemann hypothesis",
        "Design a lock-free queue for many writers and prove that it is linearizable.",
        "now prove it for the unbounded case",
        "Entwirf ein verteiltes Protokoll für Konsens und beweise, dass es sicher ist.",
    ],
)
def test_what_anybody_would_call_hard_is(shipped: OnnxClassifier, text: str) -> None:
    """With and without tools on offer."""
    assert complexity(shipped, text) > 0.6
    assert complexity(shipped, text, tools=1) == complexity(shipped, text)


def test_a_tool_loop_leaves_the_complexity_as_it_is(shipped: OnnxClassifier) -> None:
    """What follows the last user message is not read."""
    asked = "find out why the nightly build fails"
    assert complexity(shipped, asked, since="Traceback: theorem, mutex, deadlock " * 50) == complexity(shipped, asked)


def test_the_lexicons_are_sound() -> None:
    """Ratings are digits of whole words, and most of the lexicons' English words are rated."""
    rated, words = ratings(), lexicon()
    assert set(rated.values()) == set(range(10))
    assert words["beweise"] == ["prove"]
    assert np.mean([any(each in rated for each in english) for english in words.values()]) > 0.6
