"""The count of refusals: bounded, growing, and told again until it is kept."""

import pytest

from cost.times import MINUTE_US
from proxy.dispatch.outcome import RequestOutcome
from proxy.settle.refusals.counting import MOST_KEPT, SHOWN, Refusals, RefusalsTold, is_refusal

NOW_US = 1_750_000_020_000_000


def outcome(**changes: object) -> RequestOutcome:
    usual: dict[str, object] = {
        "request_id": "r",
        "organisation_id": "acme",
        "team_id": "a",
        "key_id": "k",
        "tier": "interactive",
        "alias": "",
        "asked_model": "auto",
        "stream": False,
        "status": 429,
        "error_code": "rate_limit_exceeded",
        "target_id": None,
        "reason": "",
        "complexity": None,
        "classifier": None,
        "classify_s": None,
        "attempts": (),
        "input_tokens": 0,
        "cached_input_tokens": 0,
        "output_tokens": 0,
        "cost_nanousd": None,
        "baseline_nanousd": None,
        "ttft_s": None,
        "tpot_s": None,
        "duration_s": 0.0,
    }
    return RequestOutcome(**{**usual, **changes})  # type: ignore[arg-type]


def total(told: RefusalsTold) -> int:
    return sum(each.count for each in told.counts)


@pytest.mark.parametrize(
    ("status", "refused"),
    [(200, False), (400, True), (402, True), (429, True), (499, False), (502, False), (503, True)],
)
def test_what_is_a_refusal(status: int, *, refused: bool) -> None:
    """Errors of ours and want of room; neither what failed upstream nor who hung up."""
    assert is_refusal(status) is refused
    counted = Refusals(lambda: NOW_US)
    counted.finished(outcome(status=status))
    assert total(counted.changed_after(0, "b")) == int(refused)


def test_a_minute_s_count_grows_and_is_told_when_it_changed() -> None:
    """After a mark only what changed since is told, whole, so that telling twice is telling once."""
    counted = Refusals(lambda: NOW_US)
    counted.finished(outcome())
    counted.finished(outcome(key_id="other"))
    first = counted.changed_after(0, "b")
    assert total(first) == 2
    assert counted.changed_after(first.mark, "b").counts == ()
    counted.finished(outcome())
    (again,) = counted.changed_after(first.mark, "b").counts
    assert (again.count, again.refused.key_id, again.refused.minute_us) == (2, "k", NOW_US - NOW_US % MINUTE_US)
    assert total(counted.changed_after(0, "b")) == 3


def test_what_was_read_is_let_go_of_and_what_was_not_is_kept() -> None:
    """A control plane that was away for an hour is told of all of it."""
    clock = [NOW_US]
    counted = Refusals(lambda: clock[0])
    counted.finished(outcome())
    clock[0] += 60 * MINUTE_US
    told = counted.changed_after(0, "b")
    assert total(told) == 1
    counted.changed_after(told.mark, "b")
    assert counted.changed_after(0, "b").counts == ()


def test_a_flood_of_names_has_bounds() -> None:
    """Beyond them teams are still told, and nothing more is kept."""
    counted = Refusals(lambda: NOW_US)
    for number in range(MOST_KEPT + 1_000):
        counted.finished(outcome(key_id=f"k{number}"))
    told = counted.changed_after(0, "b")
    assert len(told.counts) <= MOST_KEPT
    assert total(told) + counted.uncounted == MOST_KEPT + 1_000
    assert counted.uncounted == 0


def test_of_a_flood_the_first_of_each_minute_are_told_one_by_one() -> None:
    """Once: what was read is let go of. What reached a model is in the ledger, and nobody's has no page."""
    clock = [NOW_US]
    counted = Refusals(lambda: clock[0])
    for number in range(SHOWN + 5):
        counted.finished(outcome(request_id=f"r{number}", error_message="Rate limit of team `a` reached."))
    counted.finished(outcome(request_id="anonymous", team_id=""))
    told = counted.changed_after(0, "b")
    assert [each.request_id for each in told.requests] == [f"r{number}" for number in range(SHOWN)]
    assert told.requests[0].message == "Rate limit of team `a` reached."
    assert counted.changed_after(told.mark, "b").requests == ()
    clock[0] += MINUTE_US
    counted.finished(outcome(request_id="later"))
    assert [each.request_id for each in counted.changed_after(told.mark, "b").requests] == ["later"]


def test_what_a_caller_may_have_typed_is_not_kept() -> None:
    """Of a wrong request the quoted parts are left out; of a limit they are our own names."""
    counted = Refusals(lambda: NOW_US)
    counted.finished(outcome(status=400, error_code="model_not_found", error_message="There is no model `my secret`."))
    (kept,) = counted.changed_after(0, "b").requests
    assert "secret" not in kept.message
    assert (kept.status, kept.reason) == (400, "model_not_found")


def test_an_end_user_stands_in_their_own_column_alone() -> None:
    """Which is what an erasure empties; the message of their limit is sent to the caller with their id."""
    counted = Refusals(lambda: NOW_US)
    said = "Rate limit reached for requests per minute of end user `cust-1` of team `a`: Limit 1"
    counted.finished(outcome(error_message=said, end_user="cust-1"))
    (told,) = counted.changed_after(0, "b").requests
    assert told.end_user == "cust-1"
    assert told.message == said.replace("cust-1", "…")
