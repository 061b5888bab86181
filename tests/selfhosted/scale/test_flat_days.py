"""What the forecast makes of days on which nothing changes, looked at every minute."""

import math
import random

import pytest

from selfhosted.scale import forecast
from selfhosted.scale.forecast import Forecast


def test_rises_that_chance_makes_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes show a rise some thirty times a day although there is none, as three errors of a line through ten points are not rare.
    What that adds to the forecast is less than a hundredth, since the busy minutes of the last half-hour are planned for anyway.
    """
    rng, made, told = random.Random("flat"), Forecast(), []
    at_s = 0.0
    for minute in range(2 * 1_440):
        count = max(0, round(rng.gauss(60, math.sqrt(60))))
        work = sum(rng.lognormvariate(0, 1) for _ in range(count))
        for _ in range(4):
            at_s += 15.0
            made.observe(work / 60, at_s, at_s)
        if minute >= 20:
            with_rises = made.busy(360.0, 0.9)
            with monkeypatch.context() as patched:
                patched.setattr(forecast, "rise_per_s", lambda *_: 0.0)
                without = made.busy(360.0, 0.9)
            assert with_rises is not None
            assert without is not None
            told.append(with_rises / without)
    assert 1.0 <= sum(told) / len(told) < 1.01
    assert sorted(told)[int(0.99 * len(told))] < 1.15
