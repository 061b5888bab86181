"""A team's latest requests as numbers, to compute the effect of a quality floor on its own traffic."""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from classifier.learning.tables import WeighingRow

FEWEST: Final = 200
"""Requests below which their mix is mostly chance."""
MOST: Final = 2_000
"""Requests that are read at most, the newest."""
LOOKED_AT: Final = 5 * MOST
"""Newest requests that are looked at: after an update of the classifier all are another artifact's, however many there
are.
"""
_HALF: Final = np.dtype("<f2")

NewestRow = tuple[bytes, int, int]


class OwnRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one team, one row each, with the columns of the artifact's own sample."""

    vectors: NDArray[np.float32]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    weights: NDArray[np.float64]


async def own_requests(engine: AsyncEngine, team_id: str, artifact: str, width: int) -> OwnRequests | None:
    """Return the team's newest requests that this artifact scored; None when there are fewer than FEWEST."""
    return gathered(await newest_rows(engine, team_id, artifact, width))


async def newest_rows(engine: AsyncEngine, team_id: str, artifact: str, width: int) -> list[NewestRow]:
    """Return the same requests as rows: vector of half-precision numbers, input tokens, output tokens."""
    if not artifact or width < 1:
        return []
    latest = (
        select(
            *map(
                col,
                (
                    WeighingRow.vector,
                    WeighingRow.input_tokens,
                    WeighingRow.output_tokens,
                    WeighingRow.artifact,
                    WeighingRow.at_us,
                ),
            )
        )
        .where(col(WeighingRow.team_id) == team_id)
        .order_by(col(WeighingRow.at_us).desc())
        .limit(LOOKED_AT)
        .subquery()
    )
    newest = (
        select(latest.c.vector, latest.c.input_tokens, latest.c.output_tokens)
        .where(latest.c.artifact == artifact)
        .order_by(latest.c.at_us.desc())
        .limit(MOST)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(newest)).all()
    # A vector of another width cannot be this model's, whatever the row says.
    return [(bytes(row[0]), row[1], row[2]) for row in rows if len(row[0]) == width * _HALF.itemsize]


def gathered(rows: list[NewestRow]) -> OwnRequests | None:
    """Return such rows as arrays; None when there are fewer than FEWEST."""
    if len(rows) < FEWEST:
        return None
    vectors = np.frombuffer(b"".join(row[0] for row in rows), dtype=_HALF)
    return OwnRequests(
        vectors=vectors.reshape(len(rows), -1).astype(np.float32),
        input_tokens=np.array([row[1] for row in rows], dtype=np.int64),
        output_tokens=np.array([row[2] for row in rows], dtype=np.int64),
        weights=np.ones(len(rows)),
    )
