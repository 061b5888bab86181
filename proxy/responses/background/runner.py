"""The background runner: begins responses that wait, writes their events as they come, and their end.

Any number of processes may run one: another process needs nothing of its memory to go on when it dies.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any, Final, Literal, Protocol

import msgspec
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from accounts.caller import Caller
from cost.times import DAY_US
from proxy.errors import Refused, ResponseNotFound, ResponsesUnavailable, error_reply
from proxy.http.in_memory import InMemoryExchange
from proxy.parse.wires.responses.wire import queued_response_wire
from proxy.parse.wires.wire import Kept, Wire
from proxy.responses.background.background_responses import BackgroundResponses
from proxy.responses.background.events import count_of, response_in, terminal
from proxy.responses.background.store import Begun, State
from proxy.responses.background.tables import BackgroundEvents
from proxy.responses.stored.sealing import CannotOpen
from proxy.responses.stored.stored_responses import StoredResponses
from proxy.responses.stored.stored_responses_config import ResponsesSection
from proxy.responses.stored.tables import StoredResponse
from proxy.shared.retryable import meaning, wait_of_s
from settings.decoding import DECODE_ERRORS

_log: Final = logging.getLogger("weighbridge.responses")
_DATABASE_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)
_POLL_S: Final = 0.2
_LONGEST_POLL_S: Final = 5.0
"""The longest pause, in seconds, between looks for work without a notice, once there was nothing for long."""
_WRITE_S: Final = 0.25
"""The seconds between two writes of events, with which the lease is extended and a cancellation noticed."""
_TRIES: Final = 3
_OLDEST_US: Final = DAY_US
_BLOCKED_WAIT_US: Final = 30_000_000
"""The age after which a response is given up: one that could not be made within a day never will."""
_OK: Final = 200
_ENDED: Final[frozenset[str]] = frozenset({"completed", "incomplete"})


class Pipeline(Protocol):
    """The request line. It classifies, plans, sends, books and answers like for any request."""

    async def run(
        self,
        wire: Wire,
        exchange: InMemoryExchange,
        caller: Caller,
        request_id: str,
        keep: Callable[[Kept], Awaitable[bool]],
    ) -> str:
        """Take a request through the pipeline, and return its error's code, empty for none. Raises nothing but a
        cancellation.
        """
        ...


class _Making(msgspec.Struct, eq=False):
    """A response that is being made."""

    begun: Begun
    exchange: InMemoryExchange
    events: int
    """The number of events that were written."""
    kept: Kept | None = None
    is_lost: bool = False

    def taken(self) -> tuple[int, bytes]:
        """Return the events since the last time: their number, and their bytes."""
        data = b"".join(self.exchange.reply_pieces)
        self.exchange.reply_pieces.clear()
        return count_of(data), data


class BackgroundRunner:
    """The background runner of one process."""

    def __init__(
        self,
        *,
        background: BackgroundResponses,
        responses: StoredResponses,
        caller_of: Callable[[str], Awaitable[Caller | None]],
        is_blocked: Callable[[str], Awaitable[bool]],
        pipeline: Pipeline,
        section: Callable[[], ResponsesSection],
        now_us: Callable[[], int],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`caller_of` returns the caller of a key that still works, None of one that does not; `is_blocked` whether it is refused for now."""
        self._background = background
        self._store = background.store
        self._responses = responses
        self._caller_of = caller_of
        self._is_blocked = is_blocked
        self._pipeline = pipeline
        self._section = section
        self._now_us = now_us
        self._jitter = jitter
        self._running: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    async def run(self, is_draining: Callable[[], bool]) -> None:
        """Make responses, for ever. When it is cancelled, running ones are given back."""
        poll_s = _POLL_S
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(poll_s):
                        await self._wake.wait()
                self._wake.clear()
                if is_draining():
                    continue
                try:
                    poll_s = _POLL_S if await self.step() else min(_LONGEST_POLL_S, poll_s * 2)
                except _DATABASE_FAILS as error:
                    _log.warning("background responses: the database does not answer: %s", type(error).__name__)
                    await asyncio.sleep(_POLL_S * 5)
                except Exception:  # noqa: BLE001 - the loop must outlive any one round
                    _log.exception("a round of the background responses failed; the next one follows")
        finally:
            for task in tuple(self._running):
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def look(self) -> None:
        """Look for a waiting response at once."""
        self._wake.set()

    async def step(self) -> bool:
        """Begin as many as there is room for. Return False where none waited."""
        free = self._section().background_at_once - len(self._running)
        if free < 1:
            return False
        begun = await self._store.begin(free, self._lease_us())
        for each in begun:
            task = asyncio.create_task(self._make(each))
            self._running.add(task)
            task.add_done_callback(self._over)
        return bool(begun)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        # Its place is free for the next one.
        self._wake.set()

    async def _make(self, begun: Begun) -> None:
        """Make one response. In every case it has then ended, or waits again."""
        try:
            await self._made(begun)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back(begun, 0, failed=False))
            raise
        except Exception:  # noqa: BLE001 - one response must not end the others
            _log.exception("a response in the background could not be made; its lease ends by itself")

    async def _made(self, begun: Begun) -> None:
        if self._now_us() - begun.created_us <= _OLDEST_US and await self._is_blocked(begun.key_id):
            await self._give_back(begun, _BLOCKED_WAIT_US, failed=False)
            return
        try:
            caller, (headers, body) = await self._asked(begun)
        except Refused as error:
            await self._fail(_Making(begun, InMemoryExchange(b""), begun.events), error_reply(error).message)
            return
        making = _Making(begun, InMemoryExchange(body, headers), begun.events)

        async def keep(kept: Kept) -> bool:
            # It is written with its last events, which are not there yet.
            making.kept = kept
            return True

        is_over = asyncio.Event()
        writing = asyncio.create_task(self._keep_writing(making, is_over))
        try:
            wire = queued_response_wire(begun.response_id, begun.events)
            code = await self._pipeline.run(wire, making.exchange, caller, _request_id(begun), keep)
        except BaseException:
            writing.cancel()
            await asyncio.wait({writing})
            raise
        # Never in the middle of a write: what is written is counted, or the end would write it again.
        is_over.set()
        await writing
        if not making.is_lost:
            await self._end(making, code)

    async def _asked(self, begun: Begun) -> tuple[Caller, tuple[list[tuple[bytes, bytes]], bytes]]:
        """Return the caller and the request. Raises Refused for a request that can never be answered."""
        if self._now_us() - begun.created_us > _OLDEST_US:
            raise Refused("This response could not be made within a day.")
        caller = await self._caller_of(begun.key_id)
        if caller is None:
            raise Refused("The key that asked for this response was revoked or has expired.")
        try:
            work = await self._background.work_of(begun)
        except CannotOpen as error:
            raise Refused("What was asked cannot be read any more.") from error
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in work.headers]
        return caller, (headers, bytes(work.body))

    async def _keep_writing(self, making: _Making, is_over: asyncio.Event) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WRITE_S):
                    await is_over.wait()
                    return
            count, data = making.taken() if making.begun.streams else (0, b"")
            events = self._events(making, count, data)
            while True:
                try:
                    goes_on = await self._store.go_on(making.begun, self._lease_us(), events)
                except _DATABASE_FAILS as error:
                    _log.warning("background responses: events wait for the database: %s", type(error).__name__)
                    await asyncio.sleep(_WRITE_S * 4)
                else:
                    break
            making.events += count
            if not goes_on:
                # It was cancelled or deleted, or is another process's by now.
                making.is_lost = True
                making.exchange.lost("hung_up")
                return

    async def _end(self, making: _Making, code: str) -> None:
        exchange, begun = making.exchange, making.begun
        count, data = making.taken()
        if exchange.status == _OK:
            response = response_in(data)
            if response is not None and (response["status"] in _ENDED) == (making.kept is not None):
                if making.kept is None and not begun.streams and begun.failures + 1 < _TRIES:
                    await self._give_back(begun, self._wait_us(begun, None), failed=True)
                    return
                if not begun.streams:
                    count, data = 0, b""
                await self._write_end(making, response, count, data)
                return
        elif (meant := meaning(exchange.status, code, begun.failures, _TRIES)) != "answer":
            told = dict(exchange.reply_headers).get(b"retry-after-ms", b"")
            wait_us = self._wait_us(begun, int(told) / 1_000 if told.isdigit() else None)
            await self._give_back(begun, wait_us, failed=meant == "again")
            return
        await self._fail(making, _message_in(data))

    async def _fail(self, making: _Making, message: str) -> None:
        """End one that has no response of its own, with an error message."""
        begun = making.begun
        try:
            found = await self._responses.find(begun.team_id, begun.response_id)
        except ResponseNotFound:
            await self._store.forget(begun.team_id, begun.response_id)
            return
        record = msgspec.json.decode(found, type=dict[str, Any])
        error = {"code": "server_error", "message": message}
        response = {**record["response"], "status": "failed", "error": error}
        data = terminal(response, making.events) if begun.streams else b""
        await self._write_end(making, response, count_of(data), data)

    async def _write_end(self, making: _Making, response: dict[str, Any], count: int, data: bytes) -> None:
        begun, kept = making.begun, making.kept
        state: State = response["status"]
        events = self._events(making, count, data)
        ended: Literal["ended", "lost", "outrun"] = "outrun"
        while ended == "outrun":
            try:
                record, changed = await self._rows(begun, response, kept)
                ended = await self._store.end(begun, state, record, events, changed)
            except IntegrityError:
                # It would fail for ever; its lease ends, and it is begun anew.
                raise
            except (*_DATABASE_FAILS, ResponsesUnavailable) as error:
                # The database is waited for: the answer was paid for.
                _log.warning("background responses: an end waits for the database: %s", type(error).__name__)
                await asyncio.sleep(_WRITE_S * 4)
            except Refused as error:
                # Its conversation is gone, or it is too large to be kept.
                making.kept = None
                if kept is not None:
                    await self._fail(making, error.message)
                else:
                    await self._store.forget(begun.team_id, begun.response_id)
                return

    async def _rows(
        self, begun: Begun, response: dict[str, Any], kept: Kept | None
    ) -> tuple[StoredResponse, StoredResponse | None]:
        before = kept.record if kept is not None else await self._responses.find(begun.team_id, begun.response_id)
        record = msgspec.json.decode(before, type=dict[str, Any])
        row = await self._responses.row_of(
            begun.team_id, begun.response_id, msgspec.json.encode({**record, "response": response})
        )
        if kept is None or kept.turn is None:
            return row, None
        return row, (await self._responses.changed_row(begun.team_id, kept.turn))[0]

    async def _give_back(self, begun: Begun, wait_us: int, *, failed: bool) -> None:
        try:
            await self._store.give_back(begun, wait_us, failed=failed)
        except _DATABASE_FAILS as error:
            # Its lease ends by itself.
            _log.warning("a response in the background could not be given back: %s", type(error).__name__)
            return
        asyncio.get_running_loop().call_later(wait_us / 1_000_000, self._wake.set)

    def _events(self, making: _Making, count: int, data: bytes) -> BackgroundEvents | None:
        return self._background.events_of(making.begun, making.events, count, data) if count else None

    def _wait_us(self, begun: Begun, told_s: float | None) -> int:
        return int(wait_of_s(told_s, begun.failures, self._jitter()) * 1_000_000)

    def _lease_us(self) -> int:
        return int(self._section().background_lease_s * 1_000_000)


def _request_id(begun: Begun) -> str:
    """Return the id under which the ledger books one beginning of one response, and no other, in the shape of every request id."""
    named = f"{begun.response_id}:{begun.generation}".encode()
    return f"req_{begun.created_us // 1_000:012x}{blake2b(named, digest_size=8).hexdigest()}"


def _message_in(data: bytes) -> str:
    """Return the words of an error reply."""
    try:
        return str(msgspec.json.decode(data)["error"]["message"])
    except (KeyError, TypeError, *DECODE_ERRORS):
        return "The response broke off."
