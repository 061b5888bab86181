"""The learning curve: own labels close a gap where there is one to be closed."""

import numpy as np

from classifier.learning.labels import probability
from classifier.learning.recalibrate import Known
from classifier.training.evaluate import Pair
from classifier.training.learning_curve import Vectors, curve, halves
from tests.classifier.learning.simulated import LOADS, sketches_of, templates, vectors

PAIR = Pair("source", "weak", "strong")


def test_own_labels_find_the_applications_that_need_the_strong_model() -> None:
    """From chance at no labels upwards, on prompts that gave no label."""
    rng = np.random.default_rng(0)
    count = 1_600
    application = rng.integers(4, size=count)
    sketches = sketches_of(templates(4, rng), application.tolist(), rng)
    weak = (rng.random(count) < probability(np.array([-2.5, -1.0, 1.0, 3.0])[application])).astype(float)
    strong = (rng.random(count) < 0.95).astype(float)
    known = Known(artifact="a", loads=LOADS, capabilities={"weak": 0.5, "strong": 0.9})
    made = Vectors(vectors(rng.normal(size=(count, LOADS)), sketches), known)
    rows = curve(made, weak, strong, np.arange(count), PAIR)
    assert [row.labels for row in rows] == [0, 50, 200]
    assert rows[0].apgr == 0.5
    assert rows[2].apgr > 0.65
    assert rows[2].log_loss < rows[0].log_loss
    assert rows[2].groups >= 2


def test_wordings_of_one_question_stand_on_one_side() -> None:
    """No judged question gave a label."""
    questions = np.repeat(np.arange(50), 3)
    judged = halves(questions, seed=1)
    assert 60 < judged.sum() < 90
    assert not set(questions[judged]) & set(questions[~judged])
