"""Claims on Idempotency-Keys: decides which process serves a keyed request, and replays its answer to repeats.

The same team, key and body within `keep_h` get the same status and body, from one upstream call that is booked once,
whichever process is asked. The promise ends where a process does: when one dies, or stands still for longer than
`claim_s`, before it kept its answer, another process takes its key over, and the request is served again.

While the database does not answer, a request with a key is refused, for nobody can say whether it was served before. A
request served during that time stays claimed by its process, which keeps trying to write the answer.

Answers are stored as they were sent because their caller asked for it with the header, and for `keep_h` only. The key
and the request are stored as digests, and none of them is ever logged.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

import msgspec

from proxy.admit.idempotency.idempotency_config import IdempotencySection
from proxy.admit.idempotency.store import IN_FLIGHT, NOT_KEPT, IdempotencyStore, KeyClaim, StoredClaim
from proxy.errors import AnswerNotKept, BadRequest, IdempotencyUnavailable, KeyInFlight, KeyReused, TooManyKeys

_log: Final = logging.getLogger("weighbridge.idempotency")

HEADER: Final = "Idempotency-Key"
MAX_KEY_CHARS: Final = 255
_HEADERS_THAT_COUNT: Final = (b"x-tier", b"x-priority", b"x-weighbridge-escalate", b"x-weighbridge-tag")
"""Headers that belong to the fingerprint. Deadlines and trace headers differ between tries, so they do not."""
_HOUR_US: Final = 3_600_000_000

MAX_RECORDED_BYTES: Final = 256 * 1024 * 1024
"""The most bytes of recorded answers that a process holds at once; beyond it an answer is not kept, or not replayed
yet.
"""
_CALLS_AT_ONCE: Final = 4
"""Concurrent database calls, fewer than the pool's connections."""
_CALL_S: Final = 10.0
"""The time-out of one database call, longer than SQLite waits for another writer."""
_RETRY_S: Final = 1.0
_PURGE_S: Final = 60.0
_PURGE_BATCH: Final = 100
_PURGE_BATCHES: Final = 600
_FREE_BATCH: Final = 500
_CLOSE_S: Final = 5.0
_CLAIM_TRIES: Final = 3
"""Tries to claim a key that is freed and taken again in between."""
_WRITE_TRIES: Final = 5
"""Tries to write one answer while the database accepts other writes."""
_COUNT_EVERY_S: Final = 60.0
_COUNT_FULL_EVERY_S: Final = 5.0
_MAX_TEAMS: Final = 10_000
_LEAST_RETRY_S: Final = 1.0
_MOST_RETRY_S: Final = 10.0
_UNKNOWN: Final = "Nobody can say right now whether the request of this Idempotency-Key was served before."

Header = tuple[bytes, bytes]
_Done = TypeVar("_Done")


def _do_nothing() -> None: ...


def _uncounted(_name: str, _times: int) -> None: ...


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A kept answer, to be sent again."""

    request_id: str
    """The id of the request that was originally served."""
    status: int
    headers: tuple[Header, ...]
    body: bytes
    given: Callable[[], None] = _do_nothing
    """A callback that releases the answer's memory once it was sent or could not be."""


class Counts(msgspec.Struct, kw_only=True):
    """Event counts since the process began."""

    claimed: int = 0
    replayed: int = 0
    in_flight: int = 0
    reused: int = 0
    not_kept: int = 0
    """Repeats of a request whose answer was too large to keep."""
    refused: int = 0
    """New keys refused because their team has too many."""
    unavailable: int = 0
    taken_over: int = 0
    """Keys taken over from processes that stopped renewing them."""
    lost: int = 0
    """Keys of this process that others took over, noticed when writing the answer."""
    kept: int = 0
    too_large: int = 0
    freed: int = 0
    failed_writes: int = 0
    purged: int = 0


class _Answer(msgspec.Struct, frozen=True):
    status: int
    headers: str
    body: bytes


class _Counted(msgspec.Struct):
    keys: int
    at: float


class Claim:
    """The right to serve the request of one key, until its answer is kept or the key is freed. Only the first of both
    counts.
    """

    __slots__ = ("_once", "_room", "ending", "since", "tries", "wanted")

    def __init__(self, once: "Idempotency", wanted: KeyClaim, since: float) -> None:
        self._once = once
        self._room = 0
        self.wanted = wanted
        self.since = since
        self.ending: asyncio.Future[None] | None = None
        self.tries = 0

    @property
    def request_id(self) -> str:
        """The id of the request that is served under this claim."""
        return self.wanted.request_id

    @property
    def max_answer_bytes(self) -> int:
        """The largest answer, in bytes, that is kept."""
        return self._once.max_answer_bytes

    def hold(self, size: int) -> bool:
        """Reserve memory for `size` more bytes of the answer. Return False when this process holds too much already."""
        if self.ending is not None or not self._once.has_room_for(size):
            return False
        self._room += size
        self._once.recorded_bytes += size
        return True

    def let_go(self) -> None:
        """Release all reserved memory."""
        self._once.recorded_bytes -= self._room
        self._room = 0

    def keep(self, status: int, headers: Iterable[Header], body: bytes | None) -> Awaitable[None]:
        """Keep the answer for repeats of the key; a `body` of None marks one that was too large. The write starts at
        once, awaited or not. Awaiting waits at most `timeout_s` and raises nothing but the awaiter's own
        cancellation, which does not stop the write.
        """
        if body is None:
            return self._once.end(self, _Answer(status, NOT_KEPT, b""))
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        return self._once.end(self, _Answer(status, msgspec.json.encode(pairs).decode(), body))

    def free(self) -> Awaitable[None]:
        """Free the key for a new try, because nothing was done that must not be repeated. Awaits as `keep` does."""
        return self._once.end(self, None)


class _PendingClaim:
    """A caller that waits for the database's answer on its key."""

    __slots__ = ("begun", "left")

    def __init__(self) -> None:
        self.begun = False
        self.left = False


class Idempotency:
    """Access to the table of idempotent requests; one per process."""

    def __init__(
        self,
        store: IdempotencyStore,
        boot_id: str,
        section: IdempotencySection,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_recorded_bytes: int = MAX_RECORDED_BYTES,
        counted: Callable[[str, int], None] = _uncounted,
        close_s: float = _CLOSE_S,
    ) -> None:
        """`counted(name, times)` is called for each event; `name` is a field of Counts."""
        self._store = store
        self._boot_id = boot_id
        self._section = section
        self._clock = clock
        self._lease_us = int(section.claim_s * 1_000_000)
        self._keep_us = section.keep_h * _HOUR_US
        self._max_recorded_bytes = max_recorded_bytes
        self._counted = counted
        self._close_s = close_s
        self._calls = asyncio.Semaphore(_CALLS_AT_ONCE)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._held: dict[tuple[str, str], Claim] = {}
        """Claims that this process serves, by team and key digest, so that repeats need no database call."""
        self._open: set[str] = set()
        """Request ids that hold, or are about to hold, a key. A renewal frees the stored claim of any other id."""
        self._unwritten: dict[str, tuple[Claim, _Answer]] = {}
        """Answers that the database has not accepted yet; bounded by `max_recorded_bytes`."""
        self._teams: dict[str, _Counted] = {}
        self._retry_soon = False
        self.max_answer_bytes = section.max_answer_bytes
        self.recorded_bytes = 0
        self.counts = Counts()

    def has_room_for(self, size: int) -> bool:
        """Return True when `size` more bytes of answers may be held in memory."""
        return self.recorded_bytes + size <= self._max_recorded_bytes

    async def claim(self, team_id: str, key: str, fingerprint: bytes, request_id: str) -> Claim | Replay:
        """Return a claim to serve the request, or the kept answer of an earlier one. Raises BadRequest, KeyInFlight,
        KeyReused, AnswerNotKept, TooManyKeys or IdempotencyUnavailable.
        """
        check_key(key)
        wanted = KeyClaim(
            team_id=team_id,
            key_digest=hashlib.sha256(f"{team_id}\0{key}".encode()).hexdigest(),
            body_digest=hashlib.sha256(fingerprint).hexdigest(),
            request_id=request_id,
            boot_id=self._boot_id,
        )
        held = self._held.get((team_id, wanted.key_digest))
        if held is not None:
            self._check_same_body(wanted, held.wanted.body_digest)
            raise self._in_flight(self._clock() - held.since)
        answer = await self._claim_in_time(wanted)
        if isinstance(answer, Claim):
            self._count("claimed")
            return answer
        return self._replay_of(wanted, answer)

    async def _claim_in_time(self, wanted: KeyClaim) -> Claim | StoredClaim | None:
        """Claim in the database within `timeout_s`. A caller that stops waiting leaves no claim behind."""
        asking = _PendingClaim()
        task = self._start_task(self._claim_stored(wanted, asking))
        try:
            async with asyncio.timeout(self._section.timeout_s):
                answer = await asyncio.shield(task)
        except TimeoutError:
            self._abandon(task, asking)
            raise self._unavailable() from None
        except asyncio.CancelledError:
            self._abandon(task, asking)
            raise
        if isinstance(answer, IdempotencyUnavailable):
            raise answer
        return answer

    @staticmethod
    def _abandon(
        task: "asyncio.Task[Claim | StoredClaim | IdempotencyUnavailable | None]", asking: _PendingClaim
    ) -> None:
        asking.left = True
        if not asking.begun:
            task.cancel()
        elif task.done() and not task.cancelled() and isinstance(claim := task.result(), Claim):
            claim.free()

    async def _claim_stored(
        self, wanted: KeyClaim, asking: _PendingClaim
    ) -> Claim | StoredClaim | IdempotencyUnavailable | None:
        async with self._calls:
            asking.begun = True
            self._open.add(wanted.request_id)
            try:
                async with asyncio.timeout(_CALL_S):
                    outcome = await self._try_claim(wanted)
            except Exception as failure:  # noqa: BLE001 - whatever it was, nobody knows whether this was served before
                # Should the key be taken after all, the next renewal finds it and frees it.
                self._open.discard(wanted.request_id)
                self._retry_soon = True
                _log.warning("a key could not be claimed: %s", type(failure).__name__)
                return self._unavailable()
            except BaseException:
                self._open.discard(wanted.request_id)
                raise
        if isinstance(outcome, bool):
            return self._register_claim(wanted, asking, taken_over=outcome)
        self._open.discard(wanted.request_id)
        return outcome

    async def _try_claim(self, wanted: KeyClaim) -> StoredClaim | bool | None:
        """Return an earlier request's row, True or False for a claim (True: taken over), or None when the team has no
        room.
        """
        has_room = await self._has_room(wanted.team_id)
        for _ in range(_CLAIM_TRIES):
            outcome = await self._store.claim(wanted, lease_us=self._lease_us, keep_us=self._keep_us, has_room=has_room)
            if isinstance(outcome, StoredClaim):
                return outcome
            if outcome != "nothing":
                return outcome == "taken over"
            if not has_room:
                return None
        raise TimeoutError("the key changed hands again and again")

    def _register_claim(self, wanted: KeyClaim, asking: _PendingClaim, *, taken_over: bool) -> Claim:
        claim = Claim(self, wanted, self._clock())
        self._held[wanted.team_id, wanted.key_digest] = claim
        counted = self._teams.get(wanted.team_id)
        if counted is not None:
            counted.keys += 1
        if taken_over:
            self._count("taken_over")
            _log.warning("request %s takes over a key whose process is gone", wanted.request_id)
        if asking.left:
            claim.free()
        return claim

    async def _has_room(self, team_id: str) -> bool:
        """Return True when the team may have one more key. Counts rows at intervals only, as counting is slow."""
        most, now = self._section.max_keys_per_team, self._clock()
        counted = self._teams.get(team_id)
        every_s = _COUNT_EVERY_S if counted is None or counted.keys < most else _COUNT_FULL_EVERY_S
        if counted is None or now - counted.at >= every_s:
            # Concurrent callers go by the old count meanwhile, instead of counting too.
            self._remember(team_id, _Counted(counted.keys if counted else 0, now))
            self._remember(team_id, counted := _Counted(await self._store.count(team_id), now))
        return counted.keys < most

    def _remember(self, team_id: str, counted: _Counted) -> None:
        if team_id not in self._teams and len(self._teams) >= _MAX_TEAMS:
            del self._teams[next(iter(self._teams))]
        self._teams[team_id] = counted

    def _replay_of(self, wanted: KeyClaim, found: StoredClaim | None) -> Replay:
        if found is None:
            self._count("refused")
            raise TooManyKeys(
                f"This team has {self._section.max_keys_per_team} Idempotency-Keys of the last {self._section.keep_h} h, "
                "which is the most that are kept. Send the request without the header, or when old ones have expired.",
                param=HEADER,
                retry_after_s=_PURGE_S,
                should_retry=False,
            )
        self._check_same_body(wanted, found.body_digest)
        if found.status == IN_FLIGHT:
            raise self._in_flight((found.now_us - found.expires_us + self._keep_us) / 1_000_000)
        if found.headers == NOT_KEPT:
            self._count("not_kept")
            raise AnswerNotKept(
                f"The request of this Idempotency-Key was served as {found.request_id} with status {found.status}, but "
                "its answer was too large to keep. It is not served again; to have it served once more, use a new key.",
                param=HEADER,
                should_retry=False,
            )
        given = self._reserve_replay(len(found.body))
        self._count("replayed")
        pairs = msgspec.json.decode(found.headers, type=list[tuple[str, str]])
        headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs)
        return Replay(request_id=found.request_id, status=found.status, headers=headers, body=found.body, given=given)

    def _reserve_replay(self, size: int) -> Callable[[], None]:
        """Reserve memory for a replayed answer, and return the function that releases it, once."""
        if not self.has_room_for(size):
            raise self._unavailable("This gateway process holds as many kept answers in its memory as it may.")
        self.recorded_bytes += size
        lent = [size]

        def give_back() -> None:
            self.recorded_bytes -= lent.pop() if lent else 0

        return give_back

    def _check_same_body(self, wanted: KeyClaim, body_digest: str) -> None:
        if wanted.body_digest != body_digest:
            self._count("reused")
            raise KeyReused(
                "This Idempotency-Key was sent with another request before. Use a new key for a new request, and for a "
                "repeat the very same body, path and `x-` headers.",
                param=HEADER,
            )

    def _in_flight(self, for_s: float) -> KeyInFlight:
        """Count and build the error; retry-after equals the time served so far, within bounds, as the best guess of
        the rest.
        """
        self._count("in_flight")
        return KeyInFlight(
            "The request of this Idempotency-Key is being served; send it again shortly to get its answer.",
            param=HEADER,
            retry_after_s=min(max(for_s, _LEAST_RETRY_S), _MOST_RETRY_S),
        )

    def _unavailable(self, why: str = _UNKNOWN) -> IdempotencyUnavailable:
        self._count("unavailable")
        return IdempotencyUnavailable(
            f"{why} Send it again shortly, or without the header.", param=HEADER, retry_after_s=_RETRY_S
        )

    def end(self, claim: Claim, answer: _Answer | None) -> Awaitable[None]:
        """Write the end of a claim: the answer, or None to free the key. See `Claim.keep`."""
        if claim.ending is None:
            writing = self._start_task(self._write(claim, answer))
            claim.ending = self._start_task(_wait_at_most(writing, self._section.timeout_s))
        return asyncio.shield(claim.ending)

    async def _write(self, claim: Claim, answer: _Answer | None) -> None:
        async with self._calls:
            try:
                await self._write_once(claim, answer)
            except Exception as failure:  # noqa: BLE001 - the answer is the caller's already, whatever became of this
                self._on_write_failure(claim, answer, failure)
            else:
                self._release(claim)

    async def _write_once(self, claim: Claim, answer: _Answer | None) -> None:
        async with asyncio.timeout(_CALL_S):
            if answer is None:
                await self._store.free(claim.wanted)
                self._count("freed")
                return
            ours = await self._store.finish(
                claim.wanted, status=answer.status, headers=answer.headers, body=answer.body
            )
        if not ours:
            self._count("lost")
            _log.error(
                "request %s: its Idempotency-Key was taken over while this process did not show itself; the answer is "
                "not kept, and the request may be served twice",
                claim.request_id,
            )
        elif answer.headers == NOT_KEPT:
            self._count("too_large")
        else:
            self._count("kept")

    def _on_write_failure(self, claim: Claim, answer: _Answer | None, failure: Exception) -> None:
        self._count("failed_writes")
        self._retry_soon = True
        _log.warning("request %s: its Idempotency-Key is not written yet: %s", claim.request_id, type(failure).__name__)
        if answer is None:
            # The next renewal frees what this process serves no more.
            self._release(claim)
        else:
            self._unwritten[claim.request_id] = (claim, answer)

    def _release(self, claim: Claim) -> None:
        claim.let_go()
        self._open.discard(claim.request_id)
        self._unwritten.pop(claim.request_id, None)
        place = (claim.wanted.team_id, claim.wanted.key_digest)
        if self._held.get(place) is claim:
            del self._held[place]

    async def run(self) -> None:
        """Renew claims and purge expired keys, for ever."""
        purge_at = self._clock() + _PURGE_S
        while True:
            pause_s = self._section.claim_s / 3
            await asyncio.sleep(min(pause_s, _RETRY_S) if self._retry_soon or self._unwritten else pause_s)
            if self._open or self._retry_soon:
                await _log_failure(self.renew())
            if self._clock() >= purge_at:
                await _log_failure(self.purge())
                purge_at = self._clock() + _PURGE_S

    async def renew(self) -> None:
        """Extend this process's claims, free keys it no longer serves, and retry unwritten answers."""
        self._retry_soon = False
        try:
            async with asyncio.timeout(_CALL_S):
                held = await self._store.renew(self._boot_id, self._lease_us)
                strays = sorted(held - self._open)
                for start in range(0, len(strays), _FREE_BATCH):
                    await self._store.free_requests(self._boot_id, strays[start : start + _FREE_BATCH])
            for claim, answer in tuple(self._unwritten.values()):
                await self._write_again(claim, answer)
        except BaseException:
            self._retry_soon = True
            raise

    async def _write_again(self, claim: Claim, answer: _Answer) -> None:
        claim.tries += 1
        try:
            await self._write_once(claim, answer)
        except Exception as failure:
            if claim.tries < _WRITE_TRIES:
                raise
            # Everything else is taken, so it is this answer. Nobody shall be told for ever that it is in flight.
            _log.error("request %s: its answer cannot be kept: %s", claim.request_id, type(failure).__name__)
        self._release(claim)

    async def purge(self) -> None:
        """Delete expired keys in batches."""
        for _ in range(_PURGE_BATCHES):
            async with asyncio.timeout(_CALL_S):
                gone = await self._store.purge(_PURGE_BATCH)
            self._count("purged", gone)
            if gone < _PURGE_BATCH:
                return

    async def aclose(self) -> None:
        """Wait up to `close_s` for pending writes, then free keys that are no longer served."""
        with contextlib.suppress(TimeoutError):
            # For both together: a database that takes nothing from the one takes nothing from the other.
            async with asyncio.timeout(self._close_s):
                # An ending task may start another: an abandoned claim is freed.
                while self._tasks:
                    await asyncio.wait(self._tasks)
                await _log_failure(self.renew())

    def _count(self, name: str, times: int = 1) -> None:
        setattr(self.counts, name, getattr(self.counts, name) + times)
        self._counted(name, times)

    def _start_task(self, work: Coroutine[Any, Any, _Done]) -> "asyncio.Task[_Done]":
        task = asyncio.create_task(work, name="idempotency")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def check_key(key: str) -> None:
    """Check the form of a key. Raises BadRequest."""
    if not 1 <= len(key) <= MAX_KEY_CHARS or not all("!" <= char <= "~" for char in key):
        raise BadRequest(
            f"`{HEADER}` must have 1 to {MAX_KEY_CHARS} visible ASCII characters; a random UUID is a good one.",
            param=HEADER,
        )


def fingerprint_of(path: str, headers: Iterable[Header], body: bytes) -> bytes:
    """Return the SHA-256 of path, relevant headers and body: equal for requests that count as the same."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _HEADERS_THAT_COUNT:
            found.setdefault(name, value.strip())
    parts = (path.encode(), *(found.get(name, b"") for name in _HEADERS_THAT_COUNT))
    digest = hashlib.sha256()
    for part in parts:
        # Each with its length, so that no two lists of parts run together to the same.
        digest.update(len(part).to_bytes(8, "big") + part)
    digest.update(body)
    return digest.digest()


async def _wait_at_most(task: "asyncio.Task[None]", timeout_s: float) -> None:
    await asyncio.wait({task}, timeout=timeout_s)


async def _log_failure(step: Awaitable[None]) -> None:
    """Await a step and log its failure instead of raising, so that the loop goes on."""
    try:
        await step
    except Exception as failure:  # noqa: BLE001 - the loop must outlive a database that is away for a while
        _log.warning("keys are not renewed or purged: %s", type(failure).__name__)
