"""How OpenAI's headers tell what remains."""

from typing import NamedTuple

import pytest

from proxy.http.reply_head import fields_of
from proxy.limits.headers import duration, rate_lines
from proxy.limits.limit import Remaining


class Figures(NamedTuple):
    """What an admission tells."""

    requests: Remaining | None
    tokens: Remaining | None


@pytest.mark.parametrize(("seconds", "text"), [(0.012, "12ms"), (1, "1s"), (1.5, "1.5s"), (360, "6m0s"), (61, "1m1s")])
def test_reset_times_are_spelled_as_openai_does(seconds: float, text: str) -> None:
    """`12ms`, `1s`, `6m0s`."""
    assert duration(seconds) == text.encode()


def test_headers_tell_the_limits_that_are_set() -> None:
    """Only those."""
    assert dict(fields_of(rate_lines(Figures(Remaining(60, 59, 1.0), None)))) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1s",
    }
    assert [name for name, _ in fields_of(rate_lines(Figures(None, Remaining(1, 1, 0.0))))] == [
        b"x-ratelimit-limit-tokens",
        b"x-ratelimit-remaining-tokens",
        b"x-ratelimit-reset-tokens",
    ]
    assert rate_lines(Figures(None, None)) == b""
