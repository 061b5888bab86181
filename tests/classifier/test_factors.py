"""Factors of outcomes: what models have in common is found, what is missing is filled in, levels add up."""

import numpy as np
import pytest

from classifier.training.factors import (
    LOADS,
    Basis,
    Floats,
    equal_sources,
    shared_part,
    source_levels,
    taught_loads,
)

ONE_SOURCE = np.array(["only"] * 600)


def low_rank(seed: int = 0, prompts: int = 600, models: int = 24) -> tuple[Floats, Floats]:
    """Chances of being right that two hidden difficulties make, and one draw of outcomes from them."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(prompts, 2)) @ draw.normal(1.0, 0.6, (2, models)) + draw.normal(0.3, 0.5, models)
    chances = 1 / (1 + np.exp(-logits))
    return chances, (draw.random(chances.shape) < chances).astype(np.float64)


def with_holes(outcomes: Floats, share: float, seed: int = 1) -> Floats:
    return np.where(np.random.default_rng(seed).random(outcomes.shape) < share, np.nan, outcomes)


def error(said: Floats, truth: Floats) -> float:
    return float(np.sqrt(((said - truth) ** 2).mean()))


@pytest.mark.long
@pytest.mark.parametrize("missing", [0.0, 0.4, 0.7])
def test_what_models_share_is_nearer_the_truth_than_what_each_did(missing: float) -> None:
    """Loads tell the hidden chances better than raw outcomes and than each model's mean, with many entries missing."""
    chances, outcomes = low_rank()
    lesson = taught_loads(with_holes(outcomes, missing), ONE_SOURCE, loads=2)
    said = lesson.basis.outcomes(lesson.loads)
    assert error(said, chances) < 0.5 * error(outcomes, chances)
    assert error(said, chances) < 0.8 * error(np.broadcast_to(outcomes.mean(axis=0), chances.shape), chances)


def test_a_missing_outcome_is_inferred_from_the_others() -> None:
    """Held-out outcomes are told better by what is shared than by the model's own mean."""
    _, outcomes = low_rank()
    holed = with_holes(outcomes, 0.3)
    level = np.nanmean(holed, axis=0)
    said = level + shared_part(holed - level)
    missing = np.isnan(holed)
    assert error(said[missing], outcomes[missing]) < 0.93 * error(
        np.broadcast_to(level, said.shape)[missing], outcomes[missing]
    )


def test_what_is_shared_is_finite_where_nobody_was_asked() -> None:
    """A prompt that no model answered gets nothing beside the level, and a model without outcomes no factor."""
    residuals = with_holes(low_rank(prompts=60, models=5)[1] - 0.5, 0.2)
    residuals[0], residuals[:, 4] = np.nan, np.nan
    found = shared_part(residuals)
    assert np.isfinite(found).all()
    assert not found[0].any()
    assert np.abs(found[:, 4]).max() < 1e-6


def levelled(sources: list[str], answers: dict[tuple[str, int], list[float]], models: int) -> tuple[Floats, np.ndarray]:
    names = np.repeat(sources, 10)
    outcomes = np.full((len(names), models), np.nan)
    for (source, model), scores in answers.items():
        outcomes[names == source, model] = scores
    return outcomes, names


def share(right: int) -> list[float]:
    return [1.0] * right + [0.0] * (10 - right)


def test_a_model_that_was_never_asked_gets_a_level() -> None:
    """A source's easiness and a model's strength add up on the logit scale where there is no outcome."""
    answers = {("easy", 0): share(5), ("easy", 1): share(8), ("hard", 0): share(2)}
    outcomes, sources = levelled(["easy", "hard"], answers, 2)
    rows, levels = source_levels(outcomes, sources)
    assert levels[0].tolist() == pytest.approx([0.5, 0.8])
    assert levels[1, 0] == pytest.approx(0.2)
    # log(.2 / .8) + log(.8 / .2) - log(.5 / .5) = 0, drawn a little towards the other model.
    assert 0.35 < levels[1, 1] < 0.55
    assert rows.shape == outcomes.shape
    assert rows == pytest.approx(np.repeat(levels, 10, axis=0))


def test_a_model_that_was_asked_nowhere_gets_the_sources_level() -> None:
    """Without any outcome a model counts as an ordinary one, and always right or wrong is no certainty."""
    outcomes, sources = levelled(["easy", "hard"], {("easy", 0): share(10), ("hard", 0): share(0)}, 2)
    _, levels = source_levels(outcomes, sources)
    assert levels[0, 0] == pytest.approx(0.98)
    assert levels[1, 0] == pytest.approx(0.02)
    assert levels[0, 1] > 0.5 > levels[1, 1]


def test_few_answering_models_keep_their_own_voice() -> None:
    """Where one model answered, the lesson stays near what it did; where all did, nearer what they share."""
    _, outcomes = low_rank(models=20)
    outcomes[:50, 1:] = np.nan
    lesson = taught_loads(outcomes, ONE_SOURCE, loads=20)
    said = lesson.basis.outcomes(lesson.loads)
    alone, among_many = (np.abs(said[rows, 0] - outcomes[rows, 0]).mean() for rows in (slice(50), slice(50, None)))
    assert alone < 0.25
    assert alone < 0.8 * among_many


def test_loads_and_outcomes_are_two_ways_to_say_one_thing() -> None:
    """The basis is orthonormal: loads become outcomes and loads again, and all loads together lose nothing."""
    _, outcomes = low_rank(models=6)
    lesson = taught_loads(outcomes, ONE_SOURCE)
    assert lesson.basis.rows @ lesson.basis.rows.T == pytest.approx(np.eye(6))
    again = lesson.basis.loads(lesson.basis.outcomes(lesson.loads))
    assert again == pytest.approx(lesson.loads)


def test_there_are_no_more_loads_than_asked_for() -> None:
    """With many models the lesson has LOADS columns, with few as many as there are models."""
    many, few = low_rank(models=40)[1], low_rank(models=3)[1]
    assert taught_loads(many, ONE_SOURCE).loads.shape == (600, LOADS)
    assert taught_loads(few, ONE_SOURCE).loads.shape == (600, 3)
    assert isinstance(taught_loads(few, ONE_SOURCE).basis, Basis)


def test_sources_count_the_same() -> None:
    """A small source weighs as much as a large one, and the basis is centred accordingly."""
    sources = np.array(["large"] * 900 + ["small"] * 100)
    weights = equal_sources(sources)
    assert weights[:900].sum() == pytest.approx(0.5)
    assert weights[900:].sum() == pytest.approx(0.5)
    outcomes = np.where(sources[:, None] == "large", 0.9, 0.1) * np.ones((1, 4))
    assert taught_loads(outcomes, sources).basis.mean == pytest.approx(np.full(4, 0.5), abs=0.02)


def test_a_lesson_is_the_same_each_time() -> None:
    """No chance is left in it: the same outcomes teach the same numbers."""
    holed = with_holes(low_rank(prompts=200, models=8)[1], 0.5)
    one, other = (taught_loads(holed, ONE_SOURCE[:200]) for _ in range(2))
    assert np.array_equal(one.loads, other.loads)
