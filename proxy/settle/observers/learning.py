"""The learning log: stores the rows that a team allows to learn from, without delaying any request.

`finished` only puts values in a bounded queue: the row and its implied verdicts, found while the request is still in
the processor's caches. A loop writes batches; rows that do not fit, or that the database does not take, are dropped and
counted.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from classifier.learning.store import ClassifiedRequest, Verdict
from classifier.prediction import Prediction, Prompt
from cost.times import wall_us
from proxy.dispatch.outcome import RequestOutcome
from proxy.settle.observers.signals import Signals

_log: Final = logging.getLogger("weighbridge.learning")

MAX_PROMPT_CHARS: Final = 16_000
"""The most characters kept of the last message; system part and history are each kept to half of it."""
_MAX_WAITING: Final = 10_000
_MAX_WAITING_CHARS: Final = 32_000_000
"""The most characters of queued texts; beyond it only numbers are kept."""
_BATCH: Final = 500
_MAX_TRIES: Final = 60
"""Tries to write a batch, about one a second: enough for a database restart, without blocking on a batch that always
fails.
"""
_WRITE_TIMEOUT_S: Final = 10.0
_CLOSE_S: Final = 5.0
_FIRST_ERROR_STATUS: Final = 400
_SECRET_BYTES: Final = 32

LearningOf = Callable[[Iterable[str]], Awaitable[Mapping[str, str]]]
"""The function from teams to their present learning settings."""


class _Batch(msgspec.Struct):
    """Rows to be written in one transaction."""

    weighings: list[ClassifiedRequest] = []
    verdicts: list[Verdict] = []
    chars: int = 0
    """Characters of the texts among them."""


class LearningObserver:
    """A receiver of counts of verdicts and lost rows; this base class ignores them."""

    def count_verdict(self, source: str, signal: str) -> None: ...

    def count_learning_dropped(self, requests: int) -> None: ...


class LearningRows(Protocol):
    """The store of rows to learn from; LearningStore is one."""

    async def add(self, weighings: Sequence[ClassifiedRequest], verdicts: Sequence[Verdict]) -> None:
        """Keep both, or neither."""
        ...


class LearningLog:
    """An observer that stores a row and the implicit verdicts of each answered `auto` request, where the team allows
    it.
    """

    def __init__(
        self,
        store: LearningRows,
        learning_of: LearningOf,
        *,
        observer: LearningObserver | None = None,
        now_us: Callable[[], int] = wall_us,
        interval_s: float = 1.0,
        max_waiting: int = _MAX_WAITING,
        max_tries: int = _MAX_TRIES,
    ) -> None:
        self._store = store
        self._learning_of = learning_of
        self._observer = observer or LearningObserver()
        self._now_us = now_us
        self._interval_s = interval_s
        self._max_waiting = max_waiting
        self._max_tries = max_tries
        self._signals = Signals()
        # Digests are made anew with it: what the table holds cannot be looked up in a list of guesses.
        self._keyed = hashlib.blake2b(key=secrets.token_bytes(_SECRET_BYTES), digest_size=16)
        self._filling = _Batch()
        self._full: deque[_Batch] = deque()
        """The batches that wait before it."""
        self._waiting = 0
        """The number of requests in all of them."""
        self._waiting_chars = 0
        self._current_batch: _Batch | None = None
        self._tries = 0
        self._batch_ready = asyncio.Event()
        self._writing = asyncio.Lock()
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the writing loop."""
        self._loop = asyncio.create_task(self._write_for_ever(), name="learning-log")

    async def aclose(self) -> None:
        """Write the queued batches, for a few seconds at most; the rest is dropped and counted."""
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.flush()
        left = self._waiting + (len(self._current_batch.weighings) if self._current_batch is not None else 0)
        if left:
            self._observer.count_learning_dropped(left)
            _log.warning("%d requests were not kept to learn from: the database did not take them in time", left)

    def finished(self, outcome: RequestOutcome) -> None:
        prediction, settings = outcome.prediction, outcome.settings
        if settings is None or settings.learning == "off" or prediction is None or outcome.target_id is None:
            return
        if outcome.error_code is not None or outcome.status >= _FIRST_ERROR_STATUS:
            return
        if self._waiting >= self._max_waiting:
            self._observer.count_learning_dropped(1)
            return
        wanted = settings.learning == "prompts" and self._waiting_chars < _MAX_WAITING_CHARS
        text = kept_text(outcome.prompt) if wanted and outcome.prompt is not None else None
        ended_us = self._now_us() - round(outcome.told_after_s * 1_000_000)
        weighing = self._weighing(outcome, prediction, outcome.target_id, ended_us, text)
        batch = self._filling
        batch.weighings.append(weighing)
        self._waiting += 1
        batch.verdicts += self._signals.verdicts(
            weighing,
            started_us=ended_us - round(outcome.duration_s * 1_000_000),
            turns=outcome.prompt.turns if outcome.prompt is not None else 1,
            weakness=outcome.weakness,
            escalated_from=outcome.escalated_from,
            person=outcome.tier == "interactive",
        )
        if text is not None:
            batch.chars += len(text)
            self._waiting_chars += len(text)
        if len(batch.weighings) >= _BATCH:
            self._full.append(batch)
            self._filling = _Batch()
            self._batch_ready.set()

    def _weighing(
        self, outcome: RequestOutcome, prediction: Prediction, target_id: str, ended_us: int, text: str | None
    ) -> ClassifiedRequest:
        return ClassifiedRequest(
            request_id=outcome.request_id,
            at_us=ended_us,
            organisation_id=outcome.organisation_id,
            team_id=outcome.team_id,
            target_id=target_id,
            artifact=prediction.artifact,
            vector=prediction.vector,
            complexity=prediction.complexity,
            group_id=prediction.group,
            input_tokens=outcome.input_tokens,
            output_tokens=outcome.output_tokens,
            cost_nanousd=outcome.cost_nanousd,
            conversation=self._digest(outcome.conversation),
            request_digest=self._digest(outcome.request_digest),
            prompt=text,
            usual_tokens=prediction.expected_output_tokens,
        )

    def _digest(self, key: Hashable) -> str:
        """Return a digest that stands for a key of this process; empty for None."""
        if key is None:
            return ""
        keyed = self._keyed.copy()
        keyed.update(repr(key).encode())
        return keyed.hexdigest()

    async def _write_for_ever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._batch_ready.wait()
            except TimeoutError:
                is_written = await self.flush()
            else:
                self._batch_ready.clear()
                is_written = await self.flush(full_only=True)
            if not is_written:
                await asyncio.sleep(self._interval_s)

    async def flush(self, *, full_only: bool = False) -> bool:
        """Write the batches queued now, and not later ones, or each answer would be a batch of its own. With
        `full_only` a batch that is not full waits for more. Return False when the database failed and the batch will
        be tried again.
        """
        async with self._writing:
            last = None if full_only else self._filling
            while self._current_batch is not None or self._full or (self._filling is last and self._filling.weighings):
                if self._current_batch is None:
                    self._current_batch = self._next_batch()
                if not await self._write_batch(self._current_batch):
                    return False
                self._current_batch = None
                self._tries = 0
        return True

    def _next_batch(self) -> _Batch:
        if self._full:
            batch = self._full.popleft()
        else:
            batch, self._filling = self._filling, _Batch()
        self._waiting -= len(batch.weighings)
        self._waiting_chars -= batch.chars
        return batch

    async def _write_batch(self, batch: _Batch) -> bool:
        """Write a batch. Return True when it is done with: written, or given up."""
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                allowed = await self._learning_of({weighing.team_id for weighing in batch.weighings})
                batch = _filter_allowed(batch, allowed)
                await self._store.add(batch.weighings, batch.verdicts)
        except Exception as failure:  # noqa: BLE001 - the loop must outlive any one batch
            self._tries += 1
            if self._tries < self._max_tries:
                return False
            # The driver's message may repeat the statement's values; its kind says enough.
            _log.warning("%d requests were not kept to learn from: %s", len(batch.weighings), type(failure).__name__)
            self._observer.count_learning_dropped(len(batch.weighings))
            return True
        for verdict in batch.verdicts:
            self._observer.count_verdict(verdict.source, verdict.signal)
        return True


def _filter_allowed(batch: _Batch, learning: Mapping[str, str]) -> _Batch:
    """Filter a batch by the teams' present settings, which may have changed since the requests began."""
    may = {team_id for team_id, allowed in learning.items() if allowed != "off"}
    weighings = [
        weighing
        if weighing.prompt is None or learning.get(weighing.team_id) == "prompts"
        else msgspec.structs.replace(weighing, prompt=None)
        for weighing in batch.weighings
        if weighing.team_id in may
    ]
    return _Batch(weighings, [verdict for verdict in batch.verdicts if verdict.team_id in may])


def kept_text(prompt: Prompt) -> str:
    """Serialise the prompt as JSON, cut to limits: the start of the message and of the system part, the end of the
    history.
    """
    half = MAX_PROMPT_CHARS // 2
    cut = msgspec.structs.replace(
        prompt, text=prompt.text[:MAX_PROMPT_CHARS], system=prompt.system[:half], history=prompt.history[-half:]
    )
    return msgspec.json.encode(cut).decode()
