"""Measuring a target: asks it the calibration set through the pipeline's own dispatcher, within a budget, and scores
the answers.

A measurement is ordered in the database, by a command or on a page. Every gateway process looks for one that no process
works on; the one that takes it renews its claim every few seconds, and when that stops another process, or a later
start, goes on from there. Each question is recorded with the most that it may cost before it is asked, so a crash never
loses count.
"""

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy.exc import SQLAlchemyError

from accounts.caller import Caller
from accounts.errors import UnknownTeam
from accounts.store import AccountStore, TeamRecord
from classifier.manifest import Manifest
from classifier.measuring.ability_row import Floats
from classifier.measuring.checking import Answer, Call, check
from classifier.measuring.questions import CalibrationSet, Question
from classifier.measuring.result import ReferenceModels, Result, result_of
from classifier.measuring.store import HELD_S, SCORED, CalibrationAnswer, Measurement, MeasurementStore
from classifier.prediction import Classifier, Prediction, Prompt
from classifier.sample import Sample
from classifier.tuning import Ability
from cost.errors import BudgetExceeded, BudgetsUnavailable, LedgerUnavailable, UnpricedUnderBudget
from cost.prices import usd
from providers.catalog import Catalog
from providers.config import RetryConfig, TimeoutsConfig
from providers.errors import RequestRejected, UpstreamError
from providers.target import NOT_CHAT, Target
from providers.wire import ChatRequest, Event
from proxy.dispatch.attempt import Attempt
from proxy.dispatch.dispatcher import Dispatcher
from proxy.errors import Refused
from proxy.judge.refusals import reads_as_refusal
from proxy.judge.weak_answer import Call as WireCall
from proxy.learning.asking import read_answer, routed_to
from proxy.parse.chat_request import parse_chat
from proxy.parse.headers import RequestHeaders
from proxy.plan.route_plan import Fleet
from settings.decoding import DECODE_ERRORS

_log: Final = logging.getLogger("weighbridge.measuring")

TEAM: Final = "calibration"
"""The team that measurements are booked to."""
TEAM_NAME: Final = "Calibration of targets"
ALIAS: Final = "calibration"
ANSWER_S: Final = 300.0
"""The longest that one answer may take."""
_TOUCH_S: Final = 3.0
_FAILURES_IN_A_ROW: Final = 5
_CONTEXT_SHARE: Final = 2
"""The divisor of a target's context that gives the most tokens kept for the answer."""
_FILTERED: Final = "content_filter"


class MeasuringRules(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration that a reload may change, read anew for every question."""

    catalog: Catalog
    fleet: Fleet
    timeouts: TimeoutsConfig
    retry: RetryConfig
    pools: Mapping[str, str] = {}


class Stopped(Exception):
    """The end of a measurement that cannot go on, in words for the operator."""


class _Spending:
    """The money that a measurement has spent and may still have to pay. No question is begun that might not fit."""

    def __init__(self, budget: int, spent: int) -> None:
        self.budget = budget
        self.spent = spent
        self.held = 0
        self._changed = asyncio.Condition()

    async def hold(self, bound: int) -> None:
        """Hold the most that a question may cost, once it fits. Raises Stopped when it will not."""
        async with self._changed:
            # Running questions may cost less than was held for them, and make room.
            await self._changed.wait_for(lambda: self.held == 0 or self._fits(bound))
            if not self._fits(bound):
                raise Stopped(
                    f"the budget does not hold the next question: ${usd(self.spent):.4f} of ${usd(self.budget):.4f} are "
                    f"spent, and it may cost up to ${usd(bound):.4f}"
                )
            self.held += bound

    async def pay(self, bound: int, cost: int) -> None:
        async with self._changed:
            self.held -= bound
            self.spent += cost
            self._changed.notify_all()

    def _fits(self, bound: int) -> bool:
        return self.spent + self.held + bound <= self.budget


class Measuring:
    """The worker on ordered measurements, one at a time."""

    def __init__(
        self,
        *,
        store: MeasurementStore,
        accounts: AccountStore,
        operator: str,
        rules: Callable[[], MeasuringRules],
        dispatcher: Dispatcher,
        scored: Callable[[Measurement, Sequence[CalibrationAnswer]], Result],
        calibration: Callable[[], CalibrationSet],
        holder: str,
    ) -> None:
        """`scored` makes a result of answers; it takes a trained classifier, and raises Stopped without one."""
        self._store = store
        self._accounts = accounts
        self._operator = operator
        self._rules = rules
        self._dispatcher = dispatcher
        self._scored = scored
        self._calibration = calibration
        self._holder = holder

    async def step(self) -> bool:
        """Work on one measurement until it ends. Return False where there is none to work on."""
        found = await self._store.claim(self._holder)
        if found is None:
            return False
        _log.info("measuring %s with %d questions", found.target_id, found.questions)
        try:
            await self._work(found)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await asyncio.shield(self._store.release(found.measurement_id, self._holder))
            raise
        return True

    async def _work(self, measurement: Measurement) -> None:
        run = None
        try:
            caller = await self._caller()
            run = await self._run_of(measurement, caller)
            async with self._touching(measurement.measurement_id) as lost:
                await run.ask_all(lost)
            failed = (await self._store.tally(measurement.measurement_id)).failed
            reason = f"{failed} questions got no answer; they are asked again when it goes on" if failed else ""
        except Stopped as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - the operator has to learn of it, and the next one must not suffer
            _log.exception("measuring %s failed", measurement.target_id)
            reason = f"it failed with {type(error).__name__}"
        now = await self._store.find(measurement.measurement_id)
        if now.holder != self._holder:
            return
        result = await self._result(measurement)
        if isinstance(result, str):
            reason, result = reason or result, None
        is_whole = not reason and now.state == "running"
        await self._store.end(
            measurement.measurement_id,
            "finished" if is_whole else "stopped",
            reason,
            None if result is None else msgspec.json.encode(result),
        )

    async def _result(self, measurement: Measurement) -> Result | str | None:
        answers = await self._store.answers(measurement.measurement_id)
        try:
            return await asyncio.to_thread(self._scored, measurement, answers)
        except Stopped as error:
            return str(error)

    async def _caller(self) -> Caller:
        """Return the caller of measurements' own team. Raises Stopped."""
        try:
            team: TeamRecord = await self._accounts.team_of(self._operator, TEAM)
        except UnknownTeam as error:
            raise Stopped(f"there is no team {TEAM!r} to book it to; ordering a measurement makes one") from error
        return Caller(
            key_id=ALIAS,
            key_name=ALIAS,
            team_id=team.team_id,
            organisation_id=team.organisation_id,
            allowed_models=team.allowed_models,
            settings=team.settings,
        )

    async def _run_of(self, measurement: Measurement, caller: Caller) -> "_Run":
        before = {each.question_id: each for each in await self._store.answers(measurement.measurement_id)}
        return _Run(measurement, caller, before, self._rules, self._dispatcher, self._store, self._calibration())

    @contextlib.asynccontextmanager
    async def _touching(self, measurement_id: str) -> AsyncIterator[asyncio.Event]:
        """Renew the claim every few seconds; the event is set once the measurement was stopped or taken over."""
        lost = asyncio.Event()

        async def touch() -> None:
            loop = asyncio.get_running_loop()
            said_at = loop.time()
            while not lost.is_set():
                await asyncio.sleep(_TOUCH_S)
                try:
                    async with asyncio.timeout(_TOUCH_S):
                        is_mine = await self._store.touch(measurement_id, self._holder)
                    said_at = loop.time()
                except (SQLAlchemyError, OSError, TimeoutError):
                    # Before another process may take it for dead.
                    is_mine = loop.time() - said_at < HELD_S / 2
                if not is_mine:
                    lost.set()

        task = asyncio.create_task(touch(), name="measurement-touch")
        try:
            yield lost
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


class _Run:
    """A measurement while a process works on it."""

    def __init__(
        self,
        measurement: Measurement,
        caller: Caller,
        before: Mapping[str, CalibrationAnswer],
        rules: Callable[[], MeasuringRules],
        dispatcher: Dispatcher,
        store: MeasurementStore,
        calibration: CalibrationSet,
    ) -> None:
        self._measurement = measurement
        self._caller = caller
        self._before = before
        self._rules = rules
        self._dispatcher = dispatcher
        self._store = store
        self._failures = 0
        self._over = False
        self._spending = _Spending(measurement.budget_nanousd, sum(each.cost_nanousd for each in before.values()))
        target = self._target()
        done = {each.question_id for each in before.values() if each.outcome in SCORED}
        # A target without tools is asked what it is made for.
        wanted = [each for each in calibration.questions if each.kind != "tool" or "tools" in target.capabilities]
        self._left = [each for each in wanted[: measurement.questions] if each.question_id not in done]

    def _target(self) -> Target:
        target = self._rules().catalog.targets.get(self._measurement.target_id)
        if target is None:
            raise Stopped(f"there is no target {self._measurement.target_id!r} in the configuration")
        if instead := target.capabilities & NOT_CHAT:
            raise Stopped(f"{target.target_id} makes {min(instead)}, and answers no questions")
        return target

    async def ask_all(self, lost: asyncio.Event) -> None:
        """Ask the questions that are left, some at once. Questions under way when one of them stops are still
        answered. Raises Stopped.
        """
        waiting = iter(self._left)
        workers = [asyncio.create_task(self._work(waiting)) for _ in range(self._measurement.at_once)]
        watching = asyncio.create_task(lost.wait())
        try:
            pending: set[asyncio.Task[Any]] = set(workers)
            while pending:
                done, pending = await asyncio.wait({*pending, watching}, return_when=asyncio.FIRST_COMPLETED)
                pending.discard(watching)
                if watching in done:
                    raise Stopped("it was stopped")
        finally:
            for each in (*workers, watching):
                each.cancel()
            await asyncio.gather(*workers, watching, return_exceptions=True)
        for worker in workers:
            worker.result()

    async def _work(self, waiting: Iterator[Question]) -> None:
        for question in waiting:
            if self._over:
                return
            try:
                await self._ask(question)
            except BaseException:
                self._over = True
                raise

    async def _ask(self, question: Question) -> None:
        rules = self._rules()
        target = self._target()
        request = request_for(question, min(self._measurement.max_tokens, most_tokens(target)))
        paid = self._before[question.question_id].cost_nanousd if question.question_id in self._before else 0
        try:
            routed = routed_to(
                rules,
                self._caller,
                target.target_id,
                request,
                # Another one each time it is asked: the ledger takes a request's id once.
                request_id=f"{self._measurement.measurement_id}-{question.question_id}-{secrets.token_hex(4)}",
                alias=ALIAS,
                tier="interactive" if "interactive" in target.tiers else "batch",
                retry=rules.retry,
            )
        except Refused as error:
            await self._failed(self._row(question, paid, 0), error.message)
            return
        bound = routed.plan.candidates[0].bound_nanousd
        if bound is None:
            raise Stopped(f"{target.target_id} has no price, so nobody can say whether it stays within the budget")
        most = bound * rules.retry.attempts
        row = self._row(question, paid + most, routed.facts.input_tokens)
        await self._spending.hold(most)
        cost = most
        try:
            await self._store.put(row)
            attempts: list[Attempt] = []
            try:
                async with asyncio.timeout(ANSWER_S):
                    events = await read_answer(self._dispatcher, routed, attempts)
            finally:
                cost = sum(_cost_of(attempt, bound) for attempt in attempts)
            self._failures = 0
            await self._store.put(
                _scored_row(msgspec.structs.replace(row, cost_nanousd=paid + cost), question, events, attempts)
            )
        except (UpstreamError, Refused, TimeoutError) as error:
            await self._failed(msgspec.structs.replace(row, cost_nanousd=paid + cost), told(error), error)
        except (BudgetExceeded, UnpricedUnderBudget) as error:
            await self._store.put(msgspec.structs.replace(row, cost_nanousd=paid + cost, outcome="failed"))
            raise Stopped(f"a budget of the team {TEAM} does not allow it: {error}") from error
        except (LedgerUnavailable, BudgetsUnavailable) as error:
            raise Stopped("the books cannot be written to now; the same order goes on later") from error
        finally:
            await self._spending.pay(most, cost)

    def _row(self, question: Question, cost: int, estimated_tokens: int) -> CalibrationAnswer:
        return CalibrationAnswer(
            measurement_id=self._measurement.measurement_id,
            question_id=question.question_id,
            cost_nanousd=cost,
            estimated_tokens=estimated_tokens,
        )

    async def _failed(self, row: CalibrationAnswer, why: str, error: BaseException | None = None) -> None:
        if isinstance(error, RequestRejected) and error.code is not None and _FILTERED in error.code:
            await self._store.put(msgspec.structs.replace(row, outcome="refused", said=why))
            return
        await self._store.put(msgspec.structs.replace(row, outcome="failed", said=why))
        self._failures += 1
        if self._failures >= _FAILURES_IN_A_ROW:
            what = "refuses the requests" if isinstance(error, RequestRejected) else "does not answer"
            raise Stopped(f"{self._measurement.target_id} {what}, {self._failures} times in a row: {why}")


def told(error: BaseException) -> str:
    """Return an error in words that name no secret."""
    if isinstance(error, UpstreamError):
        return error.public
    if isinstance(error, Refused):
        return error.message
    return f"no whole answer within {ANSWER_S:.0f} s"


def most_tokens(target: Target) -> int:
    """Return the most tokens of an answer that leave room for a question."""
    return max(1, min(target.max_output_tokens, target.max_context_tokens // _CONTEXT_SHARE))


def request_for(question: Question, max_tokens: int) -> ChatRequest:
    """Return the request that asks a question, as a caller would send it: streamed, so that the first token can be seen."""
    body: dict[str, Any] = {
        "model": ALIAS,
        "messages": [
            {"role": "system", "content": question.instructions},
            {"role": "user", "content": question.text},
        ],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if question.tools:
        body["tools"] = question.tools
    return parse_chat(json.dumps(body).encode(), RequestHeaders())


def _cost_of(attempt: Attempt, bound: int) -> int:
    """Return the cost of an attempt; one that could not be priced after all may have cost its maximum."""
    if attempt.settled is None:
        return bound
    return bound if attempt.settled.cost_nanousd is None else attempt.settled.cost_nanousd


def _scored_row(
    row: CalibrationAnswer, question: Question, events: Sequence[Event], attempts: Sequence[Attempt]
) -> CalibrationAnswer:
    heard = answer_of([event.payload for event in events])
    checked = check(question, heard.answer)
    outcome = checked.outcome
    if outcome == "unparsed" and (heard.refused or reads_as_refusal(heard.answer.text)):
        said, kind = heard.answer.text[-200:] or "refused", "refused"
    else:
        said, kind = checked.read or heard.answer.text[-200:].strip() or "(nothing)", outcome
        if kind == "unparsed" and heard.is_cut:
            said = f"(cut) {said}"
    last = attempts[-1]
    usage = last.settled.usage if last.settled is not None else None
    wire = last.wire_usage is not None and usage is not None
    first, end = last.first_token_at, last.last_token_at
    tokens = usage.output_tokens if usage is not None else 0
    return msgspec.structs.replace(
        row,
        outcome=kind,
        said=said,
        ttft_us=None if first is None else round((first - last.started_at) * 1_000_000),
        tpot_us=round((end - first) / (tokens - 1) * 1_000_000)
        if first is not None and end is not None and tokens > 1
        else None,
        input_tokens=usage.input_tokens if wire and usage is not None else None,
        output_tokens=usage.output_tokens if wire and usage is not None else None,
    )


class _Delta(msgspec.Struct):
    content: Any = None
    refusal: Any = None
    tool_calls: list[WireCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Any = None


class _Payload(msgspec.Struct):
    choices: list[_Choice] | None = None


_decode = msgspec.json.Decoder(_Payload).decode


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and its ending."""

    answer: Answer
    refused: bool
    is_cut: bool


def answer_of(payloads: Sequence[bytes]) -> Heard:
    """Put an answer together from its events; malformed parts are left out."""
    texts: list[str] = []
    calls: dict[int, tuple[list[str], list[str]]] = {}
    refused = is_cut = False
    for payload in payloads:
        try:
            choices = _decode(payload).choices or ()
        except DECODE_ERRORS:
            continue
        for choice in choices:
            refused = refused or choice.finish_reason == _FILTERED
            is_cut = is_cut or choice.finish_reason == "length"
            part = choice.delta or choice.message
            if part is None:
                continue
            if isinstance(part.content, str):
                texts.append(part.content)
            if isinstance(part.refusal, str) and part.refusal:
                refused = True
                texts.append(part.refusal)
            _take_calls(part.tool_calls or (), calls)
    found = tuple(Call("".join(names), "".join(arguments)) for _, (names, arguments) in sorted(calls.items()))
    return Heard(answer=Answer("".join(texts), found), refused=refused, is_cut=is_cut)


def _take_calls(pieces: Sequence[WireCall], calls: dict[int, tuple[list[str], list[str]]]) -> None:
    for place, piece in enumerate(pieces):
        names, arguments = calls.setdefault(piece.index if isinstance(piece.index, int) else place, ([], []))
        if piece.function is not None:
            if isinstance(piece.function.name, str):
                names.append(piece.function.name)
            if isinstance(piece.function.arguments, str):
                arguments.append(piece.function.arguments)


# The inputs of a result.


@runtime_checkable
class TrainedClassifier(Protocol):
    """A trained classifier that results can be made with; the heuristic is not one."""

    manifest: Manifest

    @property
    def artifact(self) -> str: ...
    @property
    def loads(self) -> int: ...
    @property
    def abilities(self) -> Mapping[str, Ability]: ...
    @property
    def measured(self) -> frozenset[str]: ...

    def classify(self, prompt: Prompt, team_id: str = "") -> Prediction: ...
    def sample(self) -> Sample: ...
    def adequacies(self, vectors: NDArray[np.float32], target_ids: Sequence[str]) -> Floats: ...


def scorer(
    classifier: Classifier, calibration: Callable[[], CalibrationSet]
) -> Callable[[Measurement, Sequence[CalibrationAnswer]], Result]:
    """Return the function that makes results with this classifier; without a trained one it raises Stopped."""

    def scored(measurement: Measurement, answers: Sequence[CalibrationAnswer]) -> Result:
        if not isinstance(classifier, TrainedClassifier):
            raise Stopped("no trained model is in use, so there are no loads to fit a row to")
        return result_of(
            measurement, answers, calibration(), classifier, reference_models_of(classifier, measurement.target_id)
        )

    return scored


def reference_models_of(classifier: TrainedClassifier, target_id: str) -> ReferenceModels:
    """Return the rows to compare the target's row with: the known models, and its row now, on the classifier's own mix of prompts."""
    sample = classifier.sample()
    before = None
    if target_id in classifier.measured:
        chances = classifier.adequacies(sample.vectors, [target_id])[:, 0]
        before = float(chances @ sample.weights / sample.weights.sum())
    shipped = classifier.abilities.get(target_id)
    return ReferenceModels(
        # Models placed by published scores are no reference for a measurement.
        known={name: row for name, row in classifier.manifest.abilities.items() if row.basis == "outcomes"},
        before=before,
        log_length=0.0 if shipped is None else shipped.log_length,
        loads=sample.vectors[:, : classifier.loads].astype(np.float64),
        weights=sample.weights,
    )
