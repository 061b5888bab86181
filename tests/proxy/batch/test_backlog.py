"""What batches lack: never more than is needed in time, and nothing where nothing is promised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.batch.backlog import Backlog, Due, lacking
from proxy.batch.scheduler import EASY

_DUE = st.lists(
    st.builds(
        Due,
        model=st.sampled_from(["a", "b", None]),
        tokens=st.integers(0, 10**7),
        left_s=st.none() | st.floats(-100, 86_400),
    ),
    max_size=6,
)


@given(due=_DUE, speed=st.none() | st.floats(0, 10**5))
def test_what_is_lacking_and_the_speed_are_what_makes_every_deadline(due: list[Due], speed: float | None) -> None:
    """In half of the time left, as long as an engine could still be there; a greater speed leaves less."""
    found = lacking(due, speed)
    assert all(rate >= 0 for rate in found.values())
    whole = sum(lacking(due, None).values())
    assert sum(found.values()) == pytest.approx(max(0.0, whole - (speed or 0.0)), abs=1e-6 * (1 + whole))
    for each in due:
        if each.left_s is not None and each.left_s >= 300:
            before = sum(other.tokens for other in due if other.model == each.model and _is_before(other, each))
            assert lacking(due, None).get(each.model, 0.0) * EASY * each.left_s >= before * (1 - 1e-9)
    assert lacking([each for each in due if each.left_s is None], None) == {}


def _is_before(one: Due, other: Due) -> bool:
    return one.left_s is not None and other.left_s is not None and one.left_s <= other.left_s


def test_a_pool_lacks_what_names_its_models_and_its_part_of_the_rest() -> None:
    backlog = Backlog()
    assert backlog.tokens_per_s({"llama"}, {"llama", "bought"}, 2) == 0
    backlog.note({"llama": 10.0, "bought": 100.0, "auto": 4.0, None: 2.0})
    assert backlog.tokens_per_s({"llama"}, {"llama", "bought"}, 2) == 13.0
    assert backlog.tokens_per_s({"other"}, {"llama", "bought", "other"}, 2) == 3.0
