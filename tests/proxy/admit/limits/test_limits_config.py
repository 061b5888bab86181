"""The `limits` section, and what one's own values do over a default's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.admit.limits.limit import Limits
from proxy.admit.limits.limits_config import LimitsSection
from proxy.admit.limits.rules import MOST, over

_values = st.none() | st.integers(0, 5)
_limits = st.builds(Limits, **dict.fromkeys(Limits.__struct_fields__, _values))


def test_nothing_is_limited_unless_told() -> None:
    """The section may be left out."""
    section = LimitsSection()
    assert section.of_model("gpt-4o") == section.key.limits() == Limits()


def test_a_models_own_values_lie_over_each_models() -> None:
    """What it does not say is as for each model, and 0 lifts a limit."""
    section = LimitsSection.model_validate(
        {
            "model": {"requests_per_minute": 50, "request_burst": 5, "concurrency": 9},
            "models": {"a": {"requests_per_minute": 0}, "b": {"request_burst": 7}},
        }
    )
    assert section.of_model("a") == Limits(requests_per_minute=0, request_burst=5, concurrency=9)
    assert section.of_model("b") == Limits(requests_per_minute=50, request_burst=7, concurrency=9)
    assert section.of_model("c") == section.model.limits()


@given(_limits, _limits)
def test_own_values_come_first(own: Limits, default: Limits) -> None:
    """Field by field, and nothing is made up."""
    found = over(own, default)
    for name in Limits.__struct_fields__:
        mine = getattr(own, name)
        assert getattr(found, name) == (getattr(default, name) if mine is None else mine)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"key": {name: bad}} for name, most in MOST.items() for bad in (0, -1, most + 1, 1.5)),
        {"models": {"a": {"request_burst": 0}}},
        {"models": {"a": {"requests_per_minute": -1}}},
        {"models": {"": {}}},
        {"models": {"a" * 129: {}}},
        {"team": {"token_burst": 5}},
        {"models": {"a": {"request_burst": 5}}},
        {"poll_s": float("inf")},
        {"poll_s": 0},
        {"requests_per_minute": 5},
    ],
)
def test_what_cannot_hold_is_refused(wrong: object) -> None:
    """Out of bounds, a burst without its rate, and the old keys."""
    with pytest.raises(ValidationError):
        LimitsSection.model_validate(wrong)
