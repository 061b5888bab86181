"""Sending: what is decided after each answer, and a real receiver that is slow, rude, gone or killed upon."""

import asyncio
import base64
import time

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI
from sqlalchemy.ext.asyncio import AsyncEngine

from api.webhooks.sender import (
    RETRY_AFTER_S,
    Answer,
    Verdict,
    decide,
    destinations_of,
    retry_after_s,
)
from api.webhooks.signature import BadSecret
from api.webhooks.webhooks_config import WebhookDestination
from tests.api.webhooks.receiver import SECRET, START_US, a_bench, receiving

LAST = len(RETRY_AFTER_S) + 1


@pytest.mark.parametrize(("tries", "wait_s"), list(enumerate(RETRY_AFTER_S, start=1)))
def test_the_schedule(tries: int, wait_s: int) -> None:
    """5 s, 5 m, 30 m, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h after the tries, and up to a fifth more."""
    answer = Answer(status=500)
    assert decide(answer, tries, 7, 0).next_try_us == 7 + wait_s * 1_000_000
    assert decide(answer, tries, 7, 1).next_try_us == 7 + wait_s * 1_200_000


@pytest.mark.parametrize(
    ("answer", "tries", "result"),
    [
        (Answer(status=200), 1, "delivered"),
        (Answer(status=299), LAST, "delivered"),
        (Answer(status=410), 1, "disabled"),
        (Answer(status=301), 1, "retried"),
        (Answer(status=304), 1, "retried"),
        (Answer(status=404), 1, "retried"),
        (Answer(status=0), 1, "retried"),
        (Answer(status=0), LAST, "given_up"),
        (Answer(status=500), LAST + 3, "given_up"),
    ],
)
def test_what_becomes_of_a_message(answer: Answer, tries: int, result: str) -> None:
    """2xx alone is success, 410 ends everything, and after the tenth try nothing is left."""
    assert decide(answer, tries, START_US, 0).result == result


@given(
    status=st.integers(0, 599),
    tries=st.integers(1, 20),
    wait_s=st.none() | st.integers(0, 10**9),
    jitter=st.floats(0, 1),
)
def test_a_retry_is_always_in_the_future_and_never_far(
    status: int, tries: int, wait_s: int | None, jitter: float
) -> None:
    """Whatever the answer says, the next try comes after now and within a day and a fifth."""
    verdict = decide(Answer(status=status, retry_after_s=wait_s), tries, START_US, jitter)
    assert (verdict.next_try_us is not None) == (verdict.result == "retried")
    if verdict.next_try_us is not None:
        assert START_US < verdict.next_try_us <= START_US + 86_400 * 1_200_000


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_retry_after_is_honoured(status: int) -> None:
    """A throttled sender waits at least as long as it was told, at most a day, and no less than the schedule."""
    second = START_US + 1_000_000
    assert decide(Answer(status=status, retry_after_s=90), 1, START_US, 0).next_try_us == second + 89_000_000
    assert decide(Answer(status=status, retry_after_s=1), 1, START_US, 0).next_try_us == START_US + 5_000_000
    assert decide(Answer(status=status, retry_after_s=10**8), 1, START_US, 0) == Verdict(
        result="retried", next_try_us=START_US + 86_400_000_000
    )
    assert decide(Answer(status=500, retry_after_s=90), 1, START_US, 0).next_try_us == START_US + 5_000_000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("120", 120),
        (" 7 ", 7),
        ("9" * 400, 86_400),
        ("Mon, 21 Sep 2026 14:14:20 GMT", 60),
        ("Mon, 21 Sep 2026 14:14:20 -0000", 60),
        ("Sun, 20 Sep 2026 14:14:20 GMT", 0),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("²", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: int | None) -> None:
    """Both forms are read; nonsense is nothing."""
    assert retry_after_s(value, START_US) == seconds


def test_a_bad_secret_names_its_destination() -> None:
    """The operator is told which one, and never the secret."""
    ops = WebhookDestination(name="ops", url="https://example.com", secret="env:OPS")
    with pytest.raises(BadSecret, match="`ops`") as refused:
        destinations_of([ops], lambda _: "my own words")
    assert "my own words" not in str(refused.value)

    def missing(reference: str) -> str:
        raise KeyError(reference)

    with pytest.raises(BadSecret, match="`ops`: its secret is not there"):
        destinations_of([ops], missing)
    assert destinations_of([ops], lambda _: SECRET)["ops"].keys == (base64.b64decode(SECRET[6:]),)


async def test_a_message_is_delivered_once_and_verifies(engine: AsyncEngine) -> None:
    """The receiver can check it with OpenAI's client; it is marked, counted and not sent again."""
    now_us = time.time_ns() // 1_000
    async with receiving() as receiver, a_bench(engine, receiver.url, now_us) as bench:
        await bench.put()
        sender = bench.sender()
        assert await sender.send_due("ops") == 1
        assert await sender.send_due("ops") == 0
        bench.advance(10**6)
        assert await sender.send_due("ops") == 0
        (row,) = await bench.rows()
    (got,) = receiver.received
    event = OpenAI(api_key="unused").webhooks.unwrap(got.body, got.headers, secret=SECRET)
    assert event.id == got.message_id == row.message_id
    assert got.headers["content-type"] == "application/json"
    assert (row.tries, row.next_try_us, row.delivered_us, row.last_status) == (1, None, now_us, 204)
    assert bench.results == ["delivered"]


async def test_two_senders_send_each_message_once(engine: AsyncEngine) -> None:
    """Processes that look at the same time share the work and repeat none of it."""
    async with receiving() as receiver, a_bench(engine, receiver.url) as bench:
        ids = [f"m{number:02}" for number in range(20)]
        for each in ids:
            await bench.put(each)
        senders = [bench.sender() for _ in range(3)]
        for _ in range(6):
            await asyncio.gather(*(each.send_due("ops") for each in senders))
    assert sorted(receiver.ids) == ids
    assert bench.results == ["delivered"] * 20


async def test_a_sender_killed_before_it_could_mark_loses_nothing(engine: AsyncEngine) -> None:
    """A message that was sent and not marked is delivered again with the same id, once the lease has ended."""
    async with receiving() as receiver, a_bench(engine, receiver.url) as bench:
        await bench.put()
        (due,) = await bench.outbox.due("ops", 1)
        claimed = await bench.outbox.claim(due, 60_000_000)
        assert claimed is not None
        # This is where the first sender posts and is killed.
        await bench.sender()._post(claimed)
        other = bench.sender()
        assert await other.send_due("ops") == 0
        bench.advance(61)
        assert await other.send_due("ops") == 1
        assert receiver.ids == ["budget/b_1/2026-11/80"] * 2
        assert receiver.received[0].body == receiver.received[1].body
        (row,) = await bench.rows()
        assert row.tries == 2
        assert row.delivered_us is not None


async def test_failures_are_tried_again_on_schedule(engine: AsyncEngine) -> None:
    """The same id and body each time, when the schedule says, until it is taken."""
    async with receiving() as receiver, a_bench(engine, receiver.url) as bench:
        receiver.answers = [web.Response(status=500), web.Response(status=404)]
        await bench.put()
        sender = bench.sender()
        await sender.send_due("ops")
        for before_s, after_s in ((4, 1), (299, 1)):
            bench.advance(before_s)
            assert await sender.send_due("ops") == 0
            bench.advance(after_s)
            assert await sender.send_due("ops") == 1
    assert bench.results == ["retried", "retried", "delivered"]
    assert len(set(receiver.ids)) == 1
    stamps = [int(each.headers["webhook-timestamp"]) for each in receiver.received]
    assert stamps == [START_US // 10**6 + after_s for after_s in (0, 5, 305)]


async def test_after_the_last_try_a_message_is_given_up(engine: AsyncEngine) -> None:
    """Ten tries, then never again; the row tells what the last one was answered."""
    async with receiving() as receiver, a_bench(engine, receiver.url) as bench:
        receiver.answers = [web.Response(status=500) for _ in range(20)]
        await bench.put()
        sender = bench.sender()
        for _ in range(15):
            await sender.send_due("ops")
            bench.advance(86_400)
        state = await bench.outbox.state("ops")
    assert bench.results == ["retried"] * 9 + ["given_up"]
    assert (state.waiting, state.given_up, state.last_status, state.disabled) == (0, 1, 500, False)


async def test_gone_disables_until_a_test_is_taken(engine: AsyncEngine) -> None:
    """After 410 nothing is sent, by no process; `webhooks test` that succeeds enables the destination again."""
    async with receiving() as receiver, a_bench(engine, receiver.url) as bench:
        receiver.answers = [web.Response(status=410), web.Response(status=410)]
        await bench.put("first")
        await bench.sender().send_due("ops")
        bench.advance(1)
        await bench.put("second")
        await bench.sender().send_due("ops")
        assert receiver.ids == ["first"]
        assert (await bench.outbox.state("ops")).disabled
        assert bench.results == ["disabled", "disabled"]
        bench.advance(1)
        assert await bench.sender().test("ops", "test/1") == 410
        assert (await bench.outbox.state("ops")).disabled
        bench.advance(1)
        assert await bench.sender().test("ops", "test/2") == 204
        assert not (await bench.outbox.state("ops")).disabled
        bench.advance(1)
        await bench.put("third")
        await bench.sender().send_due("ops")
    assert receiver.ids == ["first", "test/1", "test/2", "third"]


async def test_a_test_is_sent_by_nobody_else(engine: AsyncEngine) -> None:
    """A gateway that runs meanwhile leaves it alone, and a failed one is not tried again."""
    async with receiving() as receiver, a_bench(engine, receiver.url) as bench:
        receiver.answers = [web.Response(status=500)]
        assert await bench.sender().test("ops", "test/1") == 500
        bench.advance(10**6)
        assert await bench.sender().send_due("ops") == 0
    assert receiver.ids == ["test/1"]


async def test_redirects_are_not_followed(engine: AsyncEngine) -> None:
    """A receiver cannot send us to another address; 3xx is a failure."""
    async with receiving() as receiver, a_bench(engine, receiver.url) as bench:
        receiver.answers = [web.Response(status=307, headers={"location": receiver.url})]
        await bench.put()
        await bench.sender().send_due("ops")
        (row,) = await bench.rows()
    assert len(receiver.received) == 1
    assert (row.last_status, row.delivered_us) == (307, None)


async def test_a_flood_of_an_answer_is_not_read(engine: AsyncEngine, caplog: pytest.LogCaptureFixture) -> None:
    """The status counts; an answer of any size is neither kept nor shown."""
    async with receiving() as receiver, a_bench(engine, receiver.url) as bench:
        receiver.answers = [web.Response(status=503, headers={"retry-after": "90"}, body=b"tell nobody " * 10**6)]
        await bench.put()
        await bench.sender().send_due("ops")
        (row,) = await bench.rows()
    assert row.next_try_us == START_US + 90_000_000
    assert "tell nobody" not in caplog.text


async def test_no_answer_is_a_failure_like_others(engine: AsyncEngine) -> None:
    """A refused connection and a receiver that never answers are tried again."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with a_bench(engine, f"http://127.0.0.1:{port}/hooks") as bench:
        await bench.put()
        await bench.sender(timeout_s=0.05).send_due("ops")
        server.close()
        bench.advance(5)
        await bench.sender().send_due("ops")
        (row,) = await bench.rows()
    assert bench.results == ["retried", "retried"]
    assert (row.tries, row.last_status) == (2, 0)


async def test_the_loop_sends_what_is_put(engine: AsyncEngine) -> None:
    """A running sender finds a new message by itself, and ends when it is cancelled."""
    async with receiving() as receiver, a_bench(engine, receiver.url) as bench:
        running = asyncio.create_task(bench.sender().run(poll_s=0.01))
        await bench.put()
        async with asyncio.timeout(5):
            await bench.counted.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert receiver.ids == ["budget/b_1/2026-11/80"]
