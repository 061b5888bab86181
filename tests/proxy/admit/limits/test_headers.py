"""How OpenAI's headers tell what remains."""

import pytest

from proxy.admit.limits.headers import duration, rate_lines, remaining
from proxy.admit.limits.limit import Remaining
from proxy.admit.limits.limit_set import LimitSet
from tests.proxy.admit.limits.direct import PREFIX, limit, told_of


@pytest.mark.parametrize(("seconds", "text"), [(0.012, "12ms"), (1, "1s"), (1.5, "1.5s"), (360, "6m0s"), (61, "1m1s")])
def test_reset_times_are_spelled_as_openai_does(seconds: float, text: str) -> None:
    """`12ms`, `1s`, `6m0s`."""
    assert duration(seconds) == text.encode()


def test_headers_tell_the_limits_that_are_set() -> None:
    """Only those."""
    requests, tokens = limit("requests", 60), limit("tokens", 100)
    assert rate_lines(LimitSet((requests,), PREFIX), [59.0], 1) == (
        b"x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 59\r\nx-ratelimit-reset-requests: 1s\r\n"
    )
    assert rate_lines(LimitSet((tokens,), PREFIX), [100.0], 1) == told_of("tokens", 100, 100, 0.0)
    assert rate_lines(LimitSet((limit("concurrency", 4),), PREFIX), [1], 1) == b""


def test_the_headers_are_those_of_the_tightest_buckets() -> None:
    """The least remaining; of two with as much left the smaller limit. True remaining is rounded down."""
    limits = (
        limit("requests", 600, scope="organisation"),
        limit("requests", 60, scope="team"),
        limit("requests", 100, scope="key"),
        limit("tokens", 1000, scope="team"),
    )
    told = rate_lines(LimitSet(limits, PREFIX), [59.9, 59.0, 80.0, -30.5], 1)
    assert told == told_of("requests", 60, 59, 1.0) + told_of("tokens", 1000, 0, 61.83)


def test_a_share_tells_its_own_figures() -> None:
    """A quarter of the limit, and what is left of that."""
    assert remaining(limit("requests", 600), 150.0, 4) == Remaining(150, 150, 0.0)
    assert remaining(limit("concurrency", 10), 2, 4) == Remaining(3, 1, 0.0)
