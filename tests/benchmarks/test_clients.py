"""The load tests' callers keep a true record, and what is told of it is told right."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import pytest

from benchmarks import mock_upstream, redis_faults, shared_limit
from benchmarks.clients import Asked, Pacer, ask, caller, chat
from benchmarks.redis_faults import Times
from benchmarks.windows import Bound


def asked(at: float, status: int = 200, *, took_s: float = 0.01, tokens: int = 0) -> Asked:
    return Asked(
        gate=0, sent_at=at, answered_at=at + took_s, over_at=at + took_s, status=status, tokens=tokens, trouble="x"
    )


async def test_an_answer_is_recorded_with_its_tokens_and_moments() -> None:
    """Sent, answered and over in this order, on the clock that the checks use."""
    server = await mock_upstream.listen(0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    before = time.monotonic()
    async with caller("", keep_alive=False) as session:
        found = await ask(session, 1, url, chat("auto"))
        server.close()
        lost = await ask(session, 0, url, chat("auto"))
    assert (found.status, found.tokens, found.gate) == (200, 888, 1)
    assert before <= found.sent_at <= found.answered_at <= found.over_at <= time.monotonic()
    assert (lost.status, lost.trouble) == (0, "ClientConnectorError")


async def test_a_pacer_sends_what_it_was_told_to_and_waits_for_the_answers() -> None:
    """So many a second, to each gateway in turn, however slow the answers are."""
    gate = asyncio.Event()
    seen: list[int] = []

    async def slow(number: int, url: str) -> Asked:
        seen.append(number)
        if len(seen) == 20:
            gate.set()
        await gate.wait()
        return asked(0.0)

    pacer = Pacer(["one", "other"], slow, 1_000.0)
    await pacer.run(0.02)
    assert seen == [0, 1] * 10
    assert (len(pacer.record), pacer.skipped) == (20, 0)


async def test_a_pacer_that_is_stopped_ends() -> None:
    """Also one without a time of its own."""

    async def enough(number: int, url: str) -> Asked:
        pacer.stop()
        return asked(0.0)

    pacer = Pacer(["one"], enough, 1_000.0)
    await pacer.run()
    assert pacer.record


def test_a_limit_that_is_not_shared_is_found_out() -> None:
    """Two gateways that each let the whole limit through are above it; one is not."""
    bound = Bound(per_s=10.0, burst=10.0)
    one = [asked(0.0) for _ in range(10)] + [asked(number / 10) for number in range(1, 100)]
    refused = [asked(number / 10, 429) for number in range(100)]
    found = shared_limit.judge([*one, *refused], "requests", bound, 0)
    assert found["held"]
    assert found["used_share"] > 0.98
    assert found["statuses"] == {"200": 109, "429": 100}
    assert not shared_limit.judge([*one, *one], "requests", bound, 0)["held"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda found: found, []),
        (lambda found: found | {"held": False, "over": 3.0}, ["a window let through 3.0 more than the limit allows"]),
        (lambda found: found | {"statuses": {"200": 1, "503": 2}}, ["2 replies with status 503"]),
        (lambda found: found | {"admitted": 2}, ["1 requests reached the upstream and 2 were answered"]),
    ],
)
def test_a_run_that_went_wrong_is_told(
    change: Callable[[dict[str, object]], dict[str, object]], told: list[str]
) -> None:
    """Each kind of trouble by itself, and none where there is none."""
    found: dict[str, object] = {"held": True, "over": -1.0, "statuses": {"200": 1, "429": 5}, "admitted": 1}
    seen = Counter({"arrived": 1})
    assert shared_limit.problems_of(change(found), seen, 0) == told


def test_what_a_fault_adds_is_told_against_the_calm_before() -> None:
    """Once the breaker is open; what waited until then is told beside it."""
    steady = (
        [asked(number / 10, took_s=0.010) for number in range(100)]
        + [asked(10 + number / 100, took_s=0.100) for number in range(50)]
        + [asked(10.5 + number / 10, took_s=0.015) for number in range(90)]
        + [asked(12.05, 503)]
    )
    greedy = [asked(number / 8) for number in range(200)]
    found = redis_faults.judge(Times(0.0, 10.0, 10.5, 19.5, 20.5), steady, greedy)
    assert found["added_p99_ms"] == pytest.approx(5.0)
    assert found["until_open"]["p50_ms"] == pytest.approx(100.0)
    assert found["failed"] == {"503": 1}
    assert (found["opened_s"], found["closed_s"]) == (0.5, 1.0)
    assert found["admitted_over_allowed"] == pytest.approx(84 / 105)


def test_a_breaker_that_never_opens_is_measured_from_the_beginning() -> None:
    """Then the whole fault is what callers felt."""
    steady = [asked(number / 10, took_s=0.01 if number < 100 else 0.04) for number in range(200)]
    found = redis_faults.judge(Times(0.0, 10.0, None, 20.0, 20.0), steady, [])
    assert found["added_p50_ms"] == pytest.approx(30.0)
    assert found["opened_s"] is None
    assert found["closed_s"] is None
