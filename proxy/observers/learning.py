"""Keeps what can be learned from a team's traffic, as far as the team allows it, without ever holding up a request.

`finished` only puts a value in a bounded queue. A loop writes batches; what does not fit, and what the
database does not take, is dropped and counted.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import msgspec

from classifier.learning.store import ClassifiedRequest, LearningStore, Verdict
from classifier.prediction import Prediction, Prompt
from cost.times import wall_us
from proxy.observers.signals import ConversationTurn, Signals
from proxy.outcome import RequestOutcome

_log: Final = logging.getLogger("weighbridge.learning")

MAX_PROMPT_CHARS: Final = 16_000
"""Of the last message; the rest of the prompt is kept to half of it for each part."""
_MAX_WAITING: Final = 10_000
_MAX_WAITING_CHARS: Final = 32_000_000
"""Of texts in the queue. Beyond it numbers are still kept."""
_BATCH: Final = 200
_MAX_TRIES: Final = 60
"""About a minute: a database that is restarted loses nothing, and a batch that it will never take stops no other."""
_WRITE_TIMEOUT_S: Final = 10.0
_CLOSE_S: Final = 5.0
_FIRST_ERROR_STATUS: Final = 400
_SECRET_BYTES: Final = 32

LearningOf = Callable[[Iterable[str]], Awaitable[Mapping[str, str]]]
"""What each of these teams allows right now."""


class _Batch(msgspec.Struct, frozen=True):
    """Rows on their way to the database."""

    weighings: list[ClassifiedRequest]
    verdicts: list[Verdict]


class LearningObserver:
    """Is told what was judged and what was lost; this one counts nothing."""

    def count_verdict(self, source: str, signal: str) -> None: ...

    def count_learning_dropped(self, requests: int) -> None: ...


class LearningLog:
    """Observer: a weighing for every answered `auto` request of a team that allows it, and what can be told from it."""

    def __init__(
        self,
        store: LearningStore,
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
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._waiting: deque[ConversationTurn] = deque()
        self._waiting_chars = 0
        self._in_hand: _Batch | None = None
        self._tries = 0
        self._enough = asyncio.Event()
        self._writing = asyncio.Lock()
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write what comes."""
        self._loop = asyncio.create_task(self._write_for_ever(), name="learning-log")

    async def aclose(self) -> None:
        """Write what waits, a few seconds at most; the rest is dropped and counted."""
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.flush()
        left = len(self._waiting) + (len(self._in_hand.weighings) if self._in_hand is not None else 0)
        if left:
            self._observer.count_learning_dropped(left)
            _log.warning("%d requests were not kept to learn from: the database did not take them in time", left)

    def finished(self, outcome: RequestOutcome) -> None:
        prediction, settings = outcome.prediction, outcome.settings
        if settings is None or settings.learning == "off" or prediction is None or outcome.target_id is None:
            return
        if outcome.error_code is not None or outcome.status >= _FIRST_ERROR_STATUS:
            return
        if len(self._waiting) >= self._max_waiting:
            self._observer.count_learning_dropped(1)
            return
        wanted = settings.learning == "prompts" and self._waiting_chars < _MAX_WAITING_CHARS
        text = kept_text(outcome.prompt) if wanted and outcome.prompt is not None else None
        turn = self._turn(outcome, prediction, outcome.target_id, text)
        self._waiting.append(turn)
        self._waiting_chars += len(text or "")
        if len(self._waiting) >= _BATCH:
            self._enough.set()

    def _turn(
        self, outcome: RequestOutcome, prediction: Prediction, target_id: str, text: str | None
    ) -> ConversationTurn:
        now_us = self._now_us()
        weighing = ClassifiedRequest(
            request_id=outcome.request_id,
            at_us=now_us,
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
            conversation=self._digest(repr(outcome.conversation).encode()) if outcome.conversation is not None else "",
            request_digest=self._digest(outcome.request_digest) if outcome.request_digest else "",
            prompt=text,
        )
        return ConversationTurn(
            weighing=weighing,
            started_us=now_us - round(outcome.duration_s * 1_000_000),
            turns=outcome.prompt.turns if outcome.prompt is not None else 1,
            weakness=outcome.weakness,
            escalated_from=outcome.escalated_from,
            person=outcome.tier == "interactive",
        )

    def _digest(self, value: bytes) -> str:
        return hashlib.blake2b(value, key=self._secret, digest_size=16).hexdigest()

    async def _write_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._enough.wait()
            self._enough.clear()
            if not await self.flush():
                await asyncio.sleep(self._interval_s)

    async def flush(self) -> bool:
        """Write all that waits now; False when the database did not take it, and it will be tried again."""
        async with self._writing:
            while self._in_hand is not None or self._waiting:
                if self._in_hand is None:
                    self._in_hand = self._next_batch()
                if not await self._written(self._in_hand):
                    return False
                self._in_hand = None
                self._tries = 0
        return True

    def _next_batch(self) -> _Batch:
        turns = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
        self._waiting_chars -= sum(len(turn.weighing.prompt or "") for turn in turns)
        verdicts = [verdict for turn in turns for verdict in self._signals.verdicts(turn)]
        return _Batch([turn.weighing for turn in turns], verdicts)

    async def _written(self, batch: _Batch) -> bool:
        """True when the batch is done with: written, or given up."""
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                allowed = await self._learning_of({weighing.team_id for weighing in batch.weighings})
                batch = _allowed(batch, allowed)
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


def _allowed(batch: _Batch, learning: Mapping[str, str]) -> _Batch:
    """A team may have changed its mind since the request began: what it allows now is what counts."""
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
    """The prompt as JSON, cut to a limit: the beginning of what was asked and of the system's part, the end of the talk."""
    half = MAX_PROMPT_CHARS // 2
    cut = msgspec.structs.replace(
        prompt, text=prompt.text[:MAX_PROMPT_CHARS], system=prompt.system[:half], history=prompt.history[-half:]
    )
    return msgspec.json.encode(cut).decode()
