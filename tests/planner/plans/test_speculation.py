"""Guessing ahead is on where it pays."""

import pytest

from planner.plans.gpus import gpu_named
from planner.plans.models import model_named
from planner.plans.roofline import step_times
from planner.plans.sizing import Work
from planner.plans.speculation import Profile, Speculation, speculation_for

TIMES = step_times(model_named("llama-3-70b"), gpu_named("h100"), tp=4)


def chosen(profile: Profile, running: float, draft: str | None = None) -> Speculation:
    work = Work(input_tokens=100, output_tokens=300)
    return speculation_for(TIMES, work, running=running, rate=0.0, step_s=0.02, profile=profile, draft=draft)


@pytest.mark.parametrize(("running", "on"), [(1.0, True), (4.0, True), (200.0, False)])
def test_auto_follows_what_bounds_a_step(running: float, on: bool) -> None:
    """On while a step reads weights, off once it multiplies."""
    assert chosen("auto", running).on is on


def test_the_profile_decides_where_it_says_so() -> None:
    """On at a low load, off at the peak, whatever the plan's mean is."""
    assert chosen("low", 200.0).on
    assert not chosen("peak", 1.0).on
    assert chosen("peak", 1.0).config is None


def test_guesses_help_a_lone_stream_and_hurt_a_full_engine() -> None:
    """The reason for switching it."""
    found = chosen("auto", 300.0)
    assert found.gain_alone > 1.5
    assert found.gain_planned < 1


def test_a_draft_model_is_named() -> None:
    """Otherwise the prompt's own n-grams are looked up."""
    config = chosen("low", 1.0, draft="org/eagle").config
    assert config is not None
    assert config["model"] == "org/eagle"
    other = chosen("low", 1.0).config
    assert other is not None
    assert other["method"] == "ngram_gpu"
