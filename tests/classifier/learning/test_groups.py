"""Groups: found where applications differ, absent where they do not."""

import numpy as np
import pytest

from classifier.learning.groups import MAX_GROUPS, MIN_TEAM_PROMPTS, GroupTable, assign, clusters, learn_groups
from classifier.learning.labels import Floats, Labels, logits_of, losses, probability, read_labels
from classifier.learning.recalibrate import shifts
from classifier.tuning import SKETCH, Group
from tests.classifier.learning.simulated import LOADS, ability, sketches_of, templates, unit, verdicts

TARGETS = {"cheap": ability(0.8, bias=0.5), "dear": ability(0.3, bias=2.0)}


def team(rates: list[float], prompts: int, seed: int) -> tuple[Labels, Floats, list[int]]:
    """A team whose applications add `rates` to every target's logit, with the rows' logits and applications."""
    rng = np.random.default_rng(seed)
    application = rng.integers(len(rates), size=prompts).tolist()
    sketches = sketches_of(templates(len(rates), np.random.default_rng(99)), application, rng)
    loads = rng.normal(size=(prompts, LOADS))
    shift = np.array(rates)[application]
    labels, dropped = read_labels(verdicts(TARGETS, loads, sketches, rng, shift=shift), LOADS)
    assert not dropped
    return labels, logits_of(labels, TARGETS), application


def loss(labels: Labels, logits: Floats, groups: list[Group]) -> float:
    return float(losses(logits + shifts(labels, {"team_a": groups} if groups else {}), labels.adequate).mean())


def test_groups_find_applications_and_their_rates() -> None:
    """Applications with different success rates become groups with those rates, and unseen rows lose less."""
    rates = [-2.0, 0.0, 1.5, -1.0, 0.8]
    labels, logits, _ = team(rates, 1_500, seed=1)
    fresh, fresh_logits, application = team(rates, 2_000, seed=2)
    groups = learn_groups(labels, logits, "team_a", np.random.default_rng(0))
    assert loss(fresh, fresh_logits, groups) < loss(fresh, fresh_logits, []) - 0.05
    table = GroupTable({"team_a": groups})
    found = [table.assign("team_a", sketch) for sketch in fresh.sketches.astype(np.float32)]
    for number, rate in enumerate(rates):
        mine = [
            group.shift.get("cheap", 0.0)
            for group, own in zip(found, application, strict=True)
            if group and own == number
        ]
        assert len(mine) > 0.9 * application.count(number)
        assert abs(float(np.mean(mine)) - rate) < 0.5


@pytest.mark.parametrize("seed", range(6))
def test_groups_do_no_harm_where_applications_are_equal(seed: int) -> None:
    """Without any difference between applications the loss on unseen rows stays within noise."""
    labels, logits, _ = team([0.0] * 5, 400, seed=10 + seed)
    fresh, fresh_logits, _ = team([0.0] * 5, 4_000, seed=50 + seed)
    groups = learn_groups(labels, logits, "team_a", np.random.default_rng(0))
    assert loss(fresh, fresh_logits, groups) < loss(fresh, fresh_logits, []) + 0.006


def test_shifts_are_shrunk() -> None:
    """A group of a few prompts moves less than its own rate says, and less than a group of many."""
    few, few_logits, _ = team([-2.0, 1.0], 120, seed=3)
    many, many_logits, _ = team([-2.0, 1.0], 2_000, seed=3)
    small = learn_groups(few, few_logits, "team_a", np.random.default_rng(0))
    large = learn_groups(many, many_logits, "team_a", np.random.default_rng(0))
    assert small
    assert large
    lowest = {name: min(group.shift["cheap"] for group in groups) for name, groups in (("few", small), ("many", large))}
    assert -2.4 < lowest["many"] < -1.6
    assert lowest["few"] < 0


def test_the_same_rows_give_the_same_groups() -> None:
    """Learning is deterministic, ids included."""
    labels, logits, _ = team([-1.5, 1.5], 400, seed=4)
    learned = [learn_groups(labels, logits, "team_a", np.random.default_rng(7)) for _ in range(2)]
    assert learned[0] == learned[1]
    assert len({group.group_id for group in learned[0]}) == len(learned[0])


def test_the_number_of_groups_is_bounded() -> None:
    """Many applications do not make more groups than the limit, nor groups of fewer than twenty prompts."""
    labels, logits, _ = team(np.linspace(-2, 2, 60).tolist(), 3_000, seed=5)
    groups = learn_groups(labels, logits, "team_a", np.random.default_rng(0))
    assert 2 <= len(groups) <= MAX_GROUPS


def test_few_or_equal_prompts_make_no_groups() -> None:
    """Under a hundred prompts there are none, and copies of one prompt are one cluster."""
    labels, logits, _ = team([-2.0, 2.0], MIN_TEAM_PROMPTS - 1, seed=6)
    assert learn_groups(labels, logits, "team_a", np.random.default_rng(0)) == []
    same = np.repeat(unit(np.ones((1, SKETCH))), 100, axis=0)
    assert len(clusters(same, 4, np.random.default_rng(0)).centres) == 1


def group(name: str, centre: Floats, reach: float = 0.5) -> Group:
    return Group(group_id=name, centre=centre.tolist(), shift={"cheap": -1.0}, verdicts=30, reach=reach)


def test_a_prompt_unlike_every_group_has_none() -> None:
    """The nearest centre counts only within its reach; a team without groups, an empty or a broken sketch has none."""
    centres = templates(3, np.random.default_rng(8))
    groups = [group(f"g{number}", centre) for number, centre in enumerate(centres)]
    table = GroupTable({"team_a": groups, "team_b": []})
    near = centres[1].astype(np.float32)
    nearest = table.assign("team_a", near)
    assert nearest is not None
    assert nearest.group_id == "g1"
    assert assign(near, groups) == nearest
    for sketch in (-near, np.zeros(SKETCH, np.float32), np.full(SKETCH, np.nan, np.float32)):
        assert table.assign("team_a", sketch) is None
    assert table.assign("team_b", near) is None
    assert table.assign("team_c", near) is None


def test_a_centre_of_another_length_is_refused() -> None:
    """A tuning that was damaged is told at once, not in somebody's request."""
    with pytest.raises(ValueError, match="64 numbers"):
        GroupTable({"team_a": [group("g", np.ones(3))]})


def test_probability_stays_within_bounds() -> None:
    """No logit, however far, gives exactly 0 or 1."""
    chances = probability(np.array([-1e9, 0.0, 1e9]))
    assert 0 < chances[0] < chances[1] == 0.5 < chances[2] < 1
