"""The answer cache of one process: which requests it is for, what is there for them, and what is kept of their answers.

Between admission and planning: who may not ask, or has asked too often, is refused before anything is given.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, Literal, Protocol

import msgspec

from accounts.caller import Caller
from cost.ledger.ledger import Books
from providers.wire import ChatRequest, Event
from proxy.cache.cache_config import CacheSection
from proxy.cache.cache_key import Fields, fields_of_body, key_of
from proxy.cache.cache_store import AnswerStore, StoreObserver
from proxy.cache.flights import Flight, Landing
from proxy.cache.kept_answer import KeptAnswer, is_clean, read, size_of, written
from proxy.cache.replay import committed_again
from proxy.cache.wishes import Wishes, wishes_of
from proxy.dispatch.attempt import Attempt, Settled
from proxy.dispatch.dispatcher import Committed
from proxy.parse.headers import RequestHeaders
from proxy.parse.parsed_request import ParsedRequest
from proxy.parse.wires.wire import Dialect
from proxy.plan.pipeline_config import PipelineConfig

CacheResult = Literal["hit", "miss", "bypass", "refresh"]
"""What the cache had for a request: an answer, none, nothing to do with it, or an answer that was not wanted."""
BYPASS: Final = b"x-weighbridge-cache: bypass\r\n"
_LONGEST_BODY: Final = 1_048_576
"""A longer body is not looked up: hashing it would hold up others."""
_LONG_RECORD: Final = 65_536
"""A longer record is sealed and opened beside the loop."""
_MOST_PUTS: Final = 256
"""Answers that are being kept at a time; others are not kept."""
_MOST_LEADERS: Final = 3
"""Requests that one waits for, each of whose callers hung up, before it asks itself."""
_SECOND_US: Final = 1_000_000
_OPERATIONS: Final = frozenset({"chat", "embeddings"})
_NOT_TWICE: Final = frozenset({"audio", "background", "conversation", "previous_response_id", "web_search_options"})
"""Fields of requests whose answers have an effect, follow from what is kept elsewhere, or from the present."""
_SOUND: Final = b'"audio"'
_NO: Final = frozenset({b"null", b"false"})


class CacheObserver(StoreObserver):
    """A receiver of the cache's counts; this base class ignores them."""

    def count(self, result: CacheResult) -> None: ...

    def count_stored(self, size: int) -> None: ...


class Sealer(Protocol):
    """What seals answers for a team, each under its name."""

    def seal(self, team_id: str, name: str, record: bytes) -> bytes: ...

    def open(self, team_id: str, name: str, sealed: bytes, max_bytes: int) -> bytes | None:
        """Return the record; None for one that was not sealed so."""
        ...


class AnswerCache:
    """What one process keeps, and who asks for it now."""

    def __init__(
        self,
        section: CacheSection,
        store: AnswerStore,
        sealer: Sealer,
        secret: bytes,
        *,
        books: Books,
        clock: Callable[[], float],
        now_us: Callable[[], int],
        observer: CacheObserver | None = None,
        looks_far: bool = False,
    ) -> None:
        """`looks_far` says that the store takes a round trip, which is begun with that of the limits."""
        self.section = section
        self.observer = observer or CacheObserver()
        self._store = store
        self._sealer = sealer
        self._secret = secret
        self._books = books
        self.clock = clock
        self.now_us = now_us
        self._looks_far = looks_far
        self.flights: dict[str, Flight] = {}
        self._putting: set[asyncio.Task[None]] = set()

    def look(
        self,
        wire: str,
        dialect: Dialect | None,
        caller: Caller,
        parsed: ParsedRequest,
        headers: RequestHeaders,
        rules: Iterable[bytes],
    ) -> "Lookup | None":
        """Begin to look for an answer; None for a request that the cache is not for. Raises BadRequest for a wrong header."""
        wishes = wishes_of(headers.cache)
        found = self._lookup(wire, dialect, caller, parsed, headers, wishes, rules)
        if found is None:
            self.observer.count("bypass")
        return found

    def _lookup(
        self,
        wire: str,
        dialect: Dialect | None,
        caller: Caller,
        parsed: ParsedRequest,
        headers: RequestHeaders,
        wishes: Wishes,
        rules: Iterable[bytes],
    ) -> "Lookup | None":
        settings = caller.settings
        by_itself = settings.cache == "on" or (settings.cache == "default" and self.section.default)
        if settings.cache == "off" or not (by_itself or wishes.ttl_s) or not (wishes.reads or wishes.stores):
            return None
        if dialect is None or dialect.keeps or len(parsed.body) > _LONGEST_BODY or not _may_be_told_twice(parsed):
            return None
        fields = fields_of_body(parsed.body)
        if fields is None or not _says_the_same(fields) or not (wishes.ttl_s or _is_settled(parsed.request, fields)):
            return None
        ttl_s = min(self.section.ttl_s, settings.cache_ttl_s or self.section.ttl_s, wishes.ttl_s or self.section.ttl_s)
        name = key_of(self._secret, wire, caller, parsed, fields, headers, rules)
        return Lookup(self, name, caller, parsed, wishes, ttl_s, begins=self._looks_far)

    async def find(self, name: str, team_id: str, ttl_s: int) -> KeptAnswer | None:
        """Return the answer of that name, if there is one that is young enough."""
        sealed = await self._store.get(name)
        if sealed is None:
            return None
        # The sealed bytes are compressed; whatever they open to has the bound of what is kept.
        most = 16 * self.section.max_answer_bytes
        if len(sealed) > _LONG_RECORD:
            record = await asyncio.to_thread(self._sealer.open, team_id, name, sealed, most)
        else:
            record = self._sealer.open(team_id, name, sealed, most)
        kept = None if record is None else read(record)
        if kept is None or self.now_us() - kept.made_us > ttl_s * _SECOND_US:
            return None
        return kept

    def committed(
        self, kept: KeptAnswer, request_id: str, lookup: "Lookup", config: PipelineConfig
    ) -> Committed | None:
        """Return the answer as dispatch would; None where this caller may not have it."""
        return committed_again(
            kept,
            request_id,
            lookup.caller,
            lookup.parsed,
            config,
            books=self._books,
            clock=self.clock,
            now_us=self.now_us,
        )

    def keep(self, lookup: "Lookup", kept: KeptAnswer) -> None:
        """Keep an answer, beside whoever goes on: neither its caller nor a caller's end has a part in it."""
        if len(self._putting) < _MOST_PUTS:
            self._begin(self._put(lookup.name, lookup.caller.team_id, kept, lookup.ttl_s, lookup.flight))
        elif lookup.flight is not None:
            self.forget(lookup.name, lookup.flight)

    def forget(self, name: str, flight: Flight) -> None:
        """Forget a flight that has landed."""
        if self.flights.get(name) is flight:
            del self.flights[name]

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._putting.add(task)
        task.add_done_callback(self._putting.discard)

    async def _put(self, name: str, team_id: str, kept: KeptAnswer, ttl_s: int, flight: Flight | None) -> None:
        try:
            record = written(kept)
            if len(record) > _LONG_RECORD:
                sealed = await asyncio.to_thread(self._sealer.seal, team_id, name, record)
            else:
                sealed = self._sealer.seal(team_id, name, record)
            await self._store.put(name, sealed, ttl_s)
            self.observer.count_stored(len(sealed))
        finally:
            # Until it is there, equal requests have it from the flight.
            if flight is not None:
                self.forget(name, flight)

    async def aclose(self) -> None:
        """Wait until what is being kept is kept."""
        if self._putting:
            await asyncio.wait(set(self._putting))


class Lookup:
    """One request that may be answered from the cache, or whose answer may be kept."""

    __slots__ = (
        "_begun",
        "_cache",
        "_events",
        "_left",
        "_stores",
        "_wishes",
        "age_s",
        "caller",
        "flight",
        "name",
        "parsed",
        "result",
        "ttl_s",
    )

    def __init__(
        self,
        cache: AnswerCache,
        name: str,
        caller: Caller,
        parsed: ParsedRequest,
        wishes: Wishes,
        ttl_s: int,
        *,
        begins: bool,
    ) -> None:
        self._cache = cache
        self.name = name
        self.caller = caller
        self.parsed = parsed
        self.ttl_s = ttl_s
        self.result: CacheResult = "miss" if wishes.reads else "refresh"
        self.age_s = 0
        self.flight: Flight | None = None
        """The flight that others wait for; None where nobody does."""
        self._wishes = wishes
        self._stores = wishes.stores
        self._events: list[Event] = []
        """The answer's events so far, while they may be kept."""
        self._left = cache.section.max_answer_bytes
        self._begun: Awaitable[KeptAnswer | None] | None = None
        if begins and wishes.reads:
            self._begun = asyncio.ensure_future(cache.find(name, caller.team_id, ttl_s))

    @property
    def lines(self) -> bytes:
        """The reply headers that tell what the cache had."""
        age = b"age: %d\r\n" % self.age_s if self.result == "hit" else b""
        return b"x-weighbridge-cache: %b\r\n%b" % (self.result.encode(), age)

    async def committed(self, request_id: str, config: PipelineConfig) -> Committed | None:
        """Return the answer to give again; None where this request has to be answered, perhaps for others as well.

        Raises DeadlineExceeded for one that waited for an equal one until its own deadline.
        """
        kept = await self._kept() if self._wishes.reads else None
        found = None if kept is None else self._cache.committed(kept, request_id, self, config)
        if found is not None and kept is not None:
            self.result, self.age_s = "hit", max(0, self._cache.now_us() - kept.made_us) // _SECOND_US
            self._stores = False
        elif self._stores and self.name not in self._cache.flights:
            self.flight = self._cache.flights[self.name] = Flight()
        self._cache.observer.count(self.result)
        return found

    async def _kept(self) -> KeptAnswer | None:
        for _ in range(_MOST_LEADERS):
            begun, self._begun = self._begun, None
            found = await (begun or self._cache.find(self.name, self.caller.team_id, self.ttl_s))
            flight = self._cache.flights.get(self.name)
            if found is not None or flight is None:
                return found
            landing = await self._landing(flight)
            if landing != "gone":
                return flight.answer if landing == "kept" else None
        return None

    async def _landing(self, flight: Flight) -> Landing | None:
        left_s = self.parsed.deadline.remaining_s(self._cache.clock())
        most_s = self._cache.section.wait_s
        landing = await flight.landed(min(left_s, most_s))
        if landing is None and left_s <= most_s:
            raise self.parsed.deadline.exceeded()
        return landing

    # What is kept of an answer that a model gives.

    def add(self, events: Iterable[Event]) -> None:
        """Take note of further events, as the upstream sent them."""
        if not self._stores:
            return
        some = [event if event.run is None else msgspec.structs.replace(event, run=None) for event in events]
        self._left -= size_of(some)
        if self._left < 0:
            self.give_up()
        else:
            self._events += some

    def give_up(self) -> None:
        """Keep nothing of this answer, and let those that wait for it ask themselves."""
        self._stores, self._events = False, []
        self.land("not_kept")

    def ended(self, attempt: Attempt, settled: Settled) -> None:
        """Keep the answer of a stream that was read to its end, where it is clean and was given by whom the plan named first."""
        if not (self._stores and _is_first_choice(attempt) and is_clean(attempt.routed.request, self._events)):
            self.give_up()
            return
        kept = KeptAnswer(
            made_us=self._cache.now_us(),
            target_id=attempt.deployment.target_id,
            usage=msgspec.structs.replace(settled.usage, flags=()),
            cost_nanousd=settled.cost_nanousd or 0,
            dropped=tuple(attempt.dropped),
            events=tuple(self._events),
        )
        self._stores, self._events = False, []
        if self.flight is not None:
            self.flight.land("kept", kept)
        self._cache.keep(self, kept)

    def land(self, landing: Landing) -> None:
        """End the flight, where it has not ended yet."""
        if self.flight is not None and not self.flight.is_over:
            self.flight.land(landing)
            self._cache.forget(self.name, self.flight)


def _may_be_told_twice(parsed: ParsedRequest) -> bool:
    """Return True for a request that has one answer, which follows from its body alone and has no effect elsewhere."""
    request = parsed.request
    return (
        request.operation in _OPERATIONS
        and request.n == 1
        and request.as_written is None
        and request.upload is None
        and parsed.later is None
        and parsed.to_count is None
    )


def _says_the_same(fields: Fields) -> bool:
    """Return True for a body without a field that makes its answer one of a kind."""
    said = {name for name in _NOT_TWICE & fields.keys() if bytes(fields[name]) not in _NO}
    # Where a response is stored by itself its dialect says so.
    stores = bytes(fields.get("store", b"false")) not in _NO
    return not said and not stores and _SOUND not in bytes(fields.get("modalities", b""))


def _is_settled(request: ChatRequest, fields: Fields) -> bool:
    """Return True for a request whose caller wants no chance in its answer: an explicit temperature of 0. A missing one is the model's."""
    if request.operation == "embeddings":
        return True
    try:
        return float(bytes(fields.get("temperature", b"null"))) == 0.0
    except ValueError:
        return False


def _is_first_choice(attempt: Attempt) -> bool:
    """Return True where the answer is what an equal request should have: a stand-in's is not, nor an experiment's."""
    routed = attempt.routed
    named = {each.target.target_id for each in routed.plan.candidates[:1]}
    if routed.agreement is not None or attempt.candidate.reason == "escalated":
        named.add(attempt.deployment.target_id)
    return (
        attempt.deployment.target_id in named
        and attempt.candidate.reason not in {"spill-over", "degraded"}
        and not routed.downgraded
        and routed.arm != "holdout"
        and routed.before is None
        and routed.facts.affordable_tokens is None
    )
