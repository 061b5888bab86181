"""Classified requests, verdicts and tunings in the database. Every value is a bound parameter.

What belongs to a team is read by its team's id, in the query itself.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import Delete, Row, case, delete, func, insert, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from classifier.learning.lengths import MOST, AnswerLength
from classifier.learning.tables import TuningRow, VerdictRow, WeighingRow
from classifier.tuning import Tuning

VerdictSource = Literal["feedback", "implicit", "shadow"]

MAX_OUTCOMES: Final = 100_000
MAX_LISTED_TUNINGS: Final = 1_000
_DELETE_BATCH: Final = 1_000
# Between two batches of a clean-up, whoever waits to write has its turn.
_DELETE_PAUSE_S: Final = 0.005
_VERSION_TRIES: Final = 5


class LearningError(Exception):
    """The root of this folder's errors."""


class UnknownTuning(LearningError):
    """No tuning has this version."""


class UnreadableTuning(LearningError):
    """A stored tuning cannot be decoded by this version of the program."""


class ClassifiedRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """An answered `auto` request. `target_id` answered it; the digests are hexadecimal."""

    request_id: str
    at_us: int
    organisation_id: str
    team_id: str
    target_id: str
    artifact: str
    vector: bytes
    complexity: float
    group_id: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nanousd: int | None = None
    conversation: str = ""
    request_digest: str = ""
    prompt: str | None = None
    """JSON of a `Prompt`, cut to a limit; None unless the team's learning is `prompts`."""
    usual_tokens: int = 0
    """The answer's expected length before any target was chosen."""

    def __repr__(self) -> str:
        # Prompts that a team allowed us to keep must not reach logs.
        return f"Weighing({self.team_id!r}, {self.request_id!r}, target_id={self.target_id!r})"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One target's adequacy on one request, in [0, 1]; `weight` is relative to a person's verdict, which has 1."""

    request_id: str
    at_us: int
    organisation_id: str
    team_id: str
    target_id: str
    source: VerdictSource
    signal: str
    adequate: float
    weight: float = 1.0
    better_target: str | None = None


class JudgedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with the vector of its prompt; `target_id` is the target judged."""

    request_id: str
    team_id: str
    target_id: str
    vector: bytes
    adequate: float
    weight: float
    source: str
    signal: str
    better_target: str | None
    at_us: int
    group_id: str | None


class VerdictCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of verdicts of one kind, and their mean adequacy."""

    team_id: str
    target_id: str
    source: str
    signal: str
    verdicts: int
    adequate: float


class TuningRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A tuning's version as lists show it, without its body."""

    version: int
    at_us: int
    artifact: str
    metrics: dict[str, Any]
    note: str
    active: bool


def _now_us() -> int:
    return time.time_ns() // 1_000


class LearningStore:
    """The only writer of the tables `weighing`, `verdict` and `tuning`."""

    def __init__(self, engine: AsyncEngine, *, now_us: Callable[[], int] = _now_us) -> None:
        self._engine = engine
        self._now_us = now_us
        self._insert: Callable[..., Any] = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def add_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Store verdicts; a new one replaces one of the same source and signal on the same answer."""
        await self.add((), verdicts)

    async def add(self, weighings: Sequence[ClassifiedRequest], verdicts: Sequence[Verdict]) -> None:
        """Store requests and verdicts in one transaction."""
        if not weighings and not verdicts:
            return
        async with self._engine.begin() as connection:
            if weighings:
                await self._add_requests(connection, weighings)
            if verdicts:
                said = self._insert(VerdictRow)
                said = said.on_conflict_do_update(
                    index_elements=_VERDICT_KEY, set_={name: said.excluded[name] for name in _VERDICT_VALUES}
                )
                await connection.execute(said, _rows(verdicts, _VERDICT_KEY))

    async def _add_requests(self, connection: AsyncConnection, weighings: Sequence[ClassifiedRequest]) -> None:
        if self._engine.dialect.name == "sqlite":
            # Nearly every request has a row, so the statement and its rows are made for the driver as they are.
            await connection.exec_driver_sql(_INSERT_SQLITE, [*map(msgspec.structs.astuple, weighings)])
            return
        added = self._insert(WeighingRow).on_conflict_do_nothing()
        await connection.execute(added, _rows(weighings, _WEIGHING_KEY))

    async def find_weighing(self, team_id: str, request_id: str) -> ClassifiedRequest | None:
        """Return one request of this team; None for another team's request too."""
        query = _WEIGHINGS.where(col(WeighingRow.team_id) == team_id, col(WeighingRow.request_id) == request_id)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else ClassifiedRequest(**_fields(row))

    async def newest_prompts(self, organisation_id: str, team_id: str, most: int) -> list[tuple[str, str]]:
        """Return a team's newest requests whose prompts are kept, newest first: each id with its prompt as stored."""
        query = (
            select(col(WeighingRow.request_id), col(WeighingRow.prompt))
            .where(
                col(WeighingRow.team_id) == team_id,
                col(WeighingRow.organisation_id) == organisation_id,
                col(WeighingRow.prompt).is_not(None),
            )
            .order_by(col(WeighingRow.at_us).desc(), col(WeighingRow.request_id).desc())
            .limit(most)
        )
        async with self._engine.connect() as connection:
            return [(request_id, prompt or "") for request_id, prompt in await connection.execute(query)]

    async def outcomes(
        self,
        artifact: str,
        limit: int = MAX_OUTCOMES,
        *,
        team_id: str | None = None,
        per_team: int | None = None,
    ) -> list[JudgedAnswer]:
        """Return the verdicts on prompts that this artifact scored, newest first: of one team, or of all.

        `per_team` limits the rows of each team, so that a busy one does not crowd out the others.
        """
        query = _JUDGED.where(col(WeighingRow.artifact) == artifact)
        if team_id is not None:
            query = query.where(col(WeighingRow.team_id) == team_id)
        if per_team is not None:
            place = func.row_number().over(partition_by=col(VerdictRow.team_id), order_by=_NEWEST_FIRST)
            ranked = query.add_columns(place.label("place")).subquery()
            newest = (ranked.c.at_us.desc(), *(ranked.c[name] for name in ("request_id", "target_id", "signal")))
            query = select(*(ranked.c[name] for name in JudgedAnswer.__struct_fields__))
            query = query.where(ranked.c.place <= per_team).order_by(*newest)
        else:
            query = query.order_by(*_NEWEST_FIRST)
        async with self._engine.connect() as connection:
            return [JudgedAnswer(**_fields(row)) for row in await connection.execute(query.limit(limit))]

    async def lengths(self, artifact: str) -> list[AnswerLength]:
        """Return the newest answers to prompts that this artifact scored, of every target, with their lengths."""
        place = func.row_number().over(
            partition_by=col(WeighingRow.target_id),
            order_by=(col(WeighingRow.at_us).desc(), col(WeighingRow.team_id), col(WeighingRow.request_id)),
        )
        ranked = (
            select(*(getattr(WeighingRow, name) for name in AnswerLength._fields), place.label("place"))
            .where(col(WeighingRow.artifact) == artifact, col(WeighingRow.usual_tokens) > 0)
            .subquery()
        )
        query = select(*(ranked.c[name] for name in AnswerLength._fields)).where(ranked.c.place <= MOST)
        async with self._engine.connect() as connection:
            return [AnswerLength(*row) for row in await connection.execute(query)]

    async def counts(self, team_id: str | None = None) -> list[VerdictCount]:
        """Return the verdicts by team, target, source and signal: of one team, or of all."""
        kinds = (col(VerdictRow.team_id), col(VerdictRow.target_id), col(VerdictRow.source), col(VerdictRow.signal))
        query = select(
            *kinds, func.count().label("verdicts"), func.avg(col(VerdictRow.adequate)).label("adequate")
        ).group_by(*kinds)
        if team_id is not None:
            query = query.where(col(VerdictRow.team_id) == team_id)
        async with self._engine.connect() as connection:
            return [VerdictCount(**_fields(row)) for row in await connection.execute(query.order_by(*kinds))]

    async def adequacy(self, organisation_id: str, team_id: str | None, start_us: int, end_us: int) -> tuple[int, int]:
        """Return (adequate answers, judged answers) among those given from `start_us` until `end_us`: of one team, or
        of all.

        Only feedback and shadow comparisons count: implicit signals speak against an answer or not at all, and would
        bias the share. Several verdicts on one answer are averaged by weight; from 0.5 on it is adequate.
        """
        where = [
            # An answer is judged after it was given, and few are: its verdicts lead to it, not the other way round.
            col(VerdictRow.organisation_id) == organisation_id,
            col(VerdictRow.at_us) >= start_us - _SKEW_US,
            col(WeighingRow.organisation_id) == organisation_id,
            col(WeighingRow.at_us) + 0 >= start_us,
            col(WeighingRow.at_us) + 0 < end_us,
            col(VerdictRow.source).in_(_TWO_SIDED_SOURCES),
            col(VerdictRow.weight) > 0,
        ]
        if team_id is not None:
            where.append(col(WeighingRow.team_id) == team_id)
        said = func.sum(col(VerdictRow.adequate) * col(VerdictRow.weight)) / func.sum(col(VerdictRow.weight))
        answers = (
            select(said.label("said"))
            .join_from(
                WeighingRow, VerdictRow, _SAME_REQUEST & (col(VerdictRow.target_id) == col(WeighingRow.target_id))
            )
            .where(*where)
            .group_by(col(VerdictRow.team_id), col(VerdictRow.request_id))
            .subquery()
        )
        query = select(func.sum(case((answers.c.said >= _ADEQUATE, 1), else_=0)), func.count()).select_from(answers)
        async with self._engine.connect() as connection:
            adequate, judged = (await connection.execute(query)).one()
        return int(adequate or 0), int(judged)

    async def forget(self, before_us: int) -> int:
        """Delete requests and verdicts from before `before_us`; return how many rows that were."""
        old_weighings = _deletion(WeighingRow, _WEIGHING_KEY, col(WeighingRow.at_us) < before_us)
        old_verdicts = _deletion(VerdictRow, _VERDICT_KEY, col(VerdictRow.at_us) < before_us)
        return await self._in_batches(old_weighings) + await self._in_batches(old_verdicts)

    async def forget_team(self, team_id: str) -> int:
        """Delete everything stored of a team, for a team that turned learning off; return how many rows."""
        weighings = _deletion(WeighingRow, _WEIGHING_KEY, col(WeighingRow.team_id) == team_id)
        verdicts = _deletion(VerdictRow, _VERDICT_KEY, col(VerdictRow.team_id) == team_id)
        return await self._in_batches(weighings) + await self._in_batches(verdicts)

    async def teams_with_prompts(self) -> list[str]:
        """Return the ids of the teams of whom prompt texts are stored."""
        query = select(col(WeighingRow.team_id)).where(col(WeighingRow.prompt).is_not(None)).distinct()
        async with self._engine.connect() as connection:
            return sorted((await connection.execute(query)).scalars())

    async def forget_prompts(self, team_id: str) -> int:
        """Delete the stored texts of a team and keeps the numbers; return how many."""
        mine = (col(WeighingRow.team_id) == team_id, col(WeighingRow.prompt).is_not(None))
        some = select(col(WeighingRow.request_id)).where(*mine).limit(_DELETE_BATCH).scalar_subquery()
        emptied = update(WeighingRow).where(*mine, col(WeighingRow.request_id).in_(some)).values(prompt=None)
        return await self._in_batches(emptied)

    async def _in_batches(self, statement: Any) -> int:
        total = 0
        while True:
            async with self._engine.begin() as connection:
                changed = (await connection.execute(statement)).rowcount
            total += changed
            if changed < _DELETE_BATCH:
                return total
            await asyncio.sleep(_DELETE_PAUSE_S)

    async def add_tuning(self, tuning: Tuning, *, metrics: Mapping[str, Any] | None = None, note: str = "") -> int:
        """Store a tuning, not yet in use, and return its version, the next free one whatever `tuning` says.

        Raises LearningError when other processes took every version that was tried.
        """
        for _ in range(_VERSION_TRIES):
            try:
                async with self._engine.begin() as connection:
                    return await self._add_tuning(connection, tuning, metrics or {}, note)
            except IntegrityError:
                continue  # Another process took that number in between.
        raise LearningError("other processes took every next version; try again")

    async def _add_tuning(
        self, connection: AsyncConnection, tuning: Tuning, metrics: Mapping[str, Any], note: str
    ) -> int:
        version = int(await connection.scalar(select(func.max(col(TuningRow.version)))) or 0) + 1
        values = {
            "version": version,
            "at_us": self._now_us(),
            "artifact": tuning.artifact,
            "body": msgspec.json.encode(msgspec.structs.replace(tuning, version=version)).decode(),
            "metrics": msgspec.json.encode(metrics).decode(),
            "note": note,
            "active": False,
        }
        await connection.execute(insert(TuningRow).values(values))
        return version

    async def tunings(self) -> list[TuningRecord]:
        """Return the versions, newest first, without their bodies."""
        query = select(*(getattr(TuningRow, name) for name in TuningRecord.__struct_fields__))
        query = query.order_by(col(TuningRow.version).desc()).limit(MAX_LISTED_TUNINGS)
        async with self._engine.connect() as connection:
            rows = [_fields(row) for row in await connection.execute(query)]
        return [TuningRecord(**{**row, "metrics": msgspec.json.decode(row["metrics"])}) for row in rows]

    async def tuning(self, version: int) -> Tuning:
        """Return one version; raises UnknownTuning or UnreadableTuning."""
        body = await self._body(col(TuningRow.version) == version)
        if body is None:
            raise UnknownTuning(f"there is no tuning {version}")
        return _decoded(body)

    async def activate(self, version: int | None) -> None:
        """Put a version in use, or none. No version is ever deleted. Raises UnknownTuning."""
        # All rows in one statement: of two that do this at once, the second waits for the first and undoes it whole.
        chosen = False if version is None else col(TuningRow.version) == version
        async with self._engine.begin() as connection:
            if version is not None and not await connection.scalar(
                select(func.count()).select_from(TuningRow).where(col(TuningRow.version) == version)
            ):
                raise UnknownTuning(f"there is no tuning {version}")
            await connection.execute(update(TuningRow).values(active=chosen))

    async def active_version(self) -> int | None:
        """Return the version in use, or None; cheap enough to ask every few seconds."""
        async with self._engine.connect() as connection:
            version: int | None = await connection.scalar(select(col(TuningRow.version)).where(_ACTIVE))
        return version

    async def active_tuning(self) -> Tuning | None:
        """Return the tuning in use, or None; raises UnreadableTuning."""
        body = await self._body(_ACTIVE)
        return None if body is None else _decoded(body)

    async def _body(self, condition: Any) -> str | None:
        async with self._engine.connect() as connection:
            body: str | None = await connection.scalar(select(col(TuningRow.body)).where(condition))
        return body


def _deletion(table: type[WeighingRow | VerdictRow], key: Iterable[str], condition: Any) -> Delete:
    columns = [getattr(table, name) for name in key]
    some = select(*columns).where(condition).limit(_DELETE_BATCH)
    return delete(table).where(tuple_(*columns).in_(some))


def _rows(values: Sequence[ClassifiedRequest | Verdict], key: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row for each key, the last one given, in the key's order, so that two writers cannot deadlock."""
    order = itemgetter(*key)
    rows = {order(row): row for row in map(msgspec.structs.asdict, values)}
    return [rows[place] for place in sorted(rows)]


def _fields(row: Row[*tuple[Any, ...]]) -> dict[str, Any]:
    return {str(name): value for name, value in row._mapping.items()}  # noqa: SLF001


def _decoded(body: str) -> Tuning:
    try:
        return msgspec.json.decode(body, type=Tuning)
    except msgspec.DecodeError as error:
        raise UnreadableTuning(f"the stored tuning cannot be read: {error}") from error


_WEIGHING_KEY: Final = ("team_id", "request_id")
# Made of our own column names alone; every value is a bound parameter.
_INSERT_SQLITE: Final = (
    f"INSERT INTO weighing ({', '.join(ClassifiedRequest.__struct_fields__)}) "  # noqa: S608
    f"VALUES ({', '.join('?' for _ in ClassifiedRequest.__struct_fields__)}) ON CONFLICT DO NOTHING"
)
_VERDICT_KEY: Final = ("team_id", "request_id", "target_id", "source", "signal")
_VERDICT_VALUES: Final = tuple(name for name in Verdict.__struct_fields__ if name not in _VERDICT_KEY)
_WEIGHINGS: Final = select(*(getattr(WeighingRow, name) for name in ClassifiedRequest.__struct_fields__))
_ACTIVE: Final = col(TuningRow.active).is_(True)
_NEWEST_FIRST: Final = (
    col(VerdictRow.at_us).desc(),
    col(VerdictRow.request_id),
    col(VerdictRow.target_id),
    col(VerdictRow.signal),
)
_REQUEST_COLUMNS: Final = frozenset({"vector", "group_id"})
_SAME_REQUEST: Final = (col(VerdictRow.team_id) == col(WeighingRow.team_id)) & (
    col(VerdictRow.request_id) == col(WeighingRow.request_id)
)
_TWO_SIDED_SOURCES: Final = ("feedback", "shadow")
"""Sources of verdicts that call an answer adequate as well as inadequate."""
_ADEQUATE: Final = 0.5
_SKEW_US: Final = 3_600_000_000
"""Upper bound of the clocks' difference between two machines."""
_JUDGED: Final = select(
    *(getattr(WeighingRow if name in _REQUEST_COLUMNS else VerdictRow, name) for name in JudgedAnswer.__struct_fields__)
).join_from(VerdictRow, WeighingRow, _SAME_REQUEST)
