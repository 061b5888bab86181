"""What may go to a deployment in a minute: never more, wherever the minute begins, and nearly all of it."""

from hypothesis import given
from hypothesis import strategies as st

from providers.deployment_rate import DeploymentRate


def sent(rate: DeploymentRate, asked: list[tuple[float, int]], live: int = 1) -> list[tuple[float, int]]:
    return [(at, tokens) for at, tokens in asked if rate.take(at, tokens, live) == 0.0]


@given(
    per_minute=st.integers(1, 500),
    gaps=st.lists(st.floats(0.0, 20.0, allow_nan=False), min_size=1, max_size=300),
)
def test_no_minute_has_more_requests(per_minute: int, gaps: list[float]) -> None:
    """However they come."""
    at, asked = 0.0, []
    for gap in gaps:
        at += gap
        asked.append((at, 0))
    gone = [when for when, _ in sent(DeploymentRate(per_minute, None), asked)]
    for begin in gone:
        assert sum(begin <= each < begin + 59.999 for each in gone) <= per_minute


def test_a_steady_stream_has_nine_tenths_and_more() -> None:
    """600 a minute are 60 at once and 540 after that."""
    rate = DeploymentRate(600, None)
    gone = sent(rate, [(at / 100, 0) for at in range(12_000)])
    assert 540 <= sum(60 <= at < 120 for at, _ in gone) <= 600


def test_processes_divide_it() -> None:
    """Each of four has a quarter, and one request at least."""
    assert len(sent(DeploymentRate(400, None), [(0.0, 0)] * 400, live=4)) == 10
    assert len(sent(DeploymentRate(2, None), [(0.0, 0)] * 5, live=4)) == 1


def test_tokens_are_corrected_by_what_was_used() -> None:
    """An answer that was shorter gives back; a longer one is paid off before the next."""
    rate = DeploymentRate(None, 10_000)
    assert rate.take(0.0, 1_000, 1) == 0.0
    assert rate.take(0.0, 1_000, 1) > 0.0
    rate.correct(1_000, 0)
    assert rate.take(0.0, 1_000, 1) == 0.0
    rate.correct(1_000, 2_000)
    assert round(rate.take(0.0, 500, 1)) == 10


def test_a_prompt_that_is_longer_than_fits_at_once_goes_when_nothing_else_went() -> None:
    """Else it never would; it is paid off afterwards."""
    rate = DeploymentRate(None, 10_000)
    assert rate.take(0.0, 9_000, 1) == 0.0
    assert round(rate.take(0.0, 1, 1)) == 53


def test_what_does_not_fit_takes_nothing() -> None:
    """Of neither."""
    rate = DeploymentRate(10, 10_000)
    assert rate.take(0.0, 1_000, 1) == 0.0
    assert rate.take(0.0, 1_000, 1) > 0.0
    # At the moment told there is one of each.
    assert rate.take(6.7, 1_000, 1) == 0.0
