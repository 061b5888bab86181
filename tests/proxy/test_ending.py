"""How an attempt ended, told to the ledger as flags and to the observers as a result."""

import pytest

from providers.errors import (
    ConnectFailed,
    FirstTokenTimeout,
    RequestRejected,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamTimeout,
)
from proxy.ending import Ending, flags_of, result_of
from proxy.errors import DeadlineExceeded


@pytest.mark.parametrize(
    ("ending", "flags", "result"),
    [
        ("ok", (), "ok"),
        ("caller_gone", ("caller_gone",), "cancelled"),
        ("slow_reader", ("slow_reader",), "cancelled"),
        ("shutdown", ("shutdown",), "cancelled"),
        ("failed", ("failed",), "cancelled"),
        ("hedge_lost", ("hedge_lost",), "hedge_lost"),
    ],
)
def test_without_an_error_the_ending_tells(ending: Ending, flags: tuple[str, ...], result: str) -> None:
    """An answer that went well has no flag."""
    assert (flags_of(ending, None), result_of(ending, None)) == (flags, result)


@pytest.mark.parametrize(
    ("error", "flag", "result"),
    [
        (FirstTokenTimeout("no", deployment_id="t0/a"), "first_token_timeout", "timeout"),
        (UpstreamTimeout("no", deployment_id="t0/a"), "upstream_timeout", "timeout"),
        (StreamCut("no", deployment_id="t0/a"), "stream_cut", "cut"),
        (UpstreamRateLimited("no", deployment_id="t0/a"), "upstream_error", "rate_limited"),
        (RequestRejected("no", deployment_id="t0/a", status=400), "upstream_error", "rejected"),
        (ConnectFailed("no", deployment_id="t0/a"), "upstream_error", "error"),
    ],
)
def test_an_upstreams_error_comes_first(error: UpstreamError, flag: str, result: str) -> None:
    """Whatever the ending is called, the error says more."""
    assert (flags_of("failed", error), result_of("failed", error)) == ((flag,), result)


def test_a_deadline_is_a_timeout() -> None:
    """Whoever set it."""
    error = DeadlineExceeded("late")
    assert (flags_of("failed", error), result_of("failed", error)) == (("deadline_exceeded",), "timeout")
