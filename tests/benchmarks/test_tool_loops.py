"""The simulation of tool loops: the same for the same seed, and its rules do what their names say."""

import pytest

from benchmarks.tool_loops import RULES, SEED, Totals, can_do, simulate, tasks_of

_TURNS = 120
_NOISE = 0.6


@pytest.fixture(scope="module")
def found() -> dict[str, Totals]:
    tasks = tasks_of(SEED, _TURNS, _NOISE)
    return {rule.name: simulate(rule, tasks, SEED, _NOISE) for rule in RULES}


def test_the_same_seed_gives_the_same_figures(found: dict[str, Totals]) -> None:
    """Every draw hangs on the seed alone, so rules meet the same luck."""
    tasks = tasks_of(SEED, _TURNS, _NOISE)
    assert tasks == tasks_of(SEED, _TURNS, _NOISE)
    for rule in RULES[-2:]:
        assert simulate(rule, tasks, SEED, _NOISE) == found[rule.name]


def test_every_rule_meets_every_turn(found: dict[str, Totals]) -> None:
    """None is left out, and none is solved twice."""
    assert {totals.turns for totals in found.values()} == {_TURNS}
    assert all(0 < totals.solved <= _TURNS for totals in found.values())


def test_a_choice_for_the_turn_never_moves_and_a_raise_solves_more(found: dict[str, Totals]) -> None:
    """Which is what they are for; the best of all costs most."""
    assert found["per turn choice"].moves == found["fixed cheapest"].moves == 0
    raised = found["per turn + struggle raise"]
    assert raised.solved > found["per turn choice"].solved
    assert raised.moves < found["per step choice"].moves
    assert max(found.values(), key=lambda totals: totals.nanousd) is found["fixed best"]


def test_a_better_model_mostly_can_what_a_weaker_one_can() -> None:
    """Their draws are shared but for a small part."""
    tasks = [task for conversation in tasks_of(SEED, _TURNS, _NOISE) for task in conversation]
    pairs = [
        (can_do(SEED, task, stage, "small"), can_do(SEED, task, stage, "large"))
        for task in tasks
        for stage in range(len(task.hardness))
    ]
    assert sum(large for small, large in pairs if small) > 0.98 * sum(small for small, _ in pairs)
