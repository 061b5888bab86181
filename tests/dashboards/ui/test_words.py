"""Sentences about requests."""

from typing import Any, get_args

import pytest

from cost.ledger.entries import Entry
from cost.ledger.orphan_reaper import expiry_of
from cost.reports.latency import CAUSES
from cost.reports.recent import RecentRequest
from cost.usage import (
    ABSURD,
    CACHE_ADDED,
    CUT_AT_BOUND,
    DISPUTED,
    MISSING,
    PARTIAL,
    REASONING_ADDED,
    THOUGHT_ADDED,
    ZERO,
)
from dashboards.ui.words import because, cause_words, decision, ended, flag_words, money_words, outcome, reason_label
from proxy.dispatch.outcome import Unused
from proxy.plan.route_plan import Reason
from tests.cost.entries import reserve, settle


def answered(**changes: Any) -> Entry:
    """The attempt whose answer its caller got."""
    usual: dict[str, Any] = {
        "served": True,
        "reason": "cheapest-capable",
        "target_id": "llama",
        "baseline_price": "gpt-5@2026-01-01",
        "duration_us": 900_000,
    }
    return settle(**{**usual, **changes})


def request(*attempts: Entry) -> RecentRequest:
    return RecentRequest(request_id="req_1", attempts=attempts)


@pytest.mark.parametrize("reason", get_args(Reason))
def test_every_reason_of_the_policy_has_words(reason: str) -> None:
    """A label that is not its name, and a sentence that names the target."""
    assert reason_label(reason) != reason
    told = because(answered(reason=reason))
    assert "llama" in told
    assert told.endswith(".")
    assert "{" not in told


@pytest.mark.parametrize(
    "flag",
    sorted(
        {
            *CAUSES,
            *get_args(Unused),
            ABSURD,
            CACHE_ADDED,
            CUT_AT_BOUND,
            DISPUTED,
            MISSING,
            PARTIAL,
            REASONING_ADDED,
            THOUGHT_ADDED,
            ZERO,
        }
    ),
)
def test_every_flag_of_the_books_has_words(flag: str) -> None:
    """None is shown as it is written in the ledger."""
    assert flag_words(flag) != flag.replace("_", " ")


def test_what_is_new_is_shown_as_it_is_written() -> None:
    """A reason, flag or cause of a later version is not hidden."""
    assert reason_label("by-moonlight") == "by-moonlight"
    assert "by-moonlight" in because(answered(reason="by-moonlight"))
    assert flag_words("odd_moon") == "odd moon"
    assert flag_words("upstream_status_401") == "its status was 401"
    assert cause_words("status 418") == "Status 418"
    assert reason_label("") == "Unknown"


def test_a_plain_answer_is_told_whole() -> None:
    """Who was asked for, why it went where it went, how fast, what it cost and would have cost."""
    assert decision(request(answered())) == (
        "The caller asked for the gateway to choose (“auto”) in the interactive tier. Classified at complexity 0.25 of 1.",
        "llama was the cheapest model expected to answer a prompt of complexity 0.25 well enough.",
        "It answered after 900 ms, its own first token after 120 ms, and the caller got that answer.",
        "It cost $0.001000. The same tokens at gpt-5 would have cost $0.004000, so $0.003000 (75.0 %) was saved.",
    )


def test_each_attempt_has_its_part_of_the_story() -> None:
    """One that failed for nothing, and the one that stood in."""
    failed = answered(
        entry="void", served=False, status=502, flags=("first_token_timeout",), cost_nanousd=0, baseline_nanousd=None
    )
    told = decision(request(failed, answered(attempt=2, target_id="gpt-5", reason="fallback")))
    assert told[2] == (
        "It was given up after 900 ms: no first token arrived in time, status 502; nothing can have been charged."
    )
    assert told[3] == "gpt-5 answered as the fallback of a model that could not."
    assert outcome(request(failed, answered(attempt=2, target_id="gpt-5"))) == ("Fell back", "info")


def test_a_retry_at_the_same_model_is_told_as_such() -> None:
    """Not as a fallback, whatever was the reason for the model."""
    failed = answered(served=False, status=502, flags=("upstream_error",), baseline_nanousd=None)
    again = request(failed, answered(attempt=2))
    assert outcome(again) == ("Retried", "info")
    assert "llama was asked again, as such a failure may pass." in decision(again)


def test_a_stream_that_another_replica_went_on_with_is_told_so() -> None:
    """The first attempt broke off, and its caller got the whole answer all the same."""
    broken = answered(served=False, flags=("stream_cut",), baseline_nanousd=None)
    rest = answered(attempt=2, flags=("continued",), ttft_us=5_000)
    assert request(broken, rest).first_token_us == 120_000, "the caller's first token was the first attempt's"
    told = decision(request(broken, rest))
    assert told[2] == (
        "It broke off after 900 ms: the answer broke off in the middle, and another replica went on with the answer; the tokens "
        "used are booked."
    )
    assert "another replica of llama was asked for the rest" in told[3]
    assert "it continued an answer" in told[4]
    assert outcome(request(broken, rest)) == ("Continued", "info")
    failed = answered(attempt=2, served=False, flags=("stream_cut", "continued"), baseline_nanousd=None)
    assert "The caller got no whole answer" in decision(request(broken, failed))[2]


def test_a_weak_answer_that_was_not_given_is_no_failure() -> None:
    """It answered, it cost, and another one's answer was given."""
    weak = answered(served=False, flags=("escalated", "usage_missing"), baseline_nanousd=None)
    better = answered(attempt=2, reason="escalated", target_id="gpt-5")
    assert ended(weak).startswith("It answered after 900 ms, but the answer was weak and was not returned")
    assert "did not say how many tokens" in ended(weak)
    assert outcome(request(weak, better)) == ("Escalated", "info")


def test_two_that_differed_are_told_as_asked_beside_each_other() -> None:
    """Nothing failed and nothing agreed, and the slower of the two is waited for, not their sum."""
    one = answered(served=False, reason="agreement", flags=("disputed",), baseline_nanousd=None, at_us=2_000_000)
    other = answered(
        served=False,
        reason="agreement",
        flags=("disputed",),
        baseline_nanousd=None,
        at_us=1_900_000,
        duration_us=800_000,
    )
    better = answered(attempt=3, target_id="gpt-5", at_us=2_500_000, duration_us=500_000)
    asked = request(one, other, better)
    assert outcome(asked) == ("Two differed", "info")
    assert asked.asked_two
    assert asked.took_us == 1_400_000
    assert "agreed" not in reason_label("agreement")


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (answered(), ("Answered", "good")),
        (answered(served=False, status=499, flags=("caller_gone",)), ("Caller hung up", "quiet")),
        (answered(served=False, status=502), ("Failed (502)", "bad")),
        (answered(served=False, status=200, flags=("stream_cut",)), ("Broken off", "bad")),
        (answered(served=False, status=0, flags=("orphaned",)), ("Unknown", "warn")),
        (expiry_of(reserve()), ("Unknown", "warn")),
    ],
)
def test_outcomes(entry: Entry, told: tuple[str, str]) -> None:
    """As the caller saw them; where nobody knows, that is what is said."""
    assert outcome(request(entry)) == told


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"cost_nanousd": None}, "Its cost and savings are unknown"),
        ({"baseline_nanousd": None}, "There is nothing to compare it with."),
        ({"baseline_nanousd": None, "served": False, "status": 502}, "Nothing was delivered, so nothing was saved."),
        ({"baseline_nanousd": 900_000}, "so it was $0.000100"),
        ({"baseline_nanousd": 0, "cost_nanousd": 0}, "so $0.00 was saved"),
        ({"usage_source": "estimated"}, "based on estimated tokens"),
        ({"target_id": "gpt-5", "baseline_nanousd": 1_000_000}, "it was the one that answered"),
        ({"baseline_price": ""}, "at the baseline model would have cost"),
    ],
)
def test_money_is_told_honestly(changes: dict[str, Any], part: str) -> None:
    """What is unknown is said to be, a loss is no saving, and a guess is called one."""
    assert part in money_words(request(answered(**changes)))
