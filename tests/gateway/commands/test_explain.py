"""An explanation is the line's own decision, told in plain values."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.commands.explain import Explanation, explain
from gateway.commands.route import _print_explanation
from gateway.configuration.environment import Environment
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.settings import load
from tests.proxy.made_up_classifier import MadeUpClassifier, made_up_sample
from tests.proxy.plan.test_quality_tolerance import ABILITIES
from tests.proxy.plan.test_tool_loop import FAILED, USER, step
from tests.running_gateway import CHEAP_PRICES, DEAR_PRICES, model

SCRIPTED: list[dict[str, Any]] = [{"kind": "scripted"}]


@pytest.fixture
def config(tmp_path: Path) -> GatewayConfig:
    """A measured pair, and a target that is taken at its word."""
    path = tmp_path / "gateway.yaml"
    models = [
        model("big", SCRIPTED, prices=DEAR_PRICES),
        model("small", SCRIPTED, prices=CHEAP_PRICES, capability=0.3),
        model("declared", SCRIPTED, prices=DEAR_PRICES, capability=0.2),
    ]
    sections = {"cost": {"reference_target": "big"}, "policy": {"quality_floor": 0.9}}
    path.write_text(yaml.safe_dump({"providers": {"models": models}, **sections}))
    return load(path, Environment(data_dir=tmp_path))


def explained(config: GatewayConfig, floor: float | None = None) -> Explanation:
    abilities = {name: ABILITIES[name] for name in ("big", "small")}
    return explain(
        config, "Why is the sky blue?", floor=floor, classifier=MadeUpClassifier(abilities, made_up_sample())
    )


def test_it_tells_each_measured_targets_chance_and_what_it_would_lose(config: GatewayConfig) -> None:
    """The sum that decides can be checked by hand."""
    found = explained(config)
    assert [each["target"] for each in found.outlooks] == ["big", "small"]
    assert found.reference_adequate == found.outlooks[0]["adequate"] == pytest.approx(0.9526)
    big, small = found.outlooks
    assert small["loss"] == pytest.approx(big["adequate"] - small["adequate"])
    assert small["low"] <= small["adequate"] <= small["high"]
    assert found.quality_floor == 0.9


def test_a_floor_decides_and_a_stricter_one_pays_more(config: GatewayConfig) -> None:
    """The chosen target follows from what a good answer may cost at the floor."""
    worth = []
    for floor in (0.5, 0.7, 0.9, 1.0):
        found = explained(config, floor)
        small = found.outlooks[1]
        assert found.tolerance is not None
        assert found.willing_usd is not None
        assert found.candidates[0]["target"] == ("small" if small["loss"] <= found.tolerance else "big")
        worth.append(float(found.willing_usd))
    assert worth == sorted(worth)
    assert worth[0] < worth[-1]


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("Why is the sky blue?", ""),
        ("Why is the sky blue?\nA) dust\nB) air\nC) the sea\nD) ozone", "middle and small, where they differ big"),
    ],
)
def test_two_cheap_answers_first_are_told_where_they_would_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prompt: str, told: str
) -> None:
    """Which two, and who where they differ; only of answers that a program can compare."""
    path = tmp_path / "gateway.yaml"
    cheap = {"input": 0.1, "output": 0.4}
    models = [
        model("big", SCRIPTED, prices={"input": 20.0, "output": 80.0}),
        model("middle", SCRIPTED, prices=cheap),
        model("small", SCRIPTED, prices=cheap),
    ]
    path.write_text(yaml.safe_dump({"providers": {"models": models}, "cost": {"reference_target": "big"}}))
    abilities = {"big": (3.0, (0.5, 0.0)), "middle": (2.0, (0.5, 0.0)), "small": (1.8, (0.5, 0.0))}
    weighs = MadeUpClassifier(abilities, made_up_sample())
    found = explain(load(path, Environment(data_dir=tmp_path)), prompt, floor=1.0, classifier=weighs)
    assert found.two_first == told
    _print_explanation(found)
    assert ("with two cheap answers first" in capsys.readouterr().out) is bool(told)


def test_a_declared_target_is_told_by_its_complexity(config: GatewayConfig) -> None:
    """Both rules may stand side by side in one explanation."""
    details = {each["target"]: each["detail"] for each in explained(config, 1.0).rejected}
    assert details["declared"].startswith("it was not measured, and a minimum of 100 % takes measured models alone")
    details = {each["target"]: each["detail"] for each in explained(config, 0.99).rejected}
    assert details["declared"] == "complexity 0.50 is above its 0.20"
    assert details["small"].startswith("adequate with ")


def test_what_is_printed_says_it_all(config: GatewayConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """The chance, its interval, the loss and the tolerance."""
    _print_explanation(explained(config))
    shown = capsys.readouterr().out
    assert "at a minimum quality of 90 % one more good answer may cost up to $" in shown
    assert "0.953  0.903 to 1.000" in shown


@pytest.mark.parametrize(
    ("sampled", "willing_usd", "told"),
    [
        (
            True,
            "0",
            "at a minimum quality of 90 % no more is paid for a better answer than for the cheapest model's, so",
        ),
        (False, None, "at a minimum quality of 90 % nothing limits what one more good answer may cost, so"),
    ],
)
def test_a_price_that_is_none_is_not_told_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sampled: bool, willing_usd: str | None, told: str
) -> None:
    """Of one model nothing is dearer, and without a sample no limit is known: neither is an amount."""
    path = tmp_path / "gateway.yaml"
    models = [model("big", SCRIPTED, prices=DEAR_PRICES)]
    path.write_text(yaml.safe_dump({"providers": {"models": models}, "policy": {"quality_floor": 0.9}}))
    weighs = MadeUpClassifier({"big": ABILITIES["big"]}, made_up_sample() if sampled else None)
    found = explain(load(path, Environment(data_dir=tmp_path)), "Why is the sky blue?", classifier=weighs)
    assert found.willing_usd == willing_usd
    _print_explanation(found)
    shown = capsys.readouterr().out
    assert told in shown
    assert "may cost up to" not in shown


def test_without_measured_outcomes_nothing_is_compared(config: GatewayConfig) -> None:
    """The plain rule gives a complexity and no chances."""
    found = explain(config, "hi", classifier=MadeUpClassifier({}))
    assert (found.outlooks, found.reference_adequate) == ((), None)


def test_a_pools_target_is_taken_for_healthy_like_every_other(tmp_path: Path) -> None:
    """Nobody watches its replicas here, so whether there are any is not what decides."""
    path = tmp_path / "gateway.yaml"
    own = {key: value for key, value in model("own", [], prices=CHEAP_PRICES).items() if key != "deployments"}
    pool = {"name": "gpus", "targets": ["own"], "dns": {"host": "engines.invalid", "port": 8000}}
    path.write_text(yaml.safe_dump({"providers": {"models": [own]}, "selfhosted": {"pools": [pool]}}))
    found = explain(load(path, Environment(data_dir=tmp_path)), "Why is the sky blue?")
    assert [each["target"] for each in found.candidates] == ["own"]


def test_targets_that_were_never_measured_are_said_to_be_so(
    config: GatewayConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command that measures one; what has outcomes is measured."""
    found = explain(config, "Why is the sky blue?")
    assert found.evidence == dict.fromkeys(("big", "small", "declared"), "declared")
    _print_explanation(found)
    assert "weighbridge classifier measure big" in capsys.readouterr().out
    assert explained(config).evidence == {"big": "measured", "small": "measured", "declared": "declared"}


def test_a_tool_loop_is_told_with_its_struggle(config: GatewayConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """As the line reads it: three failing steps go to the better target."""
    loop = [message for number in range(3) for message in step("read", FAILED, path=number)]
    body = json.dumps({"model": "auto", "messages": [USER, *loop]}).encode()
    abilities = {name: ABILITIES[name] for name in ("big", "small")}
    found = explain(config, "", floor=0.5, classifier=MadeUpClassifier(abilities, made_up_sample()), body=body)
    assert (found.loop_steps, found.raises, found.struggle) == (3, 1, "repeated-errors")
    assert [(each["target"], each["reason"]) for each in found.candidates] == [
        ("big", "struggle"),
        ("small", "fallback"),
    ]
    _print_explanation(found)
    assert "a tool loop of 3 steps; it struggles: repeated-errors" in capsys.readouterr().out
