"""Reads the results of a pool's versions since a rollout's step: attempts from the ledger, verdicts from the learning
log.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Row, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from classifier.learning.tables import VerdictRow
from cost.ledger.entries import TERMINAL
from cost.reports.latency import tpot_s
from cost.tables import LedgerEntry
from cost.times import DAY_US
from cost.usage import CONTINUED
from selfhosted.rollouts.comparison import Sample
from selfhosted.rollouts.evidence import Evidence, Side
from selfhosted.rollouts.versions import Rollout, serves
from selfhosted.tables import RolloutRow

MOST_ATTEMPTS: Final = 20_000
"""The most attempts of a pool that are compared, the newest; beyond them it is a moving window."""
SETTLING_US: Final = 3_000_000
"""The books have what ended so long ago."""
_INADEQUATE: Final = 0.5
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
_evidence: Final = msgspec.json.Decoder(Evidence).decode
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
            attempts = await _attempts(connection, targets, since_us, now_us)
            shown = attempts[:MOST_ATTEMPTS]
            ours, theirs = ([each for each in shown if is_of(each.version)] for is_of in _sides(rollout))
            return Samples(
                stable=sample_of(ours, await _verdicts(connection, ours)),
                candidate=sample_of(theirs, await _verdicts(connection, theirs)),
                is_whole=len(attempts) <= MOST_ATTEMPTS,
            )

    async def evidence(self, rollout: Rollout, targets: Collection[str], now_us: int) -> Evidence:
        """Return the evidence since the rollout's step, with what ended since it was read last. It is kept beside the rollout,
        so that another process goes on with it. Of more than `MOST_ATTEMPTS` new ones the newest are taken.
        """
        until_us = now_us - SETTLING_US
        step = (col(RolloutRow.model) == rollout.model) & (col(RolloutRow.since_us) == rollout.since_us)
        async with self._engine.begin() as connection:
            kept = await connection.scalar(select(col(RolloutRow.evidence)).where(step))
            found = _evidence(kept) if kept else Evidence()
            if found.since_us != rollout.since_us:
                found = Evidence(since_us=rollout.since_us, until_us=rollout.since_us)
            if until_us <= found.until_us:
                return found
            attempts = (await _attempts(connection, targets, found.until_us + 1, until_us))[:MOST_ATTEMPTS]
            judged = await _judged(connection, rollout, targets, found.until_us + 1, until_us)
            stable, candidate = (
                _side(
                    [each for each in attempts if is_of(each.version)],
                    [adequate for version, adequate in judged if is_of(version)],
                )
                for is_of in _sides(rollout)
            )
            found.add(stable, candidate, rollout.rule)
            found.until_us = until_us
            written = msgspec.json.encode(found).decode()
            await connection.execute(update(RolloutRow).where(step).values(evidence=written))
        return found


def _sides(rollout: Rollout) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
    """Return whether a version belongs to the stable side, and whether to the candidate's."""
    return (
        lambda version: bool(version) and serves(rollout, version, candidate=False),
        lambda version: version == rollout.candidate,
    )


def _times_s(attempts: Iterable[VersionedAttempt]) -> tuple[list[float], list[float]]:
    """Return the times to the first token and for each further one of served streams, in the order of the attempts."""
    streams = [each for each in attempts if each.served and each.stream]
    return (
        [each.ttft_us / _US for each in streams if each.ttft_us is not None and CONTINUED not in each.flags],
        [found for each in streams if (found := tpot_s(each)) is not None],
    )


def _side(attempts: Sequence[VersionedAttempt], adequate: Collection[float]) -> Side:
    """Return new attempts of one side, and verdicts on its answers; times in the order in which the attempts ended."""
    first_s, further_s = _times_s(reversed(attempts))
    return Side(
        attempts=len(attempts),
        failed=sum(each.failed for each in attempts),
        weak=sum("escalated" in each.flags for each in attempts),
        judged=len(adequate),
        inadequate=sum(each < _INADEQUATE for each in adequate),
        ttft_s=tuple(first_s),
        tpot_s=tuple(further_s),
    )


async def _judged(
    connection: AsyncConnection, rollout: Rollout, targets: Collection[str], first_us: int, last_us: int
) -> list[tuple[str, float]]:
    """Return the version and the adequacy of answers since the rollout's step that were judged in this time."""
    query = (
        select(col(LedgerEntry.version), col(VerdictRow.adequate))
        .join(
            LedgerEntry,
            (col(LedgerEntry.team_id) == col(VerdictRow.team_id))
            & (col(LedgerEntry.request_id) == col(VerdictRow.request_id))
            & (col(LedgerEntry.target_id) == col(VerdictRow.target_id)),
        )
        .where(
            col(VerdictRow.at_us).between(first_us, last_us),
            col(VerdictRow.target_id).in_(targets),
            col(LedgerEntry.at_us) >= rollout.since_us,
            col(LedgerEntry.version) != "",
            col(LedgerEntry.served),
            col(LedgerEntry.origin) == "caller",
        )
        .order_by(col(VerdictRow.at_us).desc())
        .limit(MOST_ATTEMPTS)
    )
    return [(str(version), float(adequate)) for version, adequate in await connection.execute(query)]


def sample_of(attempts: Collection[VersionedAttempt], verdicts: Iterable[tuple[str, float]] = ()) -> Sample:
    """Return the figures of one side. `verdicts` are pairs of a source and an adequacy from 0 to 1."""
    first_s, further_s = _times_s(attempts)
    by_source: dict[str, list[float]] = defaultdict(list)
    for source, adequate in verdicts:
        by_source[source].append(adequate)
    return Sample(
        attempts=len(attempts),
        failed=sum(each.failed for each in attempts),
        weak=sum("escalated" in each.flags for each in attempts),
        ttft_s=tuple(sorted(first_s)),
        tpot_s=tuple(sorted(further_s)),
        verdicts={source: tuple(values) for source, values in by_source.items()},
    )


async def _attempts(
    connection: AsyncConnection, targets: Collection[str], since_us: int, until_us: int
) -> list[VersionedAttempt]:
    """Return callers' attempts at the targets in this time, the newest first, and at most one more than are compared."""
    query = (
        select(*(getattr(LedgerEntry, name) for name in _COLUMNS))
        .where(
            col(LedgerEntry.version) != "",
            col(LedgerEntry.target_id).in_(targets),
            col(LedgerEntry.at_us).between(since_us, until_us),
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
