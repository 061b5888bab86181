"""Parameters that targets refused: remembered for a day, told once, and bounded."""

import logging

import pytest

from proxy.plan.refused_parameters import Refused, RefusedParameters


def test_a_refusal_is_remembered_for_a_day_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    now, told = [0.0], list[str]()
    refused = RefusedParameters(lambda: now[0])
    refused.tell = lambda each: told.append(each.name)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            refused.record("gpt", "seed")
        refused.record("gpt", "top_p")
    assert refused.current() == {"gpt": {"seed", "top_p"}}
    assert told == ["seed", "top_p"]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "target gpt refuses the parameter seed",
        "target gpt refuses the parameter top_p",
    ]
    now[0] = 86_401
    assert refused.current() == {}
    refused.record("gpt", "seed")
    assert refused.current() == {"gpt": {"seed"}}
    assert told == ["seed", "top_p", "seed"]


def test_what_a_model_takes_without_reasoning_goes_to_it_then() -> None:
    """A temperature that was refused without an effort may be taken at `none`; one that was refused there never is."""
    refused = RefusedParameters(lambda: 0.0)
    refused.record("gpt", "temperature")
    refused.record("gpt", "seed")
    assert refused.current() == refused.current("high") == {"gpt": {"temperature", "seed"}}
    assert refused.current("none") == {"gpt": {"seed"}}
    refused.record("gpt", "temperature", "none")
    refused.learn([Refused("gpt", "temperature", 10.0)])
    assert refused.current("none") == refused.current() == {"gpt": {"temperature", "seed"}}


def test_they_stay_bounded() -> None:
    """Names below a wildcard are as many as callers think of."""
    refused = RefusedParameters(lambda: 0.0)
    refused.learn(Refused(f"any/{number}", "seed", 10.0) for number in range(2_000))
    assert len(refused.known) == 1_000
    assert "any/1999" in refused.current()
