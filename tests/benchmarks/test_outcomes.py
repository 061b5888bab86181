import msgspec
import pytest

from benchmarks.open_loop import GAVE_UP, NO_REPLY, Probe, Reply
from benchmarks.outcomes import Window, is_good, probes_told, problems, served_tokens_per_s, summary

_WINDOW = Window(1.0, 3.0)
_GOOD = Reply(
    caller=0, at_s=1.5, tokens=40, late_us=0, status=200, whole=True, latency_us=200_000, ttft_us=10_000, code="",
    why="", retry_after=False, target="ours",
)  # fmt: skip


def _reply(**changes: object) -> Reply:
    return msgspec.structs.replace(_GOOD, **changes)


_REFUSED = _reply(status=429, latency_us=4_000, ttft_us=0, code="queue_full", why="late", retry_after=True, target="")


@pytest.mark.parametrize(
    ("changes", "good"),
    [({}, True), ({"latency_us": 2_000_001}, False), ({"whole": False}, False), ({"status": 429}, False)],
)
def test_only_a_whole_answer_in_time_counts(changes: dict[str, object], good: bool) -> None:
    """Neither a late one, nor a cut one, nor a refusal."""
    assert is_good(_reply(**changes), 2.0) is good


def test_goodput_and_refusals_are_of_the_window() -> None:
    """What was due before or after it is not counted."""
    replies = [
        _GOOD,
        _reply(at_s=0.5),
        _reply(at_s=3.0),
        _REFUSED,
        msgspec.structs.replace(_REFUSED, retry_after=False),
    ]
    told = summary(replies, _WINDOW, 2.0)
    assert (told["offered_per_s"], told["goodput_per_s"]) == (1.5, 0.5)
    assert told["refused_share"] == pytest.approx(2 / 3)
    assert told["refusals"] == {"429 queue_full late": 2}
    assert told["retry_after_share"] == 0.5
    assert told["refusal"]["max_ms"] == 4.0
    assert told["refused_soon_share"] == 1.0
    assert told["targets"] == {"ours": 1}


def test_a_refusal_after_waiting_is_told_apart() -> None:
    """It is no refusal at the door, and its wait must not hide among those."""
    waited = msgspec.structs.replace(_REFUSED, why="shed", latency_us=900_000)
    told = summary([_REFUSED, waited], _WINDOW, 2.0)
    assert told["refusal"]["count"] == 1
    assert told["refusal_after_waiting"]["max_ms"] == 900
    assert told["refused_soon_share"] == 1.0


def test_late_answers_are_late_and_not_wrong() -> None:
    """Given up by the gateway, answered too late, or cut at the deadline; callers who gave up are told apart."""
    late = [_reply(status=504), _reply(latency_us=2_500_000), _reply(latency_us=1_999_000, whole=False)]
    told = summary([*late, _reply(status=GAVE_UP)], _WINDOW, 2.0)
    assert (told["late"], told["gave_up"], told["goodput_per_s"]) == (3, 1, 0)
    assert problems([*late, _reply(status=GAVE_UP), _REFUSED, _GOOD], 2.0) == {}


def test_what_is_wrong_is_named() -> None:
    """Broken connections, other errors, and streams that were cut although they had time."""
    wrong = [_reply(status=NO_REPLY, code="connection lost"), _reply(status=502, code="bad"), _reply(whole=False)]
    assert problems(wrong, 2.0) == {
        "0 connection lost": 1,
        "502 bad": 1,
        "a stream was cut before its deadline": 1,
    }


def test_no_replies_give_no_shares() -> None:
    """A load without requests tells nothing, and does not fail."""
    told = summary([], _WINDOW, 2.0)
    assert (told["good_share"], told["refused_share"], told["refused_soon_share"]) == (None, None, None)


def test_served_tokens_count_when_they_were_served() -> None:
    """By the end of the answer, of one target, whole answers only."""
    replies = [
        _GOOD,
        _reply(at_s=0.5, latency_us=600_000),
        _reply(at_s=2.9),
        _reply(target="paid"),
        _reply(whole=False),
    ]
    assert served_tokens_per_s(replies, _WINDOW, "ours") == 40.0


def test_probes_are_told_by_path() -> None:
    """With their statuses."""
    told = probes_told([Probe("/readyz", 200, 3_000), Probe("/readyz", 503, 5_000), Probe("/metrics", 200, 1_000)])
    assert told["/readyz"]["statuses"] == {"200": 1, "503": 1}
    assert told["/readyz"]["max_ms"] == 5.0
    assert told["/metrics"]["count"] == 1
