"""Recalibration: what verdicts move, how far, and what is refused."""

import math

import msgspec
import numpy as np
import pytest

from classifier.learning.labels import Labels, read_labels
from classifier.learning.recalibrate import (
    MIN_LABELS,
    Known,
    TooFewLabels,
    fit_ability,
    pooled_ability,
    recalibrate,
)
from classifier.tuning import SKETCH, Ability, Group, Tuning
from tests.classifier.learning.simulated import (
    LOADS,
    Verdict,
    ability,
    sketches_of,
    templates,
    vectors,
    verdicts,
)

SHIPPED = {"cheap": ability(1.0, bias=1.0), "dear": ability(0.5, bias=2.0)}
CAPABILITIES = {"cheap": 0.5, "dear": 0.9}


def known(**fields: object) -> Known:
    return msgspec.structs.replace(
        Known(artifact="a1", loads=LOADS, abilities=SHIPPED, capabilities=CAPABILITIES), **fields
    )


def traffic(true: dict[str, Ability], prompts: int, seed: int = 1, team_id: str = "team_a") -> list[Verdict]:
    rng = np.random.default_rng(seed)
    sketches = sketches_of(templates(4, rng), rng.integers(4, size=prompts).tolist(), rng)
    return verdicts(true, rng.normal(size=(prompts, LOADS)), sketches, rng, team_id=team_id)


def one_target(true: Ability, prompts: int, seed: int = 1) -> Labels:
    return read_labels(traffic({"cheap": true}, prompts, seed), LOADS)[0]


def test_fifty_labels_move_the_level_and_five_hundred_the_direction() -> None:
    """The level follows a house's own traffic soon, the direction late."""
    prior, true = ability(1.0, bias=1.0), ability(0.0, 1.0, bias=-1.0)
    moved = {
        count: [fit_ability(one_target(true, count, seed), prior) for seed in range(8)] for count in (50, 500, 5_000)
    }
    level = {count: np.mean([row.bias for row in rows]) for count, rows in moved.items()}
    turned = {count: np.mean([row.weights[1] for row in rows]) for count, rows in moved.items()}
    assert level[50] < 0.1
    assert level[5_000] == pytest.approx(-1.0, abs=0.15)
    assert turned[50] < 0.25 < turned[500]
    assert turned[5_000] == pytest.approx(1.0, abs=0.15)
    assert all(row.verdicts == 50 for row in moved[50])


def test_a_proposal_lowers_the_loss_on_requests_it_did_not_see() -> None:
    """A cheap target that does worse here than in the training data is found out, with an interval that says so."""
    true = {"cheap": ability(1.0, bias=-1.0), "dear": SHIPPED["dear"]}
    proposal = recalibrate(traffic(true, 1_000), known(), version=3)
    assert (proposal.tuning.version, proposal.tuning.artifact) == (3, "a1")
    assert proposal.tuning.abilities["cheap"].bias == pytest.approx(-1.0, abs=0.35)
    told = {target.target_id: target for target in proposal.report.targets}
    change = told["cheap"].change
    assert change is not None
    assert told["cheap"].verdict == "better"
    assert change.after.log_loss < change.before.log_loss
    assert change.high.log_loss < 0
    assert change.high.brier < 0
    assert change.after.ece < change.before.ece
    assert 0.5 < change.after.pair_accuracy < 1
    assert proposal.report.held_out == 300
    assert proposal.report.improves


def test_a_target_whose_held_out_loss_got_worse_keeps_its_row() -> None:
    """Verdicts that turned round in the newest part do not move the row."""
    old = traffic({"cheap": ability(bias=-3.0)}, 140)
    new = [msgspec.structs.replace(each, adequate=1.0) if index >= 90 else each for index, each in enumerate(old)]
    proposal = recalibrate(new, known(), version=1)
    assert proposal.report.targets[0].verdict == "worse"
    assert not proposal.report.improves
    assert proposal.tuning.abilities == {}
    assert proposal.tuning.groups == {}


def test_too_few_labels_are_refused_by_name() -> None:
    """The error says how many there are and what was left out."""
    rows = [
        msgspec.structs.replace(each, weight=math.nan) if index % 10 == 0 else each
        for index, each in enumerate(traffic(SHIPPED, MIN_LABELS))
    ]
    with pytest.raises(TooFewLabels, match=r"cheap 12, dear 15; 3 left out: weight is not positive") as refused:
        recalibrate(rows, known(), version=1)
    assert refused.value.counts == {"cheap": 12, "dear": 15}
    with pytest.raises(TooFewLabels, match="none at all"):
        recalibrate([], known(), version=1)


def test_own_lengths_need_no_verdicts() -> None:
    """What a target's answers say of their length is proposed without any verdict, and only where it is another one."""
    before = Tuning(version=1, artifact="a1", lengths={"cheap": 0.5, "gone": 0.1})
    found = recalibrate(
        [], msgspec.structs.replace(known(), tuning=before), version=2, lengths={"cheap": 0.51, "dear": 1.2}
    )
    assert found.tuning.lengths == {"cheap": 0.51, "dear": 1.2, "gone": 0.1}
    assert found.report.lengths == ["dear"]
    assert found.report.improves
    same = recalibrate([], msgspec.structs.replace(known(), tuning=before), version=2, lengths={"cheap": 0.5})
    assert not same.report.improves


def test_a_published_row_is_surer_with_every_verdict() -> None:
    """The interval that a row had before any verdict shrinks, and is that of outcomes in the end."""
    placed = {name: msgspec.structs.replace(row, basis="published", reach=0.1) for name, row in SHIPPED.items()}
    found = recalibrate(traffic(SHIPPED, 1_000), msgspec.structs.replace(known(), abilities=placed), version=1)
    for row in found.tuning.abilities.values():
        assert 0 < row.reach < 0.03
        assert row.basis == "outcomes"


def test_a_target_with_few_labels_stays_beside_one_with_many() -> None:
    """It is told apart as too few and keeps its row."""
    rows = [each for each in traffic(SHIPPED, 400) if each.target_id == "cheap" or each.at_us < 40]
    told = {target.target_id: target for target in recalibrate(rows, known(), version=1).report.targets}
    assert (told["dear"].verdict, told["dear"].change, told["dear"].labels) == ("too-few", None, 20)


def test_odd_rows_are_left_out_and_counted() -> None:
    """Vectors that are not finite or of another model, verdicts and weights out of range change nothing."""
    good = traffic(SHIPPED, 200)
    nan = vectors(np.full((1, LOADS), np.nan), np.zeros((1, SKETCH)))[0]
    infinite = vectors(np.full((1, LOADS), np.inf), np.zeros((1, SKETCH)))[0]
    odd = [
        msgspec.structs.replace(good[0], request_id="x", **fields)
        for fields in (
            {"vector": nan},
            {"vector": infinite},
            {"vector": b""},
            {"adequate": 1.5},
            {"adequate": math.nan},
            {"weight": -1.0},
            {"weight": math.inf},
        )
    ]
    clean, with_odd = recalibrate(good, known(), version=1), recalibrate([*odd, *good], known(), version=1)
    assert with_odd.tuning == clean.tuning
    assert with_odd.report.dropped == {
        "vector is not finite": 2,
        "vector of another model": 1,
        "verdict outside 0 to 1": 2,
        "weight is not positive": 2,
    }


@pytest.mark.parametrize("kind", ["separable", "one class", "constant loads", "heavy weights", "soft"])
def test_awkward_data_gives_finite_rows(kind: str) -> None:
    """Separable rows, one class, loads that never move, huge weights and soft verdicts all have one answer."""
    rng = np.random.default_rng(3)
    loads = rng.normal(size=(120, LOADS)) * (0 if kind == "constant loads" else 3)
    made = verdicts({"cheap": ability()}, loads, np.zeros((120, SKETCH)), rng)
    adequate = {"separable": loads[:, 0] > 0, "one class": np.ones(120), "soft": np.full(120, 0.7)}.get(kind)
    if adequate is not None:
        made = [
            msgspec.structs.replace(each, adequate=float(value)) for each, value in zip(made, adequate, strict=True)
        ]
    if kind == "heavy weights":
        made = [msgspec.structs.replace(each, weight=1e6) for each in made]
    labels, _ = read_labels(made, LOADS)
    row = fit_ability(labels, SHIPPED["cheap"])
    assert np.isfinite([*row.weights, row.bias]).all()
    assert max(map(abs, [*row.weights, row.bias])) < 50
    recalibrate(made, known(), version=1)


def test_labels_weigh_as_they_say() -> None:
    """A row of weight 2 counts as two rows of weight 1."""
    labels = one_target(ability(bias=-1.0), 60)
    doubled = labels.where(np.repeat(np.arange(60), 2))
    heavy = msgspec.structs.replace(labels, weights=labels.weights * 2)
    once, twice = fit_ability(heavy, SHIPPED["cheap"]), fit_ability(doubled, SHIPPED["cheap"])
    assert [*once.weights, once.bias] == pytest.approx([*twice.weights, twice.bias], abs=1e-6)


def test_a_new_target_starts_from_its_like_and_gets_a_row_from_few_labels() -> None:
    """Without a row a target is guessed from those of like capability; sixty verdicts then place it."""
    abilities = {"a": ability(1.0, bias=0.0), "b": ability(1.2, bias=1.0), "far": ability(-3.0, bias=9.0)}
    guess = pooled_ability(abilities, {"a": 0.4, "b": 0.5, "far": 1.0}, 0.45, LOADS)
    assert 0.9 < guess.weights[0] < 1.2
    assert 0.3 < guess.bias < 0.7
    assert pooled_ability({}, {}, 1.0, LOADS).bias > pooled_ability({}, {}, 0.0, LOADS).bias
    true = ability(1.0, bias=-1.5)
    proposal = recalibrate(traffic({"new": true}, 60), known(capabilities={**CAPABILITIES, "new": 0.7}), version=1)
    assert proposal.report.targets[0].is_new
    assert proposal.report.targets[0].verdict == "better"
    assert proposal.tuning.abilities["new"].bias < -0.5


def test_an_older_tuning_of_the_same_rows_does_not_count_twice() -> None:
    """Refitting the same verdicts again gives the same row; a tuning that rests on rows now gone stays a prior."""
    rows = traffic({"cheap": ability(1.0, bias=-1.0)}, 300)
    first = recalibrate(rows, known(), version=1)
    again = recalibrate(rows, known(tuning=first.tuning), version=2)
    # Nothing is gained by saying the same again, so either the row stays or it is the same row.
    assert again.tuning.abilities["cheap"].bias == pytest.approx(first.tuning.abilities["cheap"].bias)
    rich = Tuning(version=1, artifact="a1", abilities={"cheap": ability(1.0, bias=-3.0, count=5_000)})
    later = recalibrate(rows, known(tuning=rich), version=2)
    assert later.tuning.abilities["cheap"].bias < -1.0


def test_a_tuning_of_another_artifact_is_not_looked_at() -> None:
    """Loads of two models cannot be compared."""
    other = Tuning(version=1, artifact="a0", abilities={"other": ability(9.0)})
    proposal = recalibrate(traffic(SHIPPED, 200), known(tuning=other), version=2)
    assert "other" not in proposal.tuning.abilities


def test_one_team_alone_learns_its_groups_and_moves_no_row() -> None:
    """With a team named, every ability stays, and so do the groups of the others."""
    rng = np.random.default_rng(5)
    application = rng.integers(2, size=600).tolist()
    sketches = sketches_of(templates(2, rng), application, rng)
    shift = np.where(np.array(application) == 0, -2.0, 1.0)
    rows = verdicts(SHIPPED, rng.normal(size=(600, LOADS)), sketches, rng, shift=shift)
    theirs = [Group(group_id="g", centre=[1.0] + [0.0] * (SKETCH - 1), shift={"cheap": 1.0}, verdicts=40)]
    before = Tuning(version=1, artifact="a1", abilities=SHIPPED, groups={"team_b": theirs})
    proposal = recalibrate(
        [*rows, *traffic({"cheap": ability(bias=-5.0)}, 200, team_id="team_b")],
        known(tuning=before),
        version=2,
        team_id="team_a",
    )
    assert proposal.tuning.abilities == before.abilities
    assert proposal.tuning.groups["team_b"] == theirs
    assert len(proposal.tuning.groups["team_a"]) == 2
    assert proposal.report.labels == 600
    assert proposal.report.improves


def test_teams_have_groups_of_their_own() -> None:
    """No group of one team stands under another's id, though both teams' rows were learned from at once."""
    rng = np.random.default_rng(6)
    rows = []
    for team_id in ("team_a", "team_b"):
        application = rng.integers(2, size=400).tolist()
        sketches = sketches_of(templates(2, rng), application, rng)
        shift = np.where(np.array(application) == 0, -2.5, 2.5)
        rows += verdicts(SHIPPED, rng.normal(size=(400, LOADS)), sketches, rng, shift=shift, team_id=team_id)
    groups = recalibrate(rows, known(), version=1).tuning.groups
    ids = {team_id: {group.group_id for group in each} for team_id, each in groups.items()}
    assert ids["team_a"]
    assert ids["team_b"]
    assert not ids["team_a"] & ids["team_b"]


def test_a_measured_row_is_where_a_refit_starts() -> None:
    """It stays beside what verdicts make of it, so that a later refit starts from it again."""
    rng = np.random.default_rng(4)
    measured = Ability(weights=rng.normal(size=LOADS).tolist(), bias=0.7, verdicts=200)
    tuning = Tuning(version=1, artifact="a1", abilities={"fresh": measured}, measured={"fresh": measured})
    proposal = recalibrate(traffic({"fresh": measured}, 60), known(abilities={}, tuning=tuning), version=2)
    assert proposal.tuning.measured == {"fresh": measured}
    assert not proposal.report.targets[0].is_new
    moved = np.abs(np.array(proposal.tuning.abilities["fresh"].weights) - measured.weights)
    assert moved.max() < 0.6
