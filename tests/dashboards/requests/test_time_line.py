"""What a caller waited for, step by step."""

from cost.ledger.entries import Entry
from cost.reports.recent import RecentRequest
from dashboards.requests.time_line import steps
from tests.cost.reports.two_organisations import booked


def request(*attempts: Entry) -> list[tuple[int, str, int | None]]:
    """The steps, in milliseconds."""
    found = steps(RecentRequest(request_id="r", attempts=attempts))
    return [(each.at_us // 1_000, each.what, None if each.took_us is None else each.took_us // 1_000) for each in found]


def test_a_queue_a_pause_a_retry_and_a_hold_are_steps() -> None:
    """In the order of time, from the arrival to the end."""
    failed = booked("r", served=False, status=502, began_us=1_010_000, queued_us=1_000_000, duration_us=200_000)
    answered = booked(
        "r", attempt=2, began_us=1_260_000, duration_us=900_000, ttft_us=120_000, given_us=2_100_000, stream=True
    )
    assert request(failed, answered) == [
        (0, "Arrived; limits, budgets and models looked at", 10),
        (10, "Waited in a queue for a place", 1_000),
        (1_010, "small asked", 200),
        (1_210, "Waited before the next attempt", 50),
        (1_260, "small asked again: a retry", 900),
        (1_380, "Held back to be judged", 720),
        (2_100, "First token to the caller", None),
        (2_160, "Ended", None),
    ]


def test_an_answer_that_flows_has_no_hold() -> None:
    """And one that is not streamed is given whole."""
    plain = {"began_us": 0, "duration_us": 900_000, "ttft_us": 120_000, "given_us": 120_400}
    told = [what for _, what, _ in request(booked("r", **plain))]
    assert told == [
        "Arrived; limits, budgets and models looked at",
        "small asked",
        "First token to the caller",
        "Ended",
    ]
    assert "Answer to the caller" in [what for _, what, _ in request(booked("r", stream=False, **plain))]


def test_what_was_booked_before_the_arrival_was_has_no_time_line() -> None:
    """Nothing is made up."""
    assert request(booked("r")) == []
