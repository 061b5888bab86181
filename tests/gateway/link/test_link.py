"""The link between the planes: questions, what is published, and ends that go and come back."""

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from gateway.link.codec import MAX_FRAME_BYTES, TOLD, Frames, FrameTooLarge, Question, Vocabulary, frame
from gateway.link.connection import LinkDown, NotAnswered
from gateway.link.hub import Hub
from gateway.link.link import Hello, Link, Synced
from tests.processes import until


class Double(Question[int], frozen=True):
    number: int


class Fail(Question[int], frozen=True):
    pass


class Wait(Question[int], frozen=True):
    pass


class Name(Question[str | None], frozen=True):
    pass


class Note(msgspec.Struct, frozen=True):
    text: str


VOCABULARY: Final = Vocabulary((Hello, Synced, Double, Fail, Wait, Name, Note))


@pytest.fixture
def path() -> Any:
    # A socket's path has about a hundred bytes.
    with tempfile.TemporaryDirectory(prefix="wb-") as folder:
        yield Path(folder) / "link.sock"


@contextlib.asynccontextmanager
async def hub_at(path: Path, prepare: Callable[[Hub], None] = lambda _hub: None) -> AsyncIterator[Hub]:
    hub = Hub(VOCABULARY)
    prepare(hub)
    await hub.start(path)
    try:
        yield hub
    finally:
        await hub.aclose()


@contextlib.asynccontextmanager
async def worker_at(path: Path, boot_id: str = "one") -> AsyncIterator[tuple[Link, list[str]]]:
    link = Link(path, VOCABULARY)
    notes: list[str] = []
    link.handlers.when_told(Note, lambda _connection, note: notes.append(note.text))
    link.start(Hello(boot_id, 1))
    try:
        yield link, notes
    finally:
        await link.aclose()


def answering(hub: Hub) -> None:
    async def double(_connection: Any, question: Double) -> int:
        return 2 * question.number

    async def fail(_connection: Any, _question: Fail) -> int:
        raise ValueError("a secret")

    async def wait(_connection: Any, _question: Wait) -> int:
        await asyncio.sleep(60)
        return 0

    hub.handlers.when_asked(Double, double)
    hub.handlers.when_asked(Fail, fail)
    hub.handlers.when_asked(Wait, wait)


async def test_a_question_is_answered_and_many_at_once(path: Path) -> None:
    """Each question gets its own answer, however many are on their way."""
    async with hub_at(path, answering), worker_at(path) as (link, _):
        await link.synced(30)
        assert await link.ask(Double(4)) == 8
        assert await asyncio.gather(*(link.ask(Double(n)) for n in range(300))) == [2 * n for n in range(300)]


async def test_an_error_is_told_by_its_kind_alone(path: Path) -> None:
    """What an error says may be a secret; who asked learns its class, and the link stays."""
    async with hub_at(path, answering), worker_at(path) as (link, _):
        await link.synced(30)
        with pytest.raises(NotAnswered, match=r"^ValueError$"):
            await link.ask(Fail())
        with pytest.raises(NotAnswered):
            await link.ask(Name())
        assert await link.ask(Double(1)) == 2


async def test_a_question_ends_with_the_other_plane(path: Path) -> None:
    """A control plane that goes takes no question with it: each ends at once, and is no answer."""
    async with worker_at(path) as (link, _):
        async with hub_at(path, answering):
            await link.synced(30)
            asked = asyncio.ensure_future(link.ask(Wait(), timeout_s=60))
            await asyncio.sleep(0.05)
        with pytest.raises(LinkDown):
            await asked
        await until(lambda: not link.is_up)
        with pytest.raises(LinkDown):
            await link.ask(Double(1))
        assert not link.tell(Note("nobody hears"))


async def test_a_worker_connects_again(path: Path) -> None:
    """A control plane that comes back finds its workers again, and they find what it tells."""
    async with worker_at(path) as (link, notes):
        async with hub_at(path, lambda hub: hub.publish("note", Note("first"))):
            await link.synced(30)
        async with hub_at(path, lambda hub: hub.publish("note", Note("second"))) as hub:
            await until(lambda: notes == ["first", "second"])
            assert hub.workers == ("one",)


async def test_what_was_published_is_told_to_those_who_come_later(path: Path) -> None:
    """The newest message of each key, in the order in which they came, before `Synced`; and what is forgotten is not."""
    async with hub_at(path) as hub:
        hub.publish("a", Note("a old"))
        hub.publish("b", Note("b"))
        hub.publish("a", Note("a new"))
        hub.publish("c", Note("c"))
        hub.forget("c")
        async with worker_at(path) as (link, notes):
            await link.synced(30)
            assert notes == ["b", "a new"]
            hub.publish("b", Note("b again"))
            await until(lambda: notes[-1] == "b again")


async def test_a_worker_that_does_not_read_costs_little_and_misses_no_newest(path: Path) -> None:
    """While a worker stands still the newest message of each key is kept, not all of them; then it gets those."""
    big = "x" * 100_000
    async with hub_at(path) as hub:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(frame(TOLD, 0, "Hello", Hello("still", 1)))
        await until(lambda: hub.workers == ("still",))
        for number in range(400):
            hub.publish(number % 2, Note(f"{number} {big}"))
            await asyncio.sleep(0)
        frames = Frames()
        told: list[int] = []
        async with asyncio.timeout(30):
            while not {398, 399} <= set(told):
                for envelope in frames.feed(await reader.read(1 << 20)):
                    message = VOCABULARY.message(envelope)
                    if isinstance(message, Note):
                        told.append(int(message.text.partition(" ")[0]))
        assert len(told) < 200
        writer.close()


async def test_all_workers_are_asked_and_those_that_do_not_answer_are_left_out(path: Path) -> None:
    """The answers of those who answer in time, by their ids."""

    async def named(_connection: Any, _question: Name) -> str | None:
        return "me"

    async with hub_at(path) as hub, worker_at(path, "one") as (one, _), worker_at(path, "two") as (two, _):
        one.handlers.when_asked(Name, named)
        await one.synced(30)
        await two.synced(30)
        assert await hub.ask_all(Name()) == {"one": "me"}
        assert sorted(hub.workers) == ["one", "two"]
    assert hub.workers == ()


async def test_the_socket_is_its_owner_s_alone(path: Path) -> None:
    """Whoever can open the socket can say what keys are valid."""
    async with hub_at(path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600  # noqa: PTH116


async def test_what_is_no_message_ends_the_connection(path: Path) -> None:
    """Bytes that are no frame, and frames that are no message, cost their connection and nothing else."""
    async with hub_at(path, answering) as hub, worker_at(path) as (link, _):
        await link.synced(30)
        for data in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x06\x94\x01\x01\xa1\xff\xc0"):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(data)
            assert await reader.read() == b""
            writer.close()
        assert await link.ask(Double(3)) == 6
        assert hub.workers == ("one",)


def test_frames_are_cut_at_any_byte() -> None:
    """However the bytes come, the same messages are found in them."""
    whole = b"".join(frame(TOLD, n, "Note", Note(str(n))) for n in range(20))
    for step in (1, 3, 7, 1000):
        frames = Frames()
        found = [each for at in range(0, len(whole), step) for each in frames.feed(whole[at : at + step])]
        assert [each.number for each in found] == list(range(20))


def test_a_frame_has_a_bound() -> None:
    """What is too long is refused on both sides."""
    with pytest.raises(FrameTooLarge):
        frame(TOLD, 0, "Note", Note("x" * (MAX_FRAME_BYTES + 1)))
    with pytest.raises(FrameTooLarge):
        Frames().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


async def test_what_one_worker_tells_is_handed_on_to_the_others(path: Path) -> None:
    """Everybody but the one that it came from is told."""
    async with hub_at(path) as hub, worker_at(path, "one") as (one, of_one), worker_at(path, "two") as (two, of_two):
        hub.handlers.when_told(Note, lambda connection, note: hub.tell_others(connection.boot_id, note))
        await one.synced(30)
        await two.synced(30)
        one.tell(Note("from one"))
        await until(lambda: of_two == ["from one"])
        two.tell(Note("from two"))
        await until(lambda: of_one == ["from two"])
        assert of_two == ["from one"]
