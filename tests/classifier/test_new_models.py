"""The study of new models: what is asked is never judged, shares are kept, and the figures come out of the draws."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from classifier.measuring.ability_row import chances
from classifier.training import new_models
from classifier.training.calibration_set import COUNTS
from classifier.training.data import Corpus
from classifier.training.new_models import NOT_ASKED, Unseen, _Exam, draw, figures, placed_figures
from classifier.training.published import Board, Line
from classifier.tuning import Ability

ROWS = 1_600


class MadeUp:
    """What the study reads of a corpus: half of it MMLU-Pro, the rest divided, and one model that follows its row."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        names = list(COUNTS)
        self.sources = np.array([names[0] if at % 2 else names[1 + at // 2 % 4] for at in range(ROWS)])
        self.groups = np.arange(ROWS) // 2
        self.models = ["new", "seen"]
        self.loads = rng.normal(size=(ROWS, 3))
        self.outcomes = (rng.random((ROWS, 2)) < chances(np.array([0.5, 1.0, 0.0, 0.0]), self.loads)[:, None]) * 1.0
        self.outcomes[::7, 0] = np.nan


@pytest.fixture
def made() -> MadeUp:
    return MadeUp()


def unseen(made: MadeUp) -> Unseen:
    return Unseen("family", np.arange(ROWS), made.loads, ["new"], {})


def test_published_scores_place_a_model_that_nobody_had_seen(made: MadeUp) -> None:
    """Its mean is nearer than by a declared .5, its own outcomes are hidden from the board, and its interval holds."""
    lines = [Line(f"known-{at}", "") for at in range(20)] + [Line("new", "")]
    strength = np.r_[np.linspace(-1, 2, 20), 0.5]
    values = np.stack([strength, strength - 0.5, strength + 9], axis=1)
    columns = ["MMLU-Pro", "GPQA-diamond", "source mmlu_pro"]
    values[:20, 2] = strength[:20]
    rows = {
        line.model: Ability(weights=[1.0, 0.0, 0.0], bias=float(own)) for line, own in zip(lines, strength, strict=True)
    }
    del rows["new"]
    part = Unseen("family", np.arange(ROWS), made.loads, ["new"], rows)
    found = placed_figures(cast("Corpus", made), [part], Board(lines, columns, values), lambda _line: None)
    by = {(each.what, each.prior): each.value for each in found}
    assert by["mean error mmlu_pro", "published"] < 0.05 < by["mean error mmlu_pro", "declared .5"]
    assert by["interval holds", "published"] == 1.0
    assert {each.questions for each in found} == {NOT_ASKED}


def test_what_is_asked_is_never_judged(made: MadeUp) -> None:
    """Not even another wording of the same question, and sources have their shares."""
    exam = _Exam(cast("Corpus", made), unseen(made))
    asked, judged = exam.drawn("new", 100, 1), exam.judged("new")
    assert not set(made.groups[asked]) & set(made.groups[judged])
    assert not np.isnan(exam.answers("new")[np.r_[asked, judged]]).any()
    share = np.mean(made.sources[asked] == "mmlu_pro")
    assert share == pytest.approx(COUNTS["mmlu_pro"] / sum(COUNTS.values()), abs=0.02)
    assert exam.weights(judged).sum() == pytest.approx(1.0)
    assert len(exam.drawn("new", 0, 1)) > 400


def test_more_questions_are_less_wrong(made: MadeUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error falls, intervals hold, and the picture is drawn."""
    monkeypatch.setattr(new_models, "DRAWS", 4)
    said: list[str] = []
    found = figures(cast("Corpus", made), [unseen(made)], said.append)
    by: dict[Any, float] = {(each.what, each.prior, each.questions): each.value for each in found}
    assert by["mean error", "known rows", 400] < by["mean error", "known rows", 25]
    assert by["interval holds", "plain", 100] >= 0.75
    assert len(said) == 2
    draw(found, tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").stat().st_size > 1_000
