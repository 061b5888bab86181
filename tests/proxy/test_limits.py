"""Token buckets: what is taken, refused, settled and told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import RateLimited
from proxy.limits import Limiter, Limits, duration, rate_headers


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_full_bucket_grants_its_burst_and_then_refuses_with_the_wait() -> None:
    """The burst equals the limit; the refusal says when one request fits again."""
    clock = Clock()
    limiter = Limiter(Limits(requests_per_minute=60), clock)
    for _ in range(60):
        limiter.admit("k", 0).settle(0)
    with pytest.raises(RateLimited) as refused:
        limiter.admit("k", 0)
    assert refused.value.retry_after_s == pytest.approx(1.0)
    clock.now += 1.0
    limiter.admit("k", 0)


def test_a_refusal_takes_nothing() -> None:
    """A request refused for its tokens leaves the request bucket as it was (rivals leak here)."""
    clock = Clock()
    limiter = Limiter(Limits(requests_per_minute=2, tokens_per_minute=100), clock)
    limiter.admit("k", 100)
    for _ in range(5):
        with pytest.raises(RateLimited, match="tokens per minute"):
            limiter.admit("k", 50)
    clock.now += 30
    limiter.admit("k", 50)


def test_settling_refunds_what_was_not_used_and_books_a_debt_for_what_was_more() -> None:
    """The estimate is corrected to the truth, in both directions, once."""
    limiter = Limiter(Limits(tokens_per_minute=100), Clock())
    first = limiter.admit("k", 80)
    first.settle(10)
    first.settle(10)
    second = limiter.admit("k", 90)
    second.settle(150)
    with pytest.raises(RateLimited) as refused:
        limiter.admit("k", 10)
    assert refused.value.retry_after_s == pytest.approx((10 + 60) * 60 / 100)


def test_keys_do_not_share_buckets() -> None:
    """One key's use leaves another's limit alone."""
    limiter = Limiter(Limits(requests_per_minute=1), Clock())
    limiter.admit("a", 0)
    limiter.admit("b", 0)
    with pytest.raises(RateLimited):
        limiter.admit("a", 0)


def test_a_request_larger_than_the_burst_passes_when_the_bucket_is_full() -> None:
    """It would otherwise wait forever; what it overdraws is a debt."""
    limiter = Limiter(Limits(tokens_per_minute=100), Clock())
    limiter.admit("k", 1_000)
    with pytest.raises(RateLimited):
        limiter.admit("k", 1)


def test_reloaded_limits_take_effect() -> None:
    """A key that already has a bucket gets the new limit."""
    limiter = Limiter(Limits(requests_per_minute=1), Clock())
    limiter.admit("k", 0)
    limiter.limits = Limits(requests_per_minute=5)
    for _ in range(5):
        limiter.admit("k", 0)
    with pytest.raises(RateLimited):
        limiter.admit("k", 0)


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 50), st.integers(0, 80)), max_size=60))
def test_no_window_admits_more_than_limit_and_burst(steps: list[tuple[float, int, int]]) -> None:
    """Over any run, granted tokens stay within burst + rate x time, whatever is settled."""
    clock = Clock()
    limiter = Limiter(Limits(tokens_per_minute=120), clock)
    start, used = clock.now, 0
    for wait_s, tokens, truth in steps:
        clock.now += wait_s
        try:
            admission = limiter.admit("k", tokens)
        except RateLimited:
            continue
        admission.settle(truth)
        used += truth
        # One request may overdraw by what its estimate missed; the debt is paid before the next.
        assert used <= 120 + (clock.now - start) * 2 + max(truth - tokens, 0) + 1e-6


@pytest.mark.parametrize(("seconds", "text"), [(0.012, "12ms"), (1, "1s"), (1.5, "1.5s"), (360, "6m0s"), (61, "1m1s")])
def test_reset_times_are_spelled_as_openai_does(seconds: float, text: str) -> None:
    """`12ms`, `1s`, `6m0s`."""
    assert duration(seconds) == text


def test_headers_tell_the_limits_that_are_set() -> None:
    """Only configured limits show, with what remains after this request."""
    admission = Limiter(Limits(requests_per_minute=60), Clock()).admit("k", 5)
    assert dict(rate_headers(admission)) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1s",
    }
