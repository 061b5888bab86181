"""Labels: what is read, in which order, and which part is held out."""

import msgspec
import numpy as np
import pytest

from classifier.learning import labels as module
from classifier.learning.labels import held_out, losses, one_a_request, probability, read_labels
from classifier.tuning import SKETCH
from tests.classifier.learning.simulated import LOADS, Verdict, ability, vectors, verdicts


def some(prompts: int = 20) -> list[Verdict]:
    rng = np.random.default_rng(0)
    return verdicts(
        {"a": ability(), "b": ability()}, rng.normal(size=(prompts, LOADS)), np.zeros((prompts, SKETCH)), rng
    )


def test_rows_come_out_oldest_first_whatever_order_they_came_in() -> None:
    """The same rows in any order are the same labels."""
    forth, back = read_labels(some(), LOADS)[0], read_labels(reversed(some()), LOADS)[0]
    for name in forth.__struct_fields__:
        assert (getattr(forth, name) == getattr(back, name)).all()
    assert forth.at_us.tolist() == sorted(forth.at_us.tolist())


def test_nothing_is_no_labels() -> None:
    """An empty store gives empty arrays of the right shape."""
    empty, dropped = read_labels([], LOADS)
    assert (len(empty), empty.loads.shape, empty.sketches.shape, dropped) == (0, (0, LOADS), (0, SKETCH), {})


def test_a_vector_is_loads_then_sketch() -> None:
    """Little-endian float16, as predictions carry it."""
    loads, sketch = np.arange(LOADS, dtype=float)[None], np.full((1, SKETCH), 0.125)
    row = Verdict(request_id="r", target_id="a", vector=vectors(loads, sketch)[0], adequate=1.0)
    found, _ = read_labels([row], LOADS)
    assert (found.loads == loads).all()
    assert (found.sketches == sketch).all()


def test_the_newest_requests_are_held_out_whole() -> None:
    """Two verdicts on one request stand on one side."""
    rows = [row for each in some() for row in (each, msgspec.structs.replace(each, target_id="c"))]
    found, _ = read_labels(rows, LOADS)
    test = held_out(found, 0.25)
    assert test.sum() == 10
    assert set(found.requests[test]) == {f"team_a-{number}" for number in range(15, 20)}
    assert len(one_a_request(found)) == 20


def test_log_loss_is_that_of_the_probability() -> None:
    """Also for verdicts between 0 and 1, and finite for any logit."""
    logits, adequate = np.array([-2.0, 0.5, 3.0]), np.array([0.0, 0.3, 1.0])
    chances = probability(logits)
    plain = -(adequate * np.log(chances) + (1 - adequate) * np.log(1 - chances))
    assert losses(logits, adequate) == pytest.approx(plain)
    assert np.isfinite(losses(np.array([1e9, -1e9]), np.array([0.0, 1.0]))).all()


def test_beyond_the_limit_the_newest_are_read() -> None:
    """What is left out is counted."""
    one = some(1)[0]
    many = [
        msgspec.structs.replace(one, request_id=str(number), at_us=number) for number in range(module.MAX_LABELS + 5)
    ]
    found, dropped = read_labels(many, LOADS)
    assert len(found) == module.MAX_LABELS
    assert found.at_us[0] == 5
    assert dropped == {"beyond the limit": 5}
