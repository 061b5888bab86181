"""What a caller is told: figures that are the tightest, and refusals that say what is in the way."""

import msgspec
import pytest

from proxy.admit.limits.limit import Limit
from proxy.admit.limits.limit_set import LimitSet, Outcome
from proxy.admit.limits.refusals import RateLimited, refusal, too_large
from proxy.errors import error_reply
from proxy.http.reply_head import field_lines
from tests.proxy.admit.limits.direct import CALLER, PREFIX, limit, told_of

_FOR_MODEL = Limit(key="team/payments/gpt-4o/tokens", scope="team", kind="tokens", rate=900, burst=900)


def refused(limits: tuple[Limit, ...], levels: list[float], *, tokens: int = 0, live: int = 1) -> RateLimited:
    return refusal(LimitSet(limits, PREFIX), Outcome(False, 0.0, levels), tokens, live, CALLER, "gpt-4o")


def test_a_refusal_says_it_as_openai_does() -> None:
    """Limit, used, requested, and when to come back."""
    error = refused((limit("requests", 600),), [0.0])
    assert error.message == (
        "Rate limit reached for requests per minute of team `payments`: Limit 600, Used 600, Requested 1. "
        "Please try again in 0.1s."
    )
    assert error.retry_after_s == pytest.approx(0.1)
    told = error_reply(error)
    assert (told.status, told.code) == (429, "rate_limit_exceeded")
    assert msgspec.json.decode(told.body)["error"]["type"] == "requests"
    assert dict(told.headers) == {
        b"retry-after": b"1",
        b"retry-after-ms": b"100",
        b"x-ratelimit-limit-requests": b"600",
        b"x-ratelimit-remaining-requests": b"0",
        b"x-ratelimit-reset-requests": b"1m0s",
    }


def test_of_several_that_refuse_the_longest_wait_is_told() -> None:
    """Before all of them give way, the caller cannot get in."""
    limits = (limit("requests", 60), limit("tokens", 600), limit("concurrency", 4, scope="key"))
    error = refused(limits, [0.5, -300.0, 4], tokens=100)
    assert (error.scope, error.kind) == ("team", "tokens")
    assert error.retry_after_s == pytest.approx(40.0)
    assert "Limit 600, Used 900, Requested 100" in error.message
    assert msgspec.json.decode(error_reply(error).body)["error"]["type"] == "tokens"


def test_one_that_does_not_refuse_is_not_named() -> None:
    """Only the key has too much in flight."""
    error = refused((limit("requests", 60), limit("concurrency", 4, scope="key")), [3.0, 4])
    assert error.message == (
        "Rate limit reached for concurrent requests of key `key_1`: Limit 4, Used 4, Requested 1. Please try again in 1s."
    )
    assert msgspec.json.decode(error_reply(error).body)["error"]["type"] == "requests"
    assert field_lines(error.headers) == told_of("requests", 60, 3, 57.0)


def test_a_limit_for_one_model_names_it() -> None:
    """Other models may still be used."""
    assert "of team `payments` for model `gpt-4o`: Limit 900," in refused((_FOR_MODEL,), [0.0], tokens=1).message
    alone = Limit(key="model/*/gpt-4o/requests", scope="model", kind="requests", rate=1, burst=1)
    assert "of model `gpt-4o`:" in refused((alone,), [0.0]).message


def test_a_burst_of_its_own_and_a_share_are_told() -> None:
    """Otherwise the figures would not add up."""
    text = refused((limit("requests", 10, rate=600),), [0.25]).message
    assert "Limit 600, Burst 10, Used 10, Requested 1" in text
    assert "Limit 150 (one of 4 shares of 600), Used 150" in refused((limit("requests", 600),), [0.0], live=4).message


def test_what_can_never_fit_is_not_to_be_tried_again() -> None:
    """Waiting does not help; the message says what does."""
    told = error_reply(too_large(limit("tokens", 100), 101, CALLER, "auto"))
    assert told.status == 429
    assert (b"x-should-retry", b"false") in told.headers
    assert b"retry-after" not in dict(told.headers)
    assert b"never" in told.body
    assert b"max_tokens" in told.body
