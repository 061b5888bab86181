"""Lengths of own answers."""

import numpy as np
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.learning.lengths import FEWEST, AnswerLength, own_ratios
from classifier.learning.store import LearningStore
from tests.classifier.learning.kept import a_weighing


def test_a_ratio_comes_from_enough_answers() -> None:
    """It is that of median and sums; a target with fewer answers has none, and answers without a length count for nothing."""
    usual = np.random.default_rng(0).integers(50, 500, FEWEST)
    many = [AnswerLength("twice", 2 * int(tokens), int(tokens)) for tokens in usual]
    few = [AnswerLength("few", 10, 10)] * (FEWEST - 1) + [AnswerLength("few", 0, 10), AnswerLength("few", 10, 0)]
    assert own_ratios([*many, *few]) == {"twice": pytest.approx(np.log(2), abs=1e-3)}
    assert own_ratios([]) == {}


async def test_the_store_tells_lengths_of_this_artifacts_prompts(engine: AsyncEngine) -> None:
    """Rows of another artifact, and those that are older than the column, tell nothing."""
    store = LearningStore(engine)
    await store.add(
        [
            a_weighing("req_1", usual_tokens=100),
            a_weighing("req_2"),
            a_weighing("req_3", usual_tokens=100, artifact="model-2"),
        ],
        [],
    )
    assert await store.lengths("model-1") == [AnswerLength("small", 200, 100)]
