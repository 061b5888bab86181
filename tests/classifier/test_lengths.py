"""Usual lengths and ratios, on made-up answers."""

from pathlib import Path

import numpy as np
import pytest

from classifier.training.lengths import HIGH_TO_NONE, PLAIN, REASONING, REFERENCE, published_ratios, usual_lengths

HEADER = "source,model,mode,n,base,median_ratio,total_ratio,mean_length,unit,reasoning_share,note\n"


def test_a_ratio_is_to_gpt_4o_on_the_same_prompts() -> None:
    """A prompt's usual length is that of gpt-4o's answer also where gpt-4o was not asked, and gpt-4o's ratio is 1."""
    own = np.random.default_rng(0).integers(50, 500, 200).astype(float)
    tokens = np.stack([own, 2 * own, own / 2], axis=1)
    tokens[0, 0] = tokens[5, 1] = np.nan
    tokens[1] = np.nan
    usual, ratios = usual_lengths(tokens, np.array(["a"] * 200), [REFERENCE, "long", "short"])
    assert np.exp(ratios) == pytest.approx([1.0, 2.0, 0.5], rel=1e-6)
    assert np.delete(usual, 1) == pytest.approx(np.delete(own, 1), rel=0.02)
    assert np.isnan(usual[1])


def test_what_a_harness_made_of_a_model_is_no_habit() -> None:
    """In a source whose models got different forms gpt-4o's lengths count, and no ratio comes from there."""
    own = np.full(40, 100.0)
    tokens = np.stack([np.r_[4 * own, own], np.r_[own / 10, own]], axis=1)
    sources = np.array(["mmlu_pro"] * 40 + ["zeroeval_crux"] * 40)
    usual, ratios = usual_lengths(tokens, sources, [REFERENCE, "other"])
    assert usual.tolist() == pytest.approx([400.0] * 40 + [100.0] * 40)
    assert ratios.tolist() == pytest.approx([0.0, 0.0])


def test_a_visible_answer_is_not_what_a_reasoning_model_bills() -> None:
    """Its ratio is the published one; so is that of a model which shares no prompt with gpt-4o."""
    tokens = np.full((300, 3), 100.0)
    tokens[:, 2] = np.nan
    _, ratios = usual_lengths(
        tokens,
        np.array(["a"] * 300),
        [REFERENCE, "o1-mini-2024-09-12", "else"],
        {"o1-mini-2024-09-12": 1.7, "else": 0.3},
    )
    assert ratios.tolist() == [0.0, 1.7, 0.3]


def test_no_lengths_at_all_are_no_error() -> None:
    """Data without answers' lengths give no usual length, and ratios of 1."""
    usual, ratios = usual_lengths(np.full((4, 2), np.nan), np.array(["a"] * 4), ["one", "two"])
    assert np.isnan(usual).all()
    assert ratios.tolist() == [0.0, 0.0]


def test_published_ratios_fill_what_nobody_measured(tmp_path: Path) -> None:
    """Billed tokens of a reasoning model, visible ones of another; between efforts and beyond them what efforts do in general."""
    (tmp_path / "length_ratios.csv").write_text(
        HEADER
        + "b,gpt-5,default,100,gpt-4o-2024-08-06,,7.4,1,billed output tokens,0.7,of sums; visible characters ratio 1.6\n"
        + "c,gpt-5,medium,100,gpt-4o-2024-08-06,0.8,0.8,1,characters / 4,,\n"
        + "b,gpt-4.1,,100,gpt-4o-2024-08-06,1.0,4.0,1,characters / 4,,\n"
        + "r,llama-3.3-70b-instruct,,100,median model,3.0,3.0,1,characters / 4,,\n"
    )
    found = {key: float(np.exp(ratio)) for key, ratio in published_ratios(tmp_path).items()}
    assert found["gpt-5@medium"] == pytest.approx(7.4)
    assert found["gpt-5@minimal"] == pytest.approx(1.6)
    assert 1.6 < found["gpt-5@low"] < 7.4 < found["gpt-5@high"]
    assert found["gpt-4.1"] == pytest.approx(np.exp(np.log([1.0, 4.0]).mean()))
    assert found["llama-3.3-70b-instruct"] == pytest.approx(PLAIN)
    assert found["deepseek-r1"] == found["o3@high"] == pytest.approx(REASONING)
    assert found["gpt-5.1@none"] == pytest.approx(PLAIN)
    assert found["o3@low"] == pytest.approx(REASONING * HIGH_TO_NONE ** (0.35 - 1))
