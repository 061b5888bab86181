"""The roofline beside figures that others published: how far each fit is off."""

import math

import pytest

from planner.plans.efficiency import EFFICIENCIES
from planner.plans.gpus import GPUS
from planner.plans.published import figures, fit_of

# By efficiency and source: figures, largest root mean square error, largest error of one.
FITS = {
    ("vllm", "vLLM 0.7.2, a lone stream", "h100"): (21, 0.04, 0.08),
    ("vllm", "vLLM 0.7.2, a lone stream", "a100"): (21, 0.11, 0.17),
    ("vllm", "vLLM 0.7.2, full load", "h100"): (24, 0.24, 0.90),
    ("vllm", "vLLM 0.7.2, full load", "a100"): (24, 0.11, 0.27),
    ("vllm", "vLLM's latency tests of 2024", "h100"): (3, 0.04, 0.05),
    ("vllm", "vLLM's latency tests of 2024", "h200"): (3, 0.03, 0.03),
    ("ceiling", "NIM 1.8, first token", "h100"): (5, 0.14, 0.28),
    ("ceiling", "NIM 1.8, further token", "h100"): (5, 0.07, 0.08),
    ("ceiling", "NIM 1.8, tokens/s", "h100"): (33, 0.11, 0.22),
    ("ceiling", "TensorRT-LLM 1.0", "h100"): (30, 0.12, 0.35),
    ("ceiling", "TensorRT-LLM 1.0", "h200"): (30, 0.09, 0.25),
    ("ceiling", "TensorRT-LLM 1.0", "b200"): (20, 0.06, 0.15),
    ("ceiling", "TensorRT-LLM 0.12", "a100"): (25, 0.19, 0.46),
    ("ceiling", "TensorRT-LLM 0.12", "l40s"): (20, 0.14, 0.45),
}


def test_every_fit_is_as_good_as_the_documents_say() -> None:
    """By engine, source and GPU; a source that is added has to be told here and there."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for name, efficiency in EFFICIENCIES.items():
        for each in figures(efficiency):
            found.setdefault((name, each.source, each.gpu), []).append(each.error)
    assert set(found) == set(FITS)
    for key, errors in found.items():
        count, rms, worst = FITS[key]
        assert len(errors) == count, key
        assert math.sqrt(sum(error**2 for error in errors) / count) <= rms, key
        assert max(map(abs, errors)) <= worst, key


def test_a_lone_prompts_first_token_is_nims() -> None:
    """5,000 tokens on two H100 in FP8: 407 ms there; one factor for prompts and answers gave 963."""
    nim = next(
        each
        for each in figures(EFFICIENCIES["ceiling"])
        if each.source == "NIM 1.8, first token" and each.what.startswith("5000/")
    )
    assert nim.published == 406.77
    assert nim.computed == pytest.approx(nim.published, rel=0.08)


def test_fifty_streams_do_what_nim_does() -> None:
    """5,000 + 500 tokens at 50 streams: 814 tokens/s there; one factor gave 396."""
    nim = next(each for each in figures(EFFICIENCIES["ceiling"]) if each.what == "5000/500, 50 streams")
    assert nim.published == 814.37
    assert nim.computed == pytest.approx(nim.published, rel=0.1)


def test_a_gpu_without_figures_says_so() -> None:
    """Of L4 nothing was found, and of vLLM only H100, H200 and A100."""
    known = {name for name in GPUS if fit_of(EFFICIENCIES["vllm"], name) is not None}
    assert known == {"h100", "h200", "a100"}
    known = {name for name in GPUS if fit_of(EFFICIENCIES["ceiling"], name) is not None}
    assert known == {"h100", "h200", "b200", "a100", "l40s"}
