"""How long a provider's pace keeps whom away."""

import pytest

from providers.provider_pace import ProviderPace


def test_one_teams_refusal_keeps_that_team_away_and_anothers_everyone() -> None:
    """A minute's tokens may lack for one prompt alone; two teams that meet it show that all are meant."""
    pace = ProviderPace()
    pace.lengthen(100.0, 10.0, "rate", 300.0, 0, "team_a")
    assert (pace.ends_at("team_a"), pace.ends_at("team_b")) == (110.0, 0.0)
    pace.lengthen(101.0, 20.0, "rate", 300.0, 0, "team_b")
    assert pace.ends_at("team_a") == pace.ends_at("team_c") == 121.0


@pytest.mark.parametrize(("times", "lasts_s"), [(0, 1.0), (1, 2.0), (4, 16.0), (5, 30.0), (100, 30.0)])
def test_an_untold_pace_is_guessed_longer_each_time(times: int, lasts_s: float) -> None:
    """Up to half a minute; what many attempts at once are told is one refusal."""
    pace = ProviderPace()
    for _ in range(3):
        pace.lengthen(100.0, None, "rate", 300.0, times, "")
    assert (pace.until, pace.times) == (100.0 + lasts_s, times + 1)


def test_what_is_over_is_forgotten() -> None:
    """From the moment on at which it ends."""
    pace = ProviderPace()
    pace.lengthen(100.0, 10.0, "rate", 300.0, 0, "")
    pace.forget(109.9)
    assert pace.is_set
    pace.forget(110.0)
    assert not pace.is_set
