"""Reads the results of a pool's versions since a rollout's step: attempts from the ledger, verdicts from the learning
log.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from classifier.learning.tables import VerdictRow
from cost.ledger.entries import TERMINAL
from cost.reports.latency import tpot_s
from cost.tables import LedgerEntry
from cost.times import DAY_US
from cost.usage import CONTINUED
from selfhosted.rollouts.comparison import Sample
from selfhosted.rollouts.versions import Rollout, serves

MOST_ATTEMPTS: Final = 20_000
"""The most attempts of a pool that are compared, the newest; beyond them it is a moving window."""
_MOST_DAYS: Final = 31
_VERDICT_BATCH: Final = 500
_SERVER_FAILED: Final = 500
_US: Final = 1_000_000
_COLUMNS: Final = (
    "request_id",
    "team_id",
    "target_id",
    "version",
    "status",
    "served",
    "stream",
    "ttft_us",
    "duration_us",
    "output_tokens",
    "flags",
)
_CUT: Final = frozenset({"first_token_timeout", "upstream_timeout", "stream_cut"})
_flags: Final = msgspec.json.Decoder(frozenset[str]).decode


class VersionedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one attempt that a version served, as the ledger has it."""

    request_id: str
    team_id: str
    target_id: str
    version: str
    status: int
    served: bool
    stream: bool
    ttft_us: int | None
    duration_us: int | None
    output_tokens: int
    flags: frozenset[str]

    @property
    def failed(self) -> bool:
        """The engine is to blame: it did not answer in time, cut its answer, or said that it failed."""
        return bool(self.flags & _CUT) or ("upstream_error" in self.flags and self.status >= _SERVER_FAILED)


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """The two sides of a comparison: the stable versions together, and the candidate."""

    stable: Sample
    candidate: Sample
    is_whole: bool
    """False when there were more attempts than are looked at, so that these are the newest."""


class VersionReader:
    """A reader of bounded samples, for the control plane alone."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def samples(self, rollout: Rollout, targets: Collection[str], now_us: int) -> Samples:
        """Return the samples of the rollout's versions since its last step, in the last 31 days at most. `targets` are all that its
        pool serves: the books know a pool only where its hours have a price.
        """
        since_us = max(rollout.since_us, now_us - _MOST_DAYS * DAY_US)
        # Verdicts and attempts are of one moment, or nearly: a late verdict is there the next time.
        async with self._engine.connect() as connection:
            attempts = await _attempts(connection, targets, since_us)
            shown = attempts[:MOST_ATTEMPTS]
            theirs = [each for each in shown if each.version == rollout.candidate]
            ours = [each for each in shown if each.version and serves(rollout, each.version, candidate=False)]
            return Samples(
                stable=sample_of(ours, await _verdicts(connection, ours)),
                candidate=sample_of(theirs, await _verdicts(connection, theirs)),
                is_whole=len(attempts) <= MOST_ATTEMPTS,
            )


def sample_of(attempts: Collection[VersionedAttempt], verdicts: Iterable[tuple[str, float]] = ()) -> Sample:
    """Return the figures of one side. `verdicts` are pairs of a source and an adequacy from 0 to 1."""
    streams = [each for each in attempts if each.served and each.stream]
    by_source: dict[str, list[float]] = defaultdict(list)
    for source, adequate in verdicts:
        by_source[source].append(adequate)
    return Sample(
        attempts=len(attempts),
        failed=sum(each.failed for each in attempts),
        weak=sum("escalated" in each.flags for each in attempts),
        ttft_s=tuple(
            sorted(each.ttft_us / _US for each in streams if each.ttft_us is not None and CONTINUED not in each.flags)
        ),
        tpot_s=tuple(sorted(found for each in streams if (found := tpot_s(each)) is not None)),
        verdicts={source: tuple(values) for source, values in by_source.items()},
    )


async def _attempts(connection: AsyncConnection, targets: Collection[str], since_us: int) -> list[VersionedAttempt]:
    """Return callers' attempts at the targets since then, the newest first, and at most one more than are compared."""
    query = (
        select(*(getattr(LedgerEntry, name) for name in _COLUMNS))
        .where(
            col(LedgerEntry.version) != "",
            col(LedgerEntry.target_id).in_(targets),
            col(LedgerEntry.at_us) >= since_us,
            col(LedgerEntry.entry).in_(TERMINAL),
            col(LedgerEntry.origin) == "caller",
        )
        .order_by(col(LedgerEntry.at_us).desc())
        .limit(MOST_ATTEMPTS + 1)
    )
    return [_attempt(row) for row in await connection.execute(query)]


def _attempt(row: Row[Any]) -> VersionedAttempt:
    values: tuple[Any, ...] = tuple(row)
    return VersionedAttempt(**dict(zip(_COLUMNS[:-1], values[:-1], strict=True)), flags=_flags(values[-1]))


async def _verdicts(connection: AsyncConnection, attempts: Sequence[VersionedAttempt]) -> list[tuple[str, float]]:
    """Return pairs of a source and an adequacy, of verdicts on these very answers."""
    served = {each.request_id: each for each in attempts if each.served}
    ids, found = list(served), []
    for start in range(0, len(ids), _VERDICT_BATCH):
        batch = ids[start : start + _VERDICT_BATCH]
        query = select(
            col(VerdictRow.request_id),
            col(VerdictRow.team_id),
            col(VerdictRow.target_id),
            col(VerdictRow.source),
            col(VerdictRow.adequate),
        ).where(
            # The team first, as the key has it.
            col(VerdictRow.team_id).in_({served[each].team_id for each in batch}),
            col(VerdictRow.request_id).in_(batch),
        )
        for request_id, team_id, target_id, source, adequate in await connection.execute(query):
            judged = served[request_id]
            if (judged.team_id, judged.target_id) == (team_id, target_id):
                found.append((str(source), float(adequate)))
    return found
