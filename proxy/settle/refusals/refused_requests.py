"""The table of refused requests: some of each minute's, the newest of each team, to look up the reason of a refusal."""

from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Table, delete, func, literal, or_, select
from sqlalchemy import tuple_ as sql_tuple
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.times import DAY_US
from proxy.settle.refusals.counting import RefusedRequest
from proxy.settle.refusals.tables import RefusedRequestRow

KEPT_US: Final = 31 * DAY_US
MOST_PER_TEAM: Final = 2_000
"""The number of a team's newest requests that stay."""
MAX_ROWS: Final = 201
_MOST_TEAMS: Final = 1_000
_ID_CHARS: Final = 200
_REASON_CHARS: Final = 64
_MESSAGE_CHARS: Final = 500

_table: Final[Table] = RefusedRequestRow.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
_COLUMNS: Final = tuple(_table.c[name] for name in RefusedRequest.__struct_fields__)


class RefusedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of a team's refused requests to read; an empty one matches all."""

    organisation_id: str
    team_id: str
    before: tuple[int, str] | None = None
    """The moment and id before which they lie."""
    since_us: int | None = None
    until_us: int | None = None
    keys: tuple[str, ...] | None = None
    """Any of these keys; None for all."""
    models: tuple[str, ...] | None = None
    end_user: str = ""
    words: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = ()
    """Each is somewhere: the beginning of an id or end user, that end user, one of these keys, or of these models."""
    statuses: tuple[int, int] | None = None
    """The least and the greatest status, both included."""
    rows: int = 50


class RefusedRequestStore:
    """The only writer and reader of `refused_request`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def keep(self, told: tuple[RefusedRequest, ...]) -> None:
        """Keep requests; one that is kept already stays as it is."""
        rows = [
            {
                **msgspec.structs.asdict(each),
                "request_id": each.request_id[:_ID_CHARS],
                "model": each.model[:_ID_CHARS],
                "reason": each.reason[:_REASON_CHARS],
                "message": each.message[:_MESSAGE_CHARS],
            }
            for each in told
        ]
        if rows:
            async with self._engine.begin() as connection:
                await connection.execute(self._insert(_table).on_conflict_do_nothing(), rows)

    async def forget(self, now_us: int) -> None:
        """Delete requests that are a month old, and of each team those beyond its newest."""
        count = func.count().label("count")
        crowded = select(_table.c.team_id).group_by(_table.c.team_id).having(count > MOST_PER_TEAM).limit(_MOST_TEAMS)
        async with self._engine.begin() as connection:
            await connection.execute(delete(_table).where(_table.c.at_us < now_us - KEPT_US))
            for (team_id,) in (await connection.execute(crowded)).all():
                newest = select(_table.c.at_us).where(_table.c.team_id == team_id).order_by(_table.c.at_us.desc())
                last = (await connection.execute(newest.offset(MOST_PER_TEAM - 1).limit(1))).scalar_one()
                await connection.execute(delete(_table).where(_table.c.team_id == team_id, _table.c.at_us < last))

    async def read(self, query: RefusedQuery) -> tuple[RefusedRequest, ...]:
        """Return the newest that match, newest first, at most MAX_ROWS."""
        place = sql_tuple(_table.c.at_us, _table.c.request_id)
        statement = select(*_COLUMNS).where(
            _table.c.organisation_id == query.organisation_id, _table.c.team_id == query.team_id
        )
        if query.before is not None:
            at_us, request_id = query.before
            statement = statement.where(
                _table.c.at_us <= at_us, place < sql_tuple(literal(at_us, _table.c.at_us.type), literal(request_id))
            )
        if query.since_us is not None:
            statement = statement.where(_table.c.at_us >= query.since_us)
        if query.until_us is not None:
            statement = statement.where(_table.c.at_us < query.until_us)
        if query.statuses is not None:
            statement = statement.where(_table.c.status.between(*query.statuses))
        for name, wanted in (("key_id", query.keys), ("model", query.models)):
            if wanted is not None:
                statement = statement.where(_table.c[name].in_(wanted))
        if query.end_user:
            statement = statement.where(_table.c.end_user == query.end_user)
        for text, end_user, keys, models in query.words:
            begins = (func.substr(_table.c[name], 1, len(text)) == text for name in ("request_id", "end_user"))
            named: list[ColumnElement[bool]] = [_table.c.key_id.in_(keys), _table.c.model.in_((*models, text))]
            if end_user:
                named.append(_table.c.end_user == end_user)
            statement = statement.where(or_(*begins, *named))
        newest = statement.order_by(_table.c.at_us.desc(), _table.c.request_id.desc())
        async with self._engine.connect() as connection:
            rows = (await connection.execute(newest.limit(min(query.rows, MAX_ROWS)))).mappings().all()
        return tuple(RefusedRequest(**row) for row in rows)

    async def one(self, organisation_id: str, team_id: str, request_id: str) -> RefusedRequest | None:
        """Return one request of a team; None when it has none of that id here."""
        statement = select(*_COLUMNS).where(
            _table.c.organisation_id == organisation_id,
            _table.c.team_id == team_id,
            _table.c.request_id == request_id[:_ID_CHARS],
        )
        async with self._engine.connect() as connection:
            row = (await connection.execute(statement)).mappings().one_or_none()
        return None if row is None else RefusedRequest(**row)
