"""How an attempt ended, told to the ledger as flags and to the observers as a result."""

import pytest

from providers.errors import (
    ConnectFailed,
    FirstTokenTimeout,
    RequestRejected,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamTimeout,
)
from proxy.dispatch.attempt_result import Ending, flags_of, result_of
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
        (ConnectFailed("no", deployment_id="t0/a"), "upstream_error", "error"),
    ],
)
def test_an_upstreams_error_comes_first(error: UpstreamError, flag: str, result: str) -> None:
    """Whatever the ending is called, the error says more."""
    assert (flags_of("failed", error), result_of("failed", error)) == ((flag,), result)


def test_the_upstreams_own_status_is_kept() -> None:
    """The caller's may be another: a rejected key of ours is a 502."""
    for error in (
        RequestRejected("no", deployment_id="t0/a", status=400),
        UpstreamRefusedUs("no", deployment_id="t0/a", status=401),
    ):
        assert flags_of("failed", error) == ("upstream_error", f"upstream_status_{error.status}")
    assert result_of("failed", RequestRejected("no", deployment_id="t0/a", status=400)) == "rejected"


def test_a_deadline_is_a_timeout() -> None:
    """Whoever set it."""
    error = DeadlineExceeded("late")
    assert (flags_of("failed", error), result_of("failed", error)) == (("deadline_exceeded",), "timeout")
