"""The table `prompt_cache_loss`: what each process counted is added to the same rows, and pages read them."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Table, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.reports.scope import ReadScope
from proxy.settle.prompt_caches.tables import TARGET_CHARS, PromptCacheLoss
from proxy.settle.prompt_caches.watch import CacheDelta

MOST_ROWS: Final = 1_000
"""The most rows that a page is given: those with the most money, then tokens."""
_BATCH: Final = 200

_table: Final[Table] = PromptCacheLoss.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
_KEY: Final = ("team_id", "day_us", "target_id", "cause")
_SUMS: Final = ("requests", "tokens", "nanousd", "unpriced")


class CacheLossSum(msgspec.Struct, frozen=True, kw_only=True):
    """What a team lost at a target for one cause, over some days."""

    target_id: str
    cause: str
    requests: int
    tokens: int
    nanousd: int
    unpriced: int


class CacheLossStore:
    """The only writer and reader of `prompt_cache_loss`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def add(self, deltas: Sequence[CacheDelta], committing: Callable[[], None] = lambda: None) -> None:
        """Add the deltas in one transaction. `committing` is called just before the commit, after which it may be
        unknown whether they were written.
        """
        # Names that are cut may be alike, and of two processes neither waits for a row of the other's while it holds one.
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for each in deltas:
            row = msgspec.structs.asdict(each) | {"target_id": each.target_id[:TARGET_CHARS]}
            found = rows.setdefault(tuple(row[name] for name in _KEY), row)
            if found is not row:
                found |= {name: found[name] + row[name] for name in _SUMS}
        ordered = [rows[key] for key in sorted(rows)]
        insert = self._insert(_table)
        added = insert.on_conflict_do_update(
            index_elements=_KEY, set_={name: _table.c[name] + insert.excluded[name] for name in _SUMS}
        )
        async with self._engine.connect() as connection:
            for start in range(0, len(ordered), _BATCH):
                await connection.execute(added, ordered[start : start + _BATCH])
            committing()
            await connection.commit()

    async def read(self, scope: ReadScope, start_us: int, end_us: int) -> list[CacheLossSum]:
        """Return the sums of a team's days that begin from `start_us` to before `end_us`, the dearest first."""
        sums = [func.sum(_table.c[name]) for name in _SUMS]
        group = [_table.c.target_id, _table.c.cause]
        asked = (
            select(*group, *sums)
            .where(
                _table.c.team_id == scope.team_id,
                _table.c.organisation_id == scope.organisation_id,
                _table.c.day_us >= start_us,
                _table.c.day_us < end_us,
            )
            .group_by(*group)
            .order_by(sums[2].desc(), sums[1].desc(), *group)
            .limit(MOST_ROWS)
        )
        async with self._engine.connect() as connection:
            rows = (await connection.execute(asked)).all()
        return [
            CacheLossSum(
                target_id=str(target_id), cause=str(cause), **{n: int(v) for n, v in zip(_SUMS, amounts, strict=True)}
            )
            for target_id, cause, *amounts in rows
        ]

    async def prune(self, before_us: int) -> None:
        """Delete the rows of days before `before_us`."""
        async with self._engine.begin() as connection:
            await connection.execute(delete(_table).where(_table.c.day_us < before_us))
