"""Measurements in the database: ordered by anybody, worked on by one process at a time, gone on with after a crash."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Row, bindparam, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from classifier.measuring.tables import CalibrationAnswerRow, MeasurementRow

State = Literal["running", "stopped", "finished"]
"""`running` waits for a process or is worked on by one; `stopped` may go on; `finished` has an answer to every question."""
AnswerOutcome = Literal["asked", "right", "wrong", "unparsed", "refused", "failed"]
"""`asked` has no answer yet, `failed` never got one; neither is scored. Every other one but `right` counts as wrong."""
SCORED: Final = frozenset({"right", "wrong", "unparsed", "refused"})
MAX_LISTED: Final = 200
HELD_S: Final = 30.0
"""Seconds without a heartbeat after which a holder is taken for dead, and another process may go on."""
SAID_CHARS: Final = 300


class MeasurementError(Exception):
    """A measurement cannot be made, stopped or accepted. The message says why."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An order to measure, with its bounds."""

    target_id: str
    questions: int = 200
    budget_nanousd: int = 1_000_000_000
    at_once: int = 4
    max_tokens: int = 2_048


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement's order and state."""

    measurement_id: str
    target_id: str
    state: State
    reason: str
    questions: int
    budget_nanousd: int
    at_once: int
    max_tokens: int
    ordered_us: int
    ordered_by: str
    holder: str
    touched_us: int
    result: str | None
    tuning_version: int | None


class CalibrationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One question's answer. `cost_nanousd` is the most that it may cost until it is known."""

    measurement_id: str
    question_id: str
    outcome: AnswerOutcome = "asked"
    said: str = ""
    cost_nanousd: int
    ttft_us: int | None = None
    tpot_us: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    estimated_tokens: int = 0
    at_us: int = 0


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a measurement."""

    scored: int
    right: int
    failed: int
    spent_nanousd: int
    first_us: int | None
    last_us: int | None


def _now_us() -> int:
    return time.time_ns() // 1_000


class MeasurementStore:
    """The only writer of the tables `measurement` and `calibration_answer`."""

    def __init__(self, engine: AsyncEngine, *, now_us: Callable[[], int] = _now_us) -> None:
        self._engine = engine
        self._now_us = now_us
        self._insert: Callable[..., Any] = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def order(self, order: Order, ordered_by: str, *, anew: bool = False) -> tuple[Measurement, bool]:
        """Order a measurement, or go on with the target's one that stopped, within the order's new bounds; `anew`
        leaves that one alone.

        The second value is True for one that goes on. Raises MeasurementError while one of the target runs.
        """
        last = await self.last_of(order.target_id)
        if last is not None and last.state == "running":
            raise MeasurementError(f"{order.target_id} is being measured already ({last.measurement_id})")
        bounds = {name: value for name, value in msgspec.structs.asdict(order).items() if name != "target_id"}
        if last is not None and last.state == "stopped" and not anew:
            await self._update(last.measurement_id, **bounds, state="running", reason="", holder="", touched_us=0)
            return await self.find(last.measurement_id), True
        values = {
            "measurement_id": f"mea_{secrets.token_hex(8)}",
            **msgspec.structs.asdict(order),
            "state": "running",
            "reason": "",
            "ordered_us": self._now_us(),
            "ordered_by": ordered_by[:200],
            "holder": "",
            "touched_us": 0,
        }
        async with self._engine.begin() as connection:
            await connection.execute(insert(MeasurementRow).values(values))
        return await self.find(str(values["measurement_id"])), False

    async def find(self, measurement_id: str) -> Measurement:
        """Return one measurement. Raises MeasurementError."""
        found = await self._select(col(MeasurementRow.measurement_id) == measurement_id)
        if not found:
            raise MeasurementError(f"there is no measurement {measurement_id[:80]!r}")
        return found[0]

    async def last_of(self, target_id: str) -> Measurement | None:
        """Return a target's newest measurement."""
        found = await self._select(col(MeasurementRow.target_id) == target_id)
        return found[0] if found else None

    async def newest(self) -> list[Measurement]:
        """Return the measurements, the newest first."""
        return await self._select()

    async def claim(self, holder: str) -> Measurement | None:
        """Take a running measurement that nobody works on; None where there is none."""
        stale = {"stale_us": self._now_us() - int(HELD_S * 1_000_000)}
        async with self._engine.connect() as connection:
            found = (await connection.scalars(_FREE, stale)).all()
        for each in found:
            taken = update(MeasurementRow).where(col(MeasurementRow.measurement_id) == each, _IS_FREE)
            async with self._engine.begin() as connection:
                mine = await connection.execute(taken.values(holder=holder, touched_us=self._now_us()), stale)
            if mine.rowcount:
                return await self.find(each)
        return None

    async def touch(self, measurement_id: str, holder: str) -> bool:
        """Say that the holder still works on it. False once it was stopped or taken over."""
        still = update(MeasurementRow).where(
            col(MeasurementRow.measurement_id) == measurement_id,
            col(MeasurementRow.holder) == holder,
            col(MeasurementRow.state) == "running",
        )
        async with self._engine.begin() as connection:
            return bool((await connection.execute(still.values(touched_us=self._now_us()))).rowcount)

    async def release(self, measurement_id: str, holder: str) -> None:
        """Give the measurement back while it runs, for another process or a later start."""
        mine = update(MeasurementRow).where(
            col(MeasurementRow.measurement_id) == measurement_id, col(MeasurementRow.holder) == holder
        )
        async with self._engine.begin() as connection:
            await connection.execute(mine.values(touched_us=0))

    async def end(self, measurement_id: str, state: State, reason: str, result: bytes | None) -> None:
        """End the measurement and store its result; an order to stop that came meanwhile keeps its word."""
        before = await self.find(measurement_id)
        told = before.reason if before.state == "stopped" else reason
        kept = None if result is None else result.decode()
        await self._update(measurement_id, state=state, reason=told, result=kept, touched_us=0)

    async def stop(self, measurement_id: str, reason: str) -> bool:
        """Stop a running measurement: its worker follows within seconds. False where it had ended."""
        running = update(MeasurementRow).where(
            col(MeasurementRow.measurement_id) == measurement_id, col(MeasurementRow.state) == "running"
        )
        async with self._engine.begin() as connection:
            return bool((await connection.execute(running.values(state="stopped", reason=reason))).rowcount)

    async def accepted(self, measurement_id: str, version: int) -> None:
        """Note the tuning that the measurement became."""
        await self._update(measurement_id, tuning_version=version)

    async def put(self, answer: CalibrationAnswer) -> None:
        """Write a question's answer, over an earlier one."""
        values = {**msgspec.structs.asdict(answer), "said": answer.said[:SAID_CHARS], "at_us": self._now_us()}
        said = self._insert(CalibrationAnswerRow).values(values)
        said = said.on_conflict_do_update(
            index_elements=_ANSWER_KEY, set_={name: value for name, value in values.items() if name not in _ANSWER_KEY}
        )
        async with self._engine.begin() as connection:
            await connection.execute(said)

    async def answers(self, measurement_id: str) -> list[CalibrationAnswer]:
        """Return a measurement's answers, in the order in which they were given."""
        query = select(*(getattr(CalibrationAnswerRow, name) for name in CalibrationAnswer.__struct_fields__))
        query = query.where(col(CalibrationAnswerRow.measurement_id) == measurement_id)
        query = query.order_by(col(CalibrationAnswerRow.at_us), col(CalibrationAnswerRow.question_id))
        async with self._engine.connect() as connection:
            return [CalibrationAnswer(**_fields(row)) for row in await connection.execute(query)]

    async def tally(self, measurement_id: str) -> Tally:
        """Return the progress of a measurement, without its answers."""
        outcome = col(CalibrationAnswerRow.outcome)
        query = select(
            outcome,
            func.count(),
            func.sum(col(CalibrationAnswerRow.cost_nanousd)),
            func.min(col(CalibrationAnswerRow.at_us)),
            func.max(col(CalibrationAnswerRow.at_us)),
        )
        query = query.where(col(CalibrationAnswerRow.measurement_id) == measurement_id).group_by(outcome)
        async with self._engine.connect() as connection:
            rows: list[tuple[Any, ...]] = [tuple(row) for row in await connection.execute(query)]
        counts = {name: count for name, count, *_ in rows}
        return Tally(
            scored=sum(count for name, count in counts.items() if name in SCORED),
            right=counts.get("right", 0),
            failed=counts.get("failed", 0),
            spent_nanousd=sum(int(cost) for _, _, cost, _, _ in rows),
            first_us=min((first for *_, first, _ in rows), default=None),
            last_us=max((last for *_, last in rows), default=None),
        )

    async def _select(self, *conditions: Any) -> list[Measurement]:
        query = select(*(getattr(MeasurementRow, name) for name in Measurement.__struct_fields__))
        query = query.where(*conditions).order_by(
            col(MeasurementRow.ordered_us).desc(), col(MeasurementRow.measurement_id)
        )
        async with self._engine.connect() as connection:
            return [Measurement(**_fields(row)) for row in await connection.execute(query.limit(MAX_LISTED))]

    async def _update(self, measurement_id: str, **values: Any) -> None:
        changed = update(MeasurementRow).where(col(MeasurementRow.measurement_id) == measurement_id)
        async with self._engine.begin() as connection:
            await connection.execute(changed.values(**values))


_IS_FREE: Final = (col(MeasurementRow.state) == "running") & (col(MeasurementRow.touched_us) < bindparam("stale_us"))
_FREE: Final = (
    select(col(MeasurementRow.measurement_id))
    .where(_IS_FREE)
    .order_by(col(MeasurementRow.ordered_us), col(MeasurementRow.measurement_id).desc())
    .limit(MAX_LISTED)
)
"""Made once: it is asked every few seconds."""
_ANSWER_KEY: Final[Sequence[str]] = ("measurement_id", "question_id")


def _fields(row: Row[*tuple[Any, ...]]) -> Mapping[str, Any]:
    return {str(name): value for name, value in row._mapping.items()}  # noqa: SLF001
