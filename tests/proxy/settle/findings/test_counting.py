"""The count of what the guard found: bounded, growing, and told again until it is kept."""

from cost.times import HOUR_US, MINUTE_US
from guard.ruleset import Finding
from proxy.settle.findings.counting import MOST_FINDINGS, MOST_KEPT, MOST_SHOWN, SHOWN, FindingCounts, FindingsTold
from tests.proxy.settle.refusals.test_counting import outcome

NOW_US = 490_000 * HOUR_US
MAILS = Finding("email", "email", "mask", 2)
CARD = Finding("card", "card", "block", 1)


def sums(told: FindingsTold) -> dict[tuple[str, str, str], tuple[int, int]]:
    return {
        (each.found.team_id, each.found.name, each.found.action): (each.requests, each.findings) for each in told.counts
    }


def test_requests_and_findings_are_counted_by_what_was_done() -> None:
    """Refused requests, which have no attempts, too; requests in which nothing was found leave nothing."""
    counted = FindingCounts(lambda: NOW_US + 5)
    counted.finished(outcome(status=200))
    assert counted.changed_after(0, "b") == FindingsTold("b", (), 0)
    counted.finished(outcome(status=200, guard=(MAILS,)))
    counted.finished(outcome(status=400, guard=(MAILS, CARD)))
    counted.finished(outcome(status=200, team_id="b", guard=(MAILS,)))
    told = counted.changed_after(0, "b")
    assert sums(told) == {
        ("a", "email", "mask"): (2, 4),
        ("a", "card", "block"): (1, 1),
        ("b", "email", "mask"): (1, 2),
    }
    assert {each.found.hour_us for each in told.counts} == {NOW_US}


def test_only_what_changed_is_told_and_what_was_read_is_let_go_of() -> None:
    """Whole, so that telling twice is telling once; a control plane that begins anew is told the last hour again."""
    clock = [NOW_US]
    counted = FindingCounts(lambda: clock[0])
    counted.finished(outcome(guard=(MAILS,)))
    first = counted.changed_after(0, "b")
    counted.finished(outcome(guard=(CARD,)))
    second = counted.changed_after(first.mark, "b")
    assert sums(second) == {("a", "card", "block"): (1, 1)}
    assert [each.findings for each in second.requests] == [(CARD,)]
    assert sums(counted.changed_after(0, "b")) == {("a", "card", "block"): (1, 1), ("a", "email", "mask"): (1, 2)}
    clock[0] += 2 * HOUR_US
    counted.changed_after(second.mark, "b")
    assert counted.changed_after(0, "b").counts == ()


def test_some_requests_of_each_minute_and_kind_are_kept() -> None:
    """A rarer kind is not crowded out by a frequent one."""
    clock = [NOW_US]
    counted = FindingCounts(lambda: clock[0])
    for number in range(SHOWN + 5):
        counted.finished(outcome(request_id=f"m{number}", guard=(MAILS,)))
    counted.finished(outcome(request_id="c", guard=(MAILS, CARD)))
    assert [each.request_id for each in counted.changed_after(0, "b").requests] == [
        *(f"m{number}" for number in range(SHOWN)),
        "c",
    ]
    clock[0] += MINUTE_US
    counted.finished(outcome(request_id="later", guard=(MAILS,) * (MOST_FINDINGS + 1)))
    last = counted.changed_after(0, "b").requests[-1]
    assert (last.request_id, len(last.findings)) == ("later", MOST_FINDINGS)


def test_nobody_can_fill_the_memory() -> None:
    """Beyond the bounds names go first, then all; what is left out is told by a number."""
    counted = FindingCounts(lambda: NOW_US)
    for number in range(MOST_KEPT + 500):
        counted.finished(outcome(team_id=f"t{number}", guard=(MAILS,)))
    told = counted.changed_after(0, "b")
    assert len(told.counts) == MOST_KEPT
    assert len(told.requests) == MOST_SHOWN
    assert counted.uncounted == 2 * 500
    assert sum(each.findings for each in told.counts) + counted.uncounted == 2 * (MOST_KEPT + 500)
