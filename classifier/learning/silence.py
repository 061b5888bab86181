"""Answers without any verdict as weak positive labels, to balance signals that only report bad answers.

A refusal or a broken reply is noticed, a good answer is not: refitting to what was noticed alone would find every
target bad. So an answer without a verdict counts as adequate, with a weight: if the share s of inadequate answers is
noticed, the likelihood of silence is 1 - s(1 - p), which near p = 1 is that of an adequate answer of weight s.
"""

from typing import Any, Final

from sqlalchemy import ColumnElement, exists, func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from classifier.learning.store import JudgedAnswer
from classifier.learning.tables import VerdictRow, WeighingRow

NOTICED: Final = 0.15
"""The share s of inadequate answers that is assumed to be noticed: a low guess, so that silence does not outvote
people.
"""
MAX_SILENT: Final = 20_000


async def silent_answers(
    engine: AsyncEngine, artifact: str, *, since_us: int = 0, team_id: str | None = None, limit: int = MAX_SILENT
) -> list[JudgedAnswer]:
    """Return the newest answers without a verdict. Where there are more than `limit`, their weight makes up for the rest."""
    spoken = exists().where(
        col(VerdictRow.team_id) == col(WeighingRow.team_id), col(VerdictRow.request_id) == col(WeighingRow.request_id)
    )
    chosen: list[ColumnElement[bool]] = [
        col(WeighingRow.artifact) == artifact,
        col(WeighingRow.at_us) >= since_us,
        ~spoken,
    ]
    if team_id is not None:
        chosen.append(col(WeighingRow.team_id) == team_id)
    newest = select(*_COLUMNS).where(*chosen).order_by(col(WeighingRow.at_us).desc()).limit(limit)
    async with engine.connect() as connection:
        total = int(await connection.scalar(select(func.count()).select_from(WeighingRow).where(*chosen)) or 0)
        rows: list[Any] = list((await connection.execute(newest)).mappings())
    weight = NOTICED * total / max(1, len(rows))
    return [
        JudgedAnswer(**row, adequate=1.0, weight=weight, source="implicit", signal="silence", better_target=None)
        for row in rows
    ]


_COLUMNS: Final = tuple(
    getattr(WeighingRow, name) for name in ("request_id", "team_id", "target_id", "vector", "at_us", "group_id")
)
