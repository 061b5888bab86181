"""Times of LiteLLM's budgets as periods of ours."""

from decimal import Decimal

import pytest

from api.litellm.durations import Renewal, renewal_of, seconds_of
from cost.budgets.periods import Period


@pytest.mark.parametrize(
    ("duration", "period"),
    [
        (None, "lifetime"),
        ("", "lifetime"),
        ("1h", "hour"),
        ("60m", "hour"),
        ("3600s", "hour"),
        ("1d", "day"),
        ("24h", "day"),
        ("daily", "day"),
        ("7d", "week"),
        ("1w", "week"),
        ("weekly", "week"),
        ("30d", "month"),
        ("1mo", "month"),
        ("31d", "month"),
        ("monthly", "month"),
        ("365d", "year"),
        ("12mo", "year"),
        ("1y", "year"),
    ],
)
def test_the_usual_times_are_the_same(duration: str | None, period: Period) -> None:
    """Those that LiteLLM itself resets by the calendar are ours, with the whole limit."""
    assert renewal_of(duration) == Renewal(period)


@pytest.mark.parametrize(
    ("duration", "period", "share"),
    [
        ("90d", "month", Decimal(1) / 3),
        ("14d", "week", Decimal("0.5")),
        ("2d", "day", Decimal("0.5")),
        ("30m", "hour", Decimal(2)),
    ],
)
def test_other_times_are_a_part(duration: str, period: Period, share: Decimal) -> None:
    """Another time has the longest period within it and that part of the limit, so that no more is spent than before."""
    found = renewal_of(duration)
    assert found is not None
    assert (found.period, round(found.share, 9), found.is_same) == (period, round(share, 9), False)


@pytest.mark.parametrize("text", ["soon", "30", "d30", "-1d", "1.5d", "30 parsecs", "9" * 30 + "d"])
def test_what_is_no_time(text: str) -> None:
    """Told, not guessed."""
    assert seconds_of(text) is None
    assert renewal_of(text) is None
