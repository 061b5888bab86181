"""The steps of closing a month: each says how it stands, and what is open is never told as done."""

from datetime import date
from typing import Any

import msgspec
import pytest

from cost.close.checklist import Mark, MonthFacts, Step, is_ready, providers_of, steps
from cost.close.checks import MonthCheck
from cost.close.month import Month
from cost.reports.period import PeriodLine
from cost.times import DAY_US, start_of

APRIL = Month(2026, 4)
MAY_4 = start_of(date(2026, 5, 4))
DONE = MonthCheck(begun_us=MAY_4 - 10, done_us=MAY_4 - 5)
BOUGHT = PeriodLine(team_id="a", provider="openai", target_id="gpt-4o", attempts=100, requests=100, cost_nanousd=10**9)
OWN = PeriodLine(provider="self-hosted", target_id="llama", pool="h100", attempts=50, requests=50, cost_nanousd=10**8)
IDLE = PeriodLine(provider="self-hosted", target_id="h100", pool="h100", origin="idle", cost_nanousd=3 * 10**8)
POSTED = PeriodLine(provider="openai", target_id="gpt-4o", origin="reconciliation", cost_nanousd=-(10**7))


def facts(*lines: PeriodLine, **changes: Any) -> MonthFacts:
    """A month that is over, checked, and settled but for what the test is about."""
    usual: dict[str, Any] = {"month": APRIL, "now_us": MAY_4, "check": DONE, "lines": lines or (BOUGHT, POSTED)}
    usual["invoiced"] = changes.get("lines", usual["lines"])
    used = {"openai": (APRIL.start_us, APRIL.start_us + DAY_US)}
    usual |= {"used_days": used, "compared": {"openai": {used["openai"][0]: "agrees", used["openai"][1]: "posted"}}}
    return MonthFacts(**{**usual, **changes})


def ticked(said: str, **changes: Any) -> Mark:
    return Mark(**{"ticked": True, "said": said, "comment": "", "by": "Finn", "at_us": MAY_4, **changes})


def step(found: MonthFacts, kind: str) -> Step:
    return next(each for each in steps(found) if each.kind == kind)


def test_a_settled_month_is_ready() -> None:
    """Every step is done, and none asks for anything."""
    found = steps(facts())
    assert [each.state for each in found] == ["done"] * 5
    assert not any(each.todo or each.command for each in found)
    assert is_ready(found)


def test_a_running_month_waits() -> None:
    """It cannot be closed before it is over."""
    found = facts(now_us=start_of(date(2026, 4, 28)) + 5)
    assert step(found, "over").state == "waiting"
    assert "3 more days" in step(found, "over").said
    assert not is_ready(steps(found))


@pytest.mark.parametrize(
    ("check", "state"),
    [
        (MonthCheck(), "open"),
        (MonthCheck(begun_us=0), "waiting"),
        (MonthCheck(begun_us=MAY_4, done_us=MAY_4 - 5), "waiting"),
        (msgspec.structs.replace(DONE, differences=2), "open"),
        (MonthCheck(begun_us=APRIL.end_us - 10, done_us=APRIL.end_us - 5), "waiting"),
        (DONE, "done"),
    ],
)
def test_the_books_are_believed_when_they_were_checked_after_the_end(check: MonthCheck, state: str) -> None:
    """Not before, not while it runs, and not when a figure differs."""
    found = facts(check=check)
    assert step(found, "books").state == state
    assert is_ready(steps(found)) == (state == "done")


def test_what_has_no_price_is_open() -> None:
    """It is counted, its model is named, and the command that books it is told."""
    lines = (BOUGHT, msgspec.structs.replace(BOUGHT, target_id="mystery", unpriced_attempts=7, cost_nanousd=0))
    found = step(facts(*lines, unpriced_attempts=7), "unpriced")
    assert found.state == "open"
    assert "7 attempts are in no total: mystery" in found.said
    assert "--version unpriced" in found.command


def test_estimates_are_looked_at_when_there_are_many() -> None:
    """One in a hundred is told; one more is for a person to look at."""
    for estimated, state in ((1, "done"), (2, "look")):
        found = facts(msgspec.structs.replace(BOUGHT, estimated_attempts=estimated), POSTED)
        assert step(found, "estimated").state == state
        assert is_ready(steps(found)) is (state == "done")


def test_days_without_their_bill_are_named() -> None:
    """Of a month that is over each is open; of the running one today's only waits."""
    days = tuple(APRIL.start_us + at * DAY_US for at in range(7))
    found = step(facts(OWN, pools=("h100",), provisional_days=days), "true-up")
    assert found.state == "open"
    assert "7 days do not add up to the bill yet: 2026-04-01" in found.said
    assert found.said.endswith("and more.")
    now = APRIL.start_us + 6 * DAY_US + 5
    assert step(facts(OWN, pools=("h100",), provisional_days=days[6:], now_us=now), "true-up").state == "waiting"
    assert step(facts(OWN, pools=("h100",)), "true-up").state == "done"


def test_idle_hours_are_for_somebody_to_decide() -> None:
    """They are told with their share of everything, as Showback has it, and of what the GPUs cost alone."""
    found = facts(OWN, IDLE, BOUGHT, pools=("h100",))
    idle = step(found, "idle")
    assert (idle.state, idle.said) == (
        "look",
        "$0.30, 21.4 % of the bill and 75.0 % of the GPUs' part of it, was used by no team and is listed in a row of its own.",
    )
    assert not is_ready(steps(found))
    assert is_ready(steps(facts(OWN, IDLE, BOUGHT, pools=("h100",), marks={"idle": ticked(idle.said)})))


def test_a_tick_is_of_what_was_said() -> None:
    """When the figures change, who ticked them is asked again; a comment alone settles nothing."""
    lines = (OWN, IDLE, BOUGHT)
    old = step(facts(*lines, pools=("h100",), marks={"idle": ticked("$0.10, was used by nobody")}), "idle")
    assert (old.state, old.is_outdated) == ("look", True)
    note = ticked("", ticked=False, comment="asked around")
    said = step(facts(*lines, pools=("h100",), marks={"idle": note}), "idle")
    assert (said.state, said.is_outdated, said.mark) == ("look", False, note)


def test_what_must_be_settled_cannot_be_ticked() -> None:
    """A missing price is no matter of opinion."""
    marks = {"unpriced": ticked("1 attempt stands in no sum.")}
    found = step(facts(unpriced_attempts=1, marks=marks), "unpriced")
    assert (found.state, found.can_be_ticked) == ("open", False)


def test_a_provider_is_compared_when_each_day_with_requests_was() -> None:
    """One day posted is not the month; a day that differs is told; days without requests need nothing."""
    first, second = APRIL.start_us, APRIL.start_us + DAY_US
    found = step(facts(compared={"openai": {second: "posted"}}), "reconciliation")
    assert found.state == "look"
    assert found.said == "1 of 2 days with requests were compared; not: 2026-04-01."
    assert step(facts(compared={"openai": {first: "agrees", second: "differs"}}), "reconciliation").said.startswith(
        "1 of 2 days with requests differs: 2026-04-02"
    )
    done = step(facts(), "reconciliation")
    assert (done.key, done.state) == ("reconciliation/openai", "done")
    assert done.said == "All 2 days with requests were compared, and 1 difference was posted."


def test_each_provider_is_compared_by_itself() -> None:
    """Names are compared without regard to case. Our own GPUs send no invoice, whether a pool is configured or not."""
    other = msgspec.structs.replace(BOUGHT, provider="Anthropic", cost_nanousd=5)
    no_pool = msgspec.structs.replace(OWN, pool="")
    used = {"openai": (APRIL.start_us,), "Anthropic": (APRIL.start_us,), "self-hosted": (APRIL.start_us,)}
    compared = {"openai": {}, "anthropic": {APRIL.start_us: "agrees"}}
    lines = (BOUGHT, POSTED, other, OWN, IDLE, no_pool)
    found = facts(*lines, pools=("h100",), used_days=used, compared=compared)
    assert [each.provider for each in providers_of(found.lines)] == ["openai", "Anthropic"]
    states = {each.title: each.state for each in steps(found) if each.kind == "reconciliation"}
    assert states == {"Compared with the books of openai": "look", "Compared with the books of Anthropic": "done"}
    openai = providers_of(found.lines)[0]
    assert (openai.booked_nanousd, openai.posted_nanousd, openai.spent.cost_nanousd) == (10**9, -(10**7), 99 * 10**7)


def test_an_empty_month_is_nothing_to_settle() -> None:
    """No requests, no providers: only the time and the check remain."""
    found = facts(lines=())
    assert [each.kind for each in steps(found)] == ["over", "unpriced", "estimated", "books"]
    assert is_ready(steps(found))
