"""One process's claims on keys: who serves a request that was sent with an Idempotency-Key, and who gets its answer again.

The same team, key and body within `keep_h` get the same status and body, from one upstream call that is booked once,
whichever process is asked. The promise ends where a process does: when one dies, or stands still for longer than
`claim_s`, before it kept its answer, its key is another's, and the request is served again.

While the database does not answer, a request with a key is refused, for nobody can say whether it was served before.
What was served during that time stays claimed by its process, which keeps trying to write the answer.

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

from proxy.errors import AnswerNotKept, BadRequest, IdempotencyUnavailable, KeyInFlight, KeyReused, TooManyKeys
from proxy.idempotency.idempotency_config import IdempotencySection
from proxy.idempotency.store import IN_FLIGHT, NOT_KEPT, IdempotencyStore, KeyClaim, StoredClaim

_log: Final = logging.getLogger("weighbridge.idempotency")

HEADER: Final = "Idempotency-Key"
MAX_KEY_CHARS: Final = 255
_HEADERS_THAT_COUNT: Final = (b"x-tier", b"x-priority", b"x-weighbridge-escalate", b"x-weighbridge-tag")
"""What a caller asks for beside the body. Deadlines and traces differ from one try to the next, so they do not count."""
_HOUR_US: Final = 3_600_000_000

MAX_RECORDED_BYTES: Final = 256 * 1024 * 1024
"""Of answers that a process holds until they are kept or given again; what does not fit is not kept, or given later."""
_CALLS_AT_ONCE: Final = 4
"""Fewer than the database's connections."""
_CALL_S: Final = 10.0
"""A statement that takes longer is given up. It is longer than SQLite waits for another writer."""
_RETRY_S: Final = 1.0
_PURGE_S: Final = 60.0
_PURGE_BATCH: Final = 100
_PURGE_BATCHES: Final = 600
_FREE_BATCH: Final = 500
_CLOSE_S: Final = 5.0
_LOOKS: Final = 3
"""A key that is freed and taken while it is looked at is looked at again so often."""
_WRITE_TRIES: Final = 5
"""Of an answer, while the database takes everything else."""
_COUNT_EVERY_S: Final = 60.0
_COUNT_FULL_EVERY_S: Final = 5.0
_MAX_TEAMS: Final = 10_000
_LEAST_RETRY_S: Final = 1.0
_MOST_RETRY_S: Final = 10.0
_UNKNOWN: Final = "Nobody can say right now whether the request of this Idempotency-Key was served before."

Header = tuple[bytes, bytes]
_Done = TypeVar("_Done")


def _nothing() -> None: ...


def _uncounted(_name: str, _times: int) -> None: ...


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that was given before, to be given again."""

    request_id: str
    """Of the request that was served."""
    status: int
    headers: tuple[Header, ...]
    body: bytes
    given: Callable[[], None] = _nothing
    """To be called when it was given, or could not be: it takes no memory any more."""


class Counts(msgspec.Struct, kw_only=True):
    """How often what happened, since the process began."""

    claimed: int = 0
    replayed: int = 0
    in_flight: int = 0
    reused: int = 0
    not_kept: int = 0
    """Repeats of a request whose answer was too large."""
    refused: int = 0
    """New keys of teams that have too many."""
    unavailable: int = 0
    taken_over: int = 0
    """Keys of processes that did not show themselves any more."""
    lost: int = 0
    """Keys of this process that others took over, found out when their answers were to be kept."""
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
    """The right to serve one request for all who send its key, until it is kept or freed. Only the first of both counts."""

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
        """Of the request that is served."""
        return self.wanted.request_id

    @property
    def max_answer_bytes(self) -> int:
        """What an answer may have that is to be kept."""
        return self._once.max_answer_bytes

    def hold(self, size: int) -> bool:
        """Reserve memory for a piece of the answer; False when this process holds too many answers already."""
        if self.ending is not None or not self._once.has_room_for(size):
            return False
        self._room += size
        self._once.recorded_bytes += size
        return True

    def let_go(self) -> None:
        """Give back all memory that was reserved."""
        self._once.recorded_bytes -= self._room
        self._room = 0

    def keep(self, status: int, headers: Iterable[Header], body: bytes | None) -> Awaitable[None]:
        """Keep the answer for whoever sends the key again; None is one that is too large.

        It begins at once, whether or not anybody awaits it. Who does waits `timeout_s` at most, and nothing is raised
        but one's own cancellation, which does not stop it.
        """
        if body is None:
            return self._once.end(self, _Answer(status, NOT_KEPT, b""))
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        return self._once.end(self, _Answer(status, msgspec.json.encode(pairs).decode(), body))

    def free(self) -> Awaitable[None]:
        """Nothing was done that must not be done again, so the key may be used again. As `keep` in all else."""
        return self._once.end(self, None)


class _Asking:
    """A request that waits for the database's word on its key."""

    __slots__ = ("begun", "left")

    def __init__(self) -> None:
        self.begun = False
        self.left = False


class Idempotency:
    """The only door to the table of idempotent requests, one a process."""

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
        """`counted` is told the name of what happened, one of the fields of Counts, and how often."""
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
        """What this process serves, so that it need not ask the database whether it does."""
        self._open: set[str] = set()
        """Requests that hold a key, or may soon. What this process holds for any other is freed."""
        self._unwritten: dict[str, tuple[Claim, _Answer]] = {}
        """Answers that the database did not take yet; their memory is bounded by what may be recorded."""
        self._teams: dict[str, _Counted] = {}
        self._troubled = False
        self.max_answer_bytes = section.max_answer_bytes
        self.recorded_bytes = 0
        self.counts = Counts()

    def has_room_for(self, size: int) -> bool:
        """Whether this process may hold so much more of answers."""
        return self.recorded_bytes + size <= self._max_recorded_bytes

    async def claim(self, team_id: str, key: str, fingerprint: bytes, request_id: str) -> Claim | Replay:
        """The right to serve a request, or the answer that it had before.

        Raises BadRequest, KeyInFlight, KeyReused, AnswerNotKept, TooManyKeys or IdempotencyUnavailable.
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
            self._same_body(wanted, held.wanted.body_digest)
            raise self._in_flight(self._clock() - held.since)
        answer = await self._answered(wanted)
        if isinstance(answer, Claim):
            self._count("claimed")
            return answer
        return self._judge(wanted, answer)

    async def _answered(self, wanted: KeyClaim) -> Claim | StoredClaim | None:
        """The database's word within `timeout_s`. Who does not wait for it any more gets no claim from it."""
        asking = _Asking()
        task = self._begin(self._ask(wanted, asking))
        try:
            async with asyncio.timeout(self._section.timeout_s):
                answer = await asyncio.shield(task)
        except TimeoutError:
            self._leave(task, asking)
            raise self._unavailable() from None
        except asyncio.CancelledError:
            self._leave(task, asking)
            raise
        if isinstance(answer, IdempotencyUnavailable):
            raise answer
        return answer

    @staticmethod
    def _leave(task: "asyncio.Task[Claim | StoredClaim | IdempotencyUnavailable | None]", asking: _Asking) -> None:
        asking.left = True
        if not asking.begun:
            task.cancel()
        elif task.done() and not task.cancelled() and isinstance(claim := task.result(), Claim):
            claim.free()

    async def _ask(self, wanted: KeyClaim, asking: _Asking) -> Claim | StoredClaim | IdempotencyUnavailable | None:
        async with self._calls:
            asking.begun = True
            self._open.add(wanted.request_id)
            try:
                async with asyncio.timeout(_CALL_S):
                    outcome = await self._look(wanted)
            except Exception as failure:  # noqa: BLE001 - whatever it was, nobody knows whether this was served before
                # Should the key be taken after all, the next renewal finds it and frees it.
                self._open.discard(wanted.request_id)
                self._troubled = True
                _log.warning("a key could not be claimed: %s", type(failure).__name__)
                return self._unavailable()
            except BaseException:
                self._open.discard(wanted.request_id)
                raise
        if isinstance(outcome, bool):
            return self._claimed(wanted, asking, taken_over=outcome)
        self._open.discard(wanted.request_id)
        return outcome

    async def _look(self, wanted: KeyClaim) -> StoredClaim | bool | None:
        """What the database says: an earlier request, a claim (True when taken over), or None for no room."""
        has_room = await self._has_room(wanted.team_id)
        for _ in range(_LOOKS):
            outcome = await self._store.claim(wanted, lease_us=self._lease_us, keep_us=self._keep_us, has_room=has_room)
            if isinstance(outcome, StoredClaim):
                return outcome
            if outcome != "nothing":
                return outcome == "taken over"
            if not has_room:
                return None
        raise TimeoutError("the key changed hands again and again")

    def _claimed(self, wanted: KeyClaim, asking: _Asking, *, taken_over: bool) -> Claim:
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
        """Whether a team may have one more key. Counting them all takes a while, so it is not done for each."""
        most, now = self._section.max_keys_per_team, self._clock()
        counted = self._teams.get(team_id)
        every_s = _COUNT_EVERY_S if counted is None or counted.keys < most else _COUNT_FULL_EVERY_S
        if counted is None or now - counted.at >= every_s:
            # Those who ask meanwhile go by the old number.
            self._remember(team_id, _Counted(counted.keys if counted else 0, now))
            self._remember(team_id, counted := _Counted(await self._store.count(team_id), now))
        return counted.keys < most

    def _remember(self, team_id: str, counted: _Counted) -> None:
        if team_id not in self._teams and len(self._teams) >= _MAX_TEAMS:
            del self._teams[next(iter(self._teams))]
        self._teams[team_id] = counted

    def _judge(self, wanted: KeyClaim, found: StoredClaim | None) -> Replay:
        if found is None:
            self._count("refused")
            raise TooManyKeys(
                f"This team has {self._section.max_keys_per_team} Idempotency-Keys of the last {self._section.keep_h} h, "
                "which is the most that are kept. Send the request without the header, or when old ones have expired.",
                param=HEADER,
                retry_after_s=_PURGE_S,
                should_retry=False,
            )
        self._same_body(wanted, found.body_digest)
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
        given = self._lent(len(found.body))
        self._count("replayed")
        pairs = msgspec.json.decode(found.headers, type=list[tuple[str, str]])
        headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs)
        return Replay(request_id=found.request_id, status=found.status, headers=headers, body=found.body, given=given)

    def _lent(self, size: int) -> Callable[[], None]:
        """The memory of an answer that is given again; what is called gives it back, once."""
        if not self.has_room_for(size):
            raise self._unavailable("This gateway process holds as many kept answers in its memory as it may.")
        self.recorded_bytes += size
        lent = [size]

        def give_back() -> None:
            self.recorded_bytes -= lent.pop() if lent else 0

        return give_back

    def _same_body(self, wanted: KeyClaim, body_digest: str) -> None:
        if wanted.body_digest != body_digest:
            self._count("reused")
            raise KeyReused(
                "This Idempotency-Key was sent with another request before. Use a new key for a new request, and for a "
                "repeat the very same body, path and `x-` headers.",
                param=HEADER,
            )

    def _in_flight(self, for_s: float) -> KeyInFlight:
        """What took so long already will likely take as long again."""
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
        """What `Claim.keep` and `Claim.free` come to."""
        if claim.ending is None:
            writing = self._begin(self._write(claim, answer))
            claim.ending = self._begin(_for(writing, self._section.timeout_s))
        return asyncio.shield(claim.ending)

    async def _write(self, claim: Claim, answer: _Answer | None) -> None:
        async with self._calls:
            try:
                await self._written(claim, answer)
            except Exception as failure:  # noqa: BLE001 - the answer is the caller's already, whatever became of this
                self._failed(claim, answer, failure)
            else:
                self._over(claim)

    async def _written(self, claim: Claim, answer: _Answer | None) -> None:
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

    def _failed(self, claim: Claim, answer: _Answer | None, failure: Exception) -> None:
        self._count("failed_writes")
        self._troubled = True
        _log.warning("request %s: its Idempotency-Key is not written yet: %s", claim.request_id, type(failure).__name__)
        if answer is None:
            # The next renewal frees what this process serves no more.
            self._over(claim)
        else:
            self._unwritten[claim.request_id] = (claim, answer)

    def _over(self, claim: Claim) -> None:
        claim.let_go()
        self._open.discard(claim.request_id)
        self._unwritten.pop(claim.request_id, None)
        place = (claim.wanted.team_id, claim.wanted.key_digest)
        if self._held.get(place) is claim:
            del self._held[place]

    async def run(self) -> None:
        """Renews and purges for ever."""
        purge_at = self._clock() + _PURGE_S
        while True:
            pause_s = self._section.claim_s / 3
            await asyncio.sleep(min(pause_s, _RETRY_S) if self._troubled or self._unwritten else pause_s)
            if self._open or self._troubled:
                await _logged(self.renew())
            if self._clock() >= purge_at:
                await _logged(self.purge())
                purge_at = self._clock() + _PURGE_S

    async def renew(self) -> None:
        """Lift what this process holds, free what it serves no more, and write the answers that were not taken."""
        self._troubled = False
        try:
            async with asyncio.timeout(_CALL_S):
                held = await self._store.renew(self._boot_id, self._lease_us)
                strays = sorted(held - self._open)
                for start in range(0, len(strays), _FREE_BATCH):
                    await self._store.free_requests(self._boot_id, strays[start : start + _FREE_BATCH])
            for claim, answer in tuple(self._unwritten.values()):
                await self._write_again(claim, answer)
        except BaseException:
            self._troubled = True
            raise

    async def _write_again(self, claim: Claim, answer: _Answer) -> None:
        claim.tries += 1
        try:
            await self._written(claim, answer)
        except Exception as failure:
            if claim.tries < _WRITE_TRIES:
                raise
            # Everything else is taken, so it is this answer. Nobody shall be told for ever that it is in flight.
            _log.error("request %s: its answer cannot be kept: %s", claim.request_id, type(failure).__name__)
        self._over(claim)

    async def purge(self) -> None:
        """Forget what is kept no longer."""
        for _ in range(_PURGE_BATCHES):
            async with asyncio.timeout(_CALL_S):
                gone = await self._store.purge(_PURGE_BATCH)
            self._count("purged", gone)
            if gone < _PURGE_BATCH:
                return

    async def aclose(self) -> None:
        """Wait for what is being written, for a moment; keys that nobody serves any more become free."""
        with contextlib.suppress(TimeoutError):
            # For both together: a database that takes nothing from the one takes nothing from the other.
            async with asyncio.timeout(self._close_s):
                # What ends may begin something: a claim that nobody waits for any more is freed.
                while self._tasks:
                    await asyncio.wait(self._tasks)
                await _logged(self.renew())

    def _count(self, name: str, times: int = 1) -> None:
        setattr(self.counts, name, getattr(self.counts, name) + times)
        self._counted(name, times)

    def _begin(self, work: Coroutine[Any, Any, _Done]) -> "asyncio.Task[_Done]":
        task = asyncio.create_task(work, name="idempotency")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def check_key(key: str) -> None:
    """Raises BadRequest for what no key can be."""
    if not 1 <= len(key) <= MAX_KEY_CHARS or not all("!" <= char <= "~" for char in key):
        raise BadRequest(
            f"`{HEADER}` must have 1 to {MAX_KEY_CHARS} visible ASCII characters; a random UUID is a good one.",
            param=HEADER,
        )


def fingerprint_of(path: str, headers: Iterable[Header], body: bytes) -> bytes:
    """A digest of all that makes two requests the same."""
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


async def _for(task: "asyncio.Task[None]", timeout_s: float) -> None:
    await asyncio.wait({task}, timeout=timeout_s)


async def _logged(step: Awaitable[None]) -> None:
    """The next step follows whatever becomes of this one."""
    try:
        await step
    except Exception as failure:  # noqa: BLE001 - the loop must outlive a database that is away for a while
        _log.warning("keys are not renewed or purged: %s", type(failure).__name__)
