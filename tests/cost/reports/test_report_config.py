"""The section `cost.report`."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cost.config import CostSection
from cost.reports.report_config import ReportSection


def test_a_time_is_a_minute_of_the_day() -> None:
    """It is read as it is written, in UTC."""
    assert ReportSection(at="06:30", folder=Path("x")).at_minute == 390
    assert ReportSection(webhook="finance").at_minute == 360
    assert CostSection().report is None


@pytest.mark.parametrize(
    "section",
    [{}, {"folder": "x", "at": "24:00"}, {"folder": "x", "at": 360}, {"webhook": ""}, {"folder": "x", "to": 1}],
)
def test_what_cannot_be_meant_is_refused(section: dict[str, Any]) -> None:
    """A report that goes nowhere, a time that is none, a key that nobody knows."""
    with pytest.raises(ValidationError):
        ReportSection(**section)
