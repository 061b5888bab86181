"""A team's own requests as arrays: only its own, only this model's, only when there are enough."""

import msgspec
import numpy as np
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.learning.requests import FEWEST, LOOKED_AT, MOST, own_requests
from classifier.learning.store import ClassifiedRequest, LearningStore
from tests.classifier.learning.kept import a_weighing

WIDTH = 3


def weighing(index: int) -> ClassifiedRequest:
    return a_weighing(
        f"req_{index}",
        at_us=index,
        artifact="a1",
        vector=np.array([index, 0.5, -1], dtype="<f2").tobytes(),
        input_tokens=index,
        output_tokens=2 * index,
    )


async def test_a_teams_newest_requests_come_as_arrays(engine: AsyncEngine) -> None:
    """Of many the newest are taken, with their vectors and lengths."""
    await LearningStore(engine).add([weighing(index) for index in range(MOST + 5)], ())
    found = await own_requests(engine, "team_a", "a1", WIDTH)
    assert found is not None
    assert found.vectors.shape == (MOST, WIDTH)
    assert found.vectors[0].tolist() == [MOST + 4, 0.5, -1]
    assert (found.input_tokens[0], found.output_tokens[0]) == (MOST + 4, 2 * (MOST + 4))
    assert found.weights.sum() == MOST


@pytest.mark.parametrize(
    ("team", "artifact", "width"),
    [("team_b", "a1", WIDTH), ("team_a", "a2", WIDTH), ("team_a", "", 0), ("team_a", "a1", 4)],
)
async def test_others_requests_and_other_models_vectors_do_not_count(
    engine: AsyncEngine, team: str, artifact: str, width: int
) -> None:
    """Another team's, another model's and a malformed row's numbers are never taken for these."""
    await LearningStore(engine).add([weighing(index) for index in range(FEWEST)], ())
    assert await own_requests(engine, team, artifact, width) is None


async def test_a_few_requests_are_no_sample(engine: AsyncEngine) -> None:
    """One fewer than enough is not enough."""
    await LearningStore(engine).add([weighing(index) for index in range(FEWEST - 1)], ())
    assert await own_requests(engine, "team_a", "a1", WIDTH) is None
    await LearningStore(engine).add([weighing(FEWEST)], ())
    assert await own_requests(engine, "team_a", "a1", WIDTH) is not None


async def test_only_the_latest_are_looked_at(engine: AsyncEngine) -> None:
    """After an update of the classifier a team's page does not look through all that the one before has scored."""
    newer = [msgspec.structs.replace(weighing(FEWEST + index), artifact="a2") for index in range(LOOKED_AT)]
    await LearningStore(engine).add([weighing(index) for index in range(FEWEST)], ())
    assert await own_requests(engine, "team_a", "a1", WIDTH) is not None
    await LearningStore(engine).add(newer, ())
    assert await own_requests(engine, "team_a", "a1", WIDTH) is None
