"""What every section of the configuration refuses, and the bounds of the numbers that many of them have."""

import math

import pytest
from pydantic import ValidationError

from settings.types import Finite, Seconds, Section, Share


class _Sample(Section):
    number: Finite = 0.0
    wait_s: Seconds = 1.0
    share: Share = 0.5


@pytest.mark.parametrize("given", [{"wait_s": 1e-9}, {"wait_s": 3_600}, {"share": 0}, {"share": 1}, {"number": -1e308}])
def test_bounds_belong_to_what_is_taken(given: dict[str, float]) -> None:
    assert _Sample.model_validate(given).model_dump() == _Sample().model_dump() | given


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("wait_s", 0, "greater_than"),
        ("wait_s", 3_600.001, "less_than_equal"),
        ("share", -0.001, "greater_than_equal"),
        ("share", 1.001, "less_than_equal"),
        *((name, value, "finite_number") for name in _Sample.model_fields for value in (math.nan, math.inf, -math.inf)),
        ("unknown", 1, "extra_forbidden"),
    ],
)
def test_what_is_refused_is_told_without_its_value(name: str, value: float, kind: str) -> None:
    with pytest.raises(ValidationError) as refused:
        _Sample.model_validate({name: value})
    assert [(fault["loc"], fault["type"]) for fault in refused.value.errors()] == [((name,), kind)]
    assert "input_value" not in str(refused.value)


def test_bounds_hold_for_what_may_be_left_out_too() -> None:
    class Optional(Section):
        wait_s: Seconds | None = None

    assert Optional().wait_s is None
    with pytest.raises(ValidationError, match="less than or equal to 3600"):
        Optional(wait_s=3_601)


def test_a_section_never_changes() -> None:
    sample = _Sample()
    with pytest.raises(ValidationError, match="frozen"):
        sample.share = 0.1  # type: ignore[misc]
    assert sample.share == 0.5
