"""The gate on the line: queues and spill-over, deadlines, limits; whatever happens, all that was taken is given back."""

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from accounts.caller import TeamSettings
from proxy.admit.limits.limit import Limit
from proxy.admit.queues.capacity import Capacity
from proxy.admit.queues.queue_item import QueueItem
from proxy.admit.queues.queues import Queues
from proxy.admit.queues.queues_config import MaxWait, QueueConfig
from proxy.shared.deadline import DeadlinesSection, TierDeadlines
from proxy.shared.target_latency import LatencyTracker
from tests.proxy.test_pipeline_money import TightBooks
from tests.scenarios.test_rules import House, said

pytestmark = pytest.mark.usefixtures("leaping_time")

_PATIENT = DeadlinesSection(interactive=TierDeadlines(first_token_s=None, answer_s=None))


@contextlib.asynccontextmanager
async def _queue(*targets: str, tokens: int = 10_000, max_waiting: int = 10) -> AsyncIterator[Queues]:
    loop = asyncio.get_running_loop()
    config = QueueConfig(
        targets=targets, tokens_in_flight=tokens, max_waiting=max_waiting, light_share=0, interactive_share=0
    )
    queues = Queues({"own": config}, Capacity(lambda: 1, clock=loop.time), loop.time, jitter=lambda: 0.5)
    await queues.start()
    try:
        yield queues
    finally:
        await queues.aclose()


def _one_second() -> DeadlinesSection:
    return DeadlinesSection(interactive=TierDeadlines(first_token_s=1, answer_s=None))


def _all_of_it(tokens: int = 10_000) -> QueueItem:
    return QueueItem(team_id="other", weight=1, tier="interactive", priority=1, tokens=tokens, start_by=math.inf)


def _headers(sent: list[dict[str, Any]]) -> dict[bytes, bytes]:
    return dict(sent[0]["headers"])


def _error(sent: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(sent))["error"]
    return found


async def test_a_full_queue_spills_over_to_the_next_target() -> None:
    """Nothing is sent to the target that is short, the reason is told, and no retry is spent."""
    async with _queue("t0", max_waiting=0) as queues:
        queues.try_enter("t0", _all_of_it())
        house = House("ok", "ok", queues=queues)
        for _ in range(10):
            sent = await house.ask(stream=False)
            assert sent[0]["status"] == 200
            assert _headers(sent)[b"x-weighbridge-target"] == b"t1"
            assert _headers(sent)[b"x-weighbridge-reason"] == b"spill-over"
        assert {call.model for call in house.upstream.seen} == {"ok"}
        assert all(entry.target_id == "t1" for entry in house.books.entries)


async def test_a_team_that_pays_for_nothing_is_told_to_come_back() -> None:
    """Without leave to spill over, 429 with the queue's state and the time to come back."""
    async with _queue("t0", max_waiting=0) as queues:
        queues.try_enter("t0", _all_of_it())
        house = House("ok", "ok", queues=queues, settings=TeamSettings(spill_over=False))
        sent = await house.ask(stream=True)
        assert sent[0]["status"] == 429
        assert int(_headers(sent)[b"retry-after-ms"]) >= 1
        error = _error(sent)
        assert error["code"] == "queue_full"
        assert error["queue"]["name"] == "own"
        assert error["queue"]["in_flight_tokens"] == 10_000
        assert house.books.entries == []


@pytest.mark.parametrize("script", ["ok", "cut-1", "error-500", "error-400", "hang-1"])
async def test_a_place_in_flight_is_given_back(script: str) -> None:
    """However a request ends, its target has as much room as before."""
    async with _queue("t0") as queues:
        house = House(script, queues=queues)
        await house.ask(stream=True)
        await house.ask(stream=True, hang_up_after=2)
        await house.ask(stream=False, hang_up_after_s=0.001)
        assert queues.state("own").in_flight == 0
        assert queues.state("own").in_flight_tokens == 0


async def test_who_hangs_up_while_waiting_was_never_there() -> None:
    """Nothing is booked, nothing is called, and the queue is as short as before."""
    async with _queue("t0") as queues:
        queues.try_enter("t0", _all_of_it())
        house = House("ok", queues=queues, deadlines=_PATIENT)
        await house.ask(stream=True, hang_up_after_s=0.02)
        assert queues.state("own").waiting == 0
        assert house.books.entries == []
        assert house.told.outcomes[0].status == 499


async def test_what_waited_says_for_how_long() -> None:
    """A request that waited for its place is served when there is one, and its reply tells of the wait."""
    async with _queue("t0") as queues:
        permit = queues.try_enter("t0", _all_of_it())
        house = House("ok", queues=queues, deadlines=_PATIENT)
        asking = asyncio.create_task(house.ask(stream=True))
        while queues.state("own").waiting == 0:  # noqa: ASYNC110 - the queue tells nobody who comes
            await asyncio.sleep(0.001)
        permit.release()
        sent = await asking
        assert sent[0]["status"] == 200
        assert int(_headers(sent)[b"x-weighbridge-queue-ms"]) >= 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_wait_that_ended_in_a_spill_over_is_told(stream: bool) -> None:
    """The header has the seconds in the queue that was left, as the outcome has, whoever answers then."""
    async with _queue("t0") as queues:
        permit = queues.try_enter("t0", _all_of_it())
        house = House("ok", "ok", queues=queues, deadlines=_one_second())
        sent = await house.ask(stream=stream)
        permit.release()
        headers = _headers(sent)
        assert (headers[b"x-weighbridge-target"], headers[b"x-weighbridge-reason"]) == (b"t1", b"spill-over")
        ((target_id, waited_s, before),) = house.told.outcomes[0].waits
        assert (target_id, before) == ("t0", 0)
        assert waited_s >= 1
        assert int(headers[b"x-weighbridge-queue-ms"]) == math.ceil(waited_s * 1000)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_wait_that_ended_in_a_refusal_is_told(stream: bool) -> None:
    """The error's reply tells it like any other, and so does the outcome."""
    async with _queue("t0") as queues:
        permit = queues.try_enter("t0", _all_of_it())
        house = House("ok", queues=queues, deadlines=_one_second())
        sent = await house.ask(stream=stream)
        permit.release()
        assert _error(sent)["queue"]["why"] == "expired"
        (waited,) = house.told.outcomes[0].waits
        assert int(_headers(sent)[b"x-weighbridge-queue-ms"]) == math.ceil(waited.waited_s * 1000) >= 1000


async def test_the_waits_in_two_queues_are_told_together() -> None:
    """One queue was left for the next target, whose queue was waited in as well."""
    loop = asyncio.get_running_loop()
    plain: dict[str, Any] = {"tokens_in_flight": 10_000, "max_waiting": 10, "light_share": 0, "interactive_share": 0}
    configs = {
        "first": QueueConfig(targets=("t0",), max_wait_s=MaxWait(interactive=1, batch=1), **plain),
        "second": QueueConfig(targets=("t1",), **plain),
    }
    queues = Queues(configs, Capacity(lambda: 1, clock=loop.time), loop.time, jitter=lambda: 0.5)
    await queues.start()
    try:
        slots = [queues.try_enter(target_id, _all_of_it()) for target_id in ("t0", "t1")]
        house = House("ok", "ok", queues=queues, deadlines=_PATIENT)
        asking = asyncio.create_task(house.ask(stream=True))
        while queues.state("second").waiting == 0:  # noqa: ASYNC110 - the queue tells nobody who comes
            await asyncio.sleep(0.25)
        await asyncio.sleep(2)
        slots[1].release()
        headers = _headers(await asking)
        slots[0].release()
        waits = house.told.outcomes[0].waits
        assert [wait.target_id for wait in waits] == ["t0", "t1"]
        assert waits[0].waited_s >= 1
        assert waits[1].waited_s >= 2
        assert int(headers[b"x-weighbridge-queue-ms"]) == math.ceil(sum(wait.waited_s for wait in waits) * 1000)
    finally:
        await queues.aclose()


async def test_a_streams_own_deadline_ends_it_with_an_error_event() -> None:
    """`x-request-timeout-ms` bounds a stream that has begun; it is settled once, and not as a success."""
    house = House("tokens-1000+every-5ms", first_token_s=1)
    sent = await house.ask(stream=True, headers=[(b"x-request-timeout-ms", b"40")])
    assert sent[0]["status"] == 200
    last = said(sent).rstrip().splitlines()[-1]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "deadline_exceeded"
    settled = [entry for entry in house.books.entries if entry.entry != "reserve"]
    assert len(settled) == 1
    assert "deadline_exceeded" in settled[0].flags
    assert house.told.outcomes[0].error_code == "deadline_exceeded"


async def test_a_tiers_default_never_cuts_a_stream_that_has_begun() -> None:
    """An answer that is longer than the tier's whole answer flows on to its end."""
    house = House(
        "tokens-20+every-5ms",
        first_token_s=1,
        deadlines=DeadlinesSection(interactive=TierDeadlines(first_token_s=None, answer_s=0.05)),
    )
    sent = await house.ask(stream=True)
    assert said(sent).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("own", [True, False])
async def test_an_answer_that_is_not_there_in_time_is_given_up(own: bool) -> None:
    """504 for what is not streamed, whoever set the time, where nobody else may answer."""
    short = TierDeadlines(first_token_s=None, answer_s=None if own else 0.03)
    house = House("slow-first-token-500ms", deadlines=DeadlinesSection(interactive=short))
    sent = await house.ask(stream=False, headers=[(b"x-request-timeout-ms", b"30")] if own else [])
    assert sent[0]["status"] == 504
    assert _headers(sent)[b"x-should-retry"] == b"false"
    assert _error(sent)["code"] == "deadline_exceeded"
    assert {entry.target_id for entry in house.books.entries} == {"t0"}
    assert [entry.entry for entry in house.books.entries] == ["reserve", "settle"]


async def test_what_cannot_be_done_in_time_is_not_started() -> None:
    """A target whose fastest first token comes too late is not asked; one that can make it is."""
    tracker = LatencyTracker(asyncio.get_running_loop().time)
    for _ in range(20):
        tracker.observe("t0", 5.0, 0.1)
    house = House("ok", "ok", latency=tracker)
    hurry = [(b"x-request-timeout-ms", b"1000")]
    assert _headers(await house.ask(stream=True, headers=hurry))[b"x-weighbridge-target"] == b"t1"
    alone = House("ok", latency=tracker)
    sent = await alone.ask(stream=True, headers=hurry)
    assert sent[0]["status"] == 504
    assert alone.books.entries == []


async def test_slow_batch_work_says_nothing_of_a_targets_interactive_pace() -> None:
    """It may wait for its first token for as long as it likes; nobody else is refused for it."""
    tracker = LatencyTracker(asyncio.get_running_loop().time)
    for _ in range(20):
        tracker.observe("t0", 60.0, 0.1, "batch")
    house = House("ok", latency=tracker)
    assert (await house.ask(stream=True))[0]["status"] == 200
    hurry = [(b"x-request-timeout-ms", b"1000"), (b"x-tier", b"batch")]
    assert (await house.ask(stream=True, headers=hurry))[0]["status"] == 504


async def test_a_timeout_that_is_no_number_is_refused() -> None:
    """400 that names the header."""
    sent = await House("ok").ask(stream=False, headers=[(b"x-request-timeout-ms", b"soon")])
    assert sent[0]["status"] == 400
    assert _error(sent)["param"] == "x-request-timeout-ms"


async def test_a_limit_is_told_with_what_remains() -> None:
    """Served requests and refused ones carry the limit; a refusal asks no upstream."""
    limit = Limit(key="team/team_a//requests", scope="team", kind="requests", rate=2, burst=2)
    house = House("ok", limits=(limit,))
    served = [await house.ask(stream=False) for _ in range(2)]
    assert [_headers(sent)[b"x-ratelimit-remaining-requests"] for sent in served] == [b"1", b"0"]
    refused = await house.ask(stream=False)
    assert refused[0]["status"] == 429
    assert _headers(refused)[b"x-ratelimit-remaining-requests"] == b"0"
    assert int(_headers(refused)[b"retry-after-ms"]) > 1_000
    assert len(house.upstream.seen) == 2


@pytest.mark.usefixtures("leaping_time")
async def test_concurrency_ends_with_the_request() -> None:
    """One at a time: the second is refused while the first runs, and served after it, however that one ended."""
    limit = Limit(key="team/team_a//concurrency", scope="team", kind="concurrency", rate=0, burst=1)
    house = House("tokens-40+every-5ms", limits=(limit,), first_token_s=1)
    first = asyncio.create_task(house.ask(stream=True, hang_up_after_s=0.1))
    await asyncio.sleep(0.03)
    assert (await house.ask(stream=True))[0]["status"] == 429
    await first
    assert (await house.ask(stream=True))[0]["status"] == 200


@pytest.mark.usefixtures("leaping_time")
async def test_what_is_cut_off_at_the_end_is_told_and_settled() -> None:
    """When the process must stop, a stream ends with an error event and an unanswered request with 503."""
    houses = [House("tokens-1000+every-5ms", first_token_s=1), House("slow-first-token-500ms")]
    asked = [asyncio.create_task(house.ask(stream=index == 0)) for index, house in enumerate(houses)]
    await asyncio.sleep(0.05)
    for house in houses:
        house.line.cut_off()
    streamed, whole = [await each for each in asked]
    assert b'"draining"' in said(streamed).rstrip().splitlines()[-1]
    assert whole[0]["status"] == 503
    for house in houses:
        assert [entry.entry for entry in house.books.entries] == ["reserve", "settle"]
        assert house.line.in_flight == 0


async def test_an_upstream_that_hangs_leaves_time_for_the_next_one() -> None:
    """Of its tier's time a stream gives one target half while another could answer, and the hang counts against it."""
    tier = TierDeadlines(first_token_s=None, answer_s=0.3)
    house = House("hang", "ok", deadlines=DeadlinesSection(interactive=tier), first_token_s=5)
    sent = await house.ask(stream=True)
    assert _headers(sent)[b"x-weighbridge-target"] == b"t1"
    assert [each.result for each in house.told.outcomes[0].attempts] == ["timeout", "ok"]


@pytest.mark.parametrize(("own", "kept_away"), [(True, 0), (False, 1)])
async def test_only_a_tiers_time_tells_a_hanging_upstream(own: bool, kept_away: int) -> None:
    """A caller in a hurry ejects nobody; streams that had their tier's whole time and no token do."""
    tier = TierDeadlines(first_token_s=None, answer_s=0.01)
    house = House("hang", deadlines=DeadlinesSection(interactive=tier), first_token_s=5)
    for _ in range(6):
        await house.ask(stream=True, headers=[(b"x-request-timeout-ms", b"10")] if own else [])
    # Only one key has asked, so the circuit opens for that key.
    assert house.breakers.describe("t0/a").only_for == kept_away


@pytest.mark.parametrize(("own", "kept_away"), [(True, 0), (False, 1)])
async def test_whole_answers_tell_a_hanging_upstream_too(own: bool, kept_away: int) -> None:
    """When none of them came in its tier's time, their target is left alone, though nothing is streamed."""
    tier = TierDeadlines(first_token_s=None, answer_s=0.1)
    house = House("hang", deadlines=DeadlinesSection(interactive=tier), first_token_s=5)
    asked = [house.ask(stream=False, headers=[(b"x-request-timeout-ms", b"100")] if own else []) for _ in range(6)]
    assert {sent[0]["status"] for sent in await asyncio.gather(*asked)} == {504}
    # Only one key has asked, so the circuit opens for that key.
    assert house.breakers.describe("t0/a").only_for == kept_away


async def test_what_is_wrong_with_a_request_is_told_though_a_queue_was_full() -> None:
    """The target that it spilled over to found it at fault, so coming back later would not help."""
    async with _queue("t0", max_waiting=0) as queues:
        queues.try_enter("t0", _all_of_it())
        sent = await House("ok", "error-400", queues=queues).ask(stream=False)
        assert sent[0]["status"] == 400


async def test_a_spill_over_that_cannot_be_paid_is_told_as_no_room() -> None:
    """402 would say that waiting does not help, but the queue's own target is paid for."""
    async with _queue("t0", max_waiting=0) as queues:
        permit = queues.try_enter("t0", _all_of_it())
        house = House("ok", "ok", queues=queues, books=TightBooks(4_500_000, downgrade=False))
        sent = await house.ask(stream=False)
        assert (sent[0]["status"], house.books.entries) == (429, [])
        permit.release()
        assert (await house.ask(stream=False))[0]["status"] == 200


async def test_a_deadline_that_passes_before_a_retry_ends_the_request() -> None:
    """The second try would be of no use, so it is not made, and the place is given back."""
    async with _queue("t0") as queues:
        house = House("error-500", queues=queues, backoff_s=0.05)
        sent = await house.ask(stream=True, headers=[(b"x-request-timeout-ms", b"30")])
        assert sent[0]["status"] == 504
        assert len(house.upstream.calls) == 1
        assert queues.state("own").in_flight == 0


async def test_a_guess_makes_no_request_too_large() -> None:
    """An answer whose length nobody said is counted with no more than the bucket holds; one that was said is refused."""
    limit = Limit(key="team/team_a//tokens", scope="team", kind="tokens", rate=60, burst=60)
    house = House("ok", limits=(limit,))
    assert (await house.ask(stream=False))[0]["status"] == 200
    refused = await house.ask(stream=False, max_tokens=100)
    assert refused[0]["status"] == 429
    assert _headers(refused)[b"x-should-retry"] == b"false"
