"""Lifecycle of tunings, the corrections learned from own traffic: propose, accept, adopt in every process, roll back."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.learning.labels import MAX_LABELS
from classifier.learning.lengths import own_ratios
from classifier.learning.recalibrate import MIN_LABELS, Known, Proposal, Report, recalibrate, without_shifts
from classifier.learning.silence import MAX_SILENT, silent_answers
from classifier.learning.store import LearningError, LearningStore, TuningRecord
from classifier.measuring.result import Result
from classifier.prediction import Classifier
from classifier.tuning import Ability, Tuning
from providers.catalog import Catalog

_log: Final = logging.getLogger("weighbridge.tunings")

_MOST_SPOKEN: Final = MAX_LABELS - MAX_SILENT
_SHARE_OF_A_TEAM: Final = 0.4
"""The largest share of the labels read that one team may have, so that a busy team does not crowd out the others."""
_PATIENCE_S: Final = 5.0
"""The time-out of a database look-up, so that a start does not hang."""
AS_TRAINED: Final = 0
"""The version number that stands for no tuning."""


class TuningRefused(Exception):
    """Raised when a tuning cannot be made, accepted or rolled back. The message says why."""


@runtime_checkable
class Trained(Protocol):
    """A trained classifier that can be refitted; the heuristic classifier is not one."""

    @property
    def artifact(self) -> str:
        """The id of the trained model; vectors and tunings of another model do not fit."""
        ...

    @property
    def loads(self) -> int:
        """The count of a vector's leading numbers, before its sketch."""
        ...

    @property
    def abilities(self) -> Mapping[str, Ability]:
        """The shipped ability rows by target id, without any tuning."""
        ...

    def tune(self, tuning: Tuning | None) -> None:
        """Apply a tuning; None restores the shipped rows."""
        ...


def known_of(classifier: Classifier, catalog: Catalog, tuning: Tuning | None) -> Known:
    """Collect the inputs of a refit. Raises TuningRefused when no trained model is in use."""
    if not isinstance(classifier, Trained):
        raise TuningRefused("no trained model is in use, and the plain rule has nothing to refit")
    return Known(
        artifact=classifier.artifact,
        loads=classifier.loads,
        abilities=classifier.abilities,
        capabilities={
            target_id: target.capability
            for target_id, target in catalog.targets.items()
            if target.capability is not None
        },
        tuning=tuning,
    )


async def propose(
    engine: AsyncEngine, classifier: Classifier, catalog: Catalog, team_id: str | None = None
) -> Proposal:
    """Compute a tuning from the stored verdicts, of one team or of all, without storing it. Raises TuningRefused or
    TooFewLabels.
    """
    store = LearningStore(engine)
    active = await store.active_tuning()
    known = known_of(classifier, catalog, active)
    spoken = await store.outcomes(
        known.artifact,
        _MOST_SPOKEN,
        team_id=team_id,
        per_team=None if team_id is not None else round(_MOST_SPOKEN * _SHARE_OF_A_TEAM),
    )
    # Targets that are no longer configured get no row.
    spoken = [outcome for outcome in spoken if outcome.target_id in catalog.targets]
    counts = Counter(outcome.target_id for outcome in spoken)
    # Too few verdicts on a target may only mean that none are collected.
    spoken_of = {target_id for target_id, count in counts.items() if count >= MIN_LABELS}
    since_us = min((outcome.at_us for outcome in spoken), default=0)
    silent = await silent_answers(engine, known.artifact, since_us=since_us, team_id=team_id) if spoken_of else []
    outcomes = [*spoken, *(outcome for outcome in silent if outcome.target_id in spoken_of)]
    version = (active.version if active is not None else 0) + 1
    # One team's answers must not tell every team's lengths.
    answers = await store.lengths(known.artifact) if team_id is None else []
    lengths = own_ratios(answer for answer in answers if answer.target_id in catalog.targets)
    return recalibrate(outcomes, known, version=version, team_id=team_id, lengths=lengths)


async def accept(store: LearningStore, proposal: Proposal) -> int:
    """Store and activate a proposal; returns its version. Raises TuningRefused when it improves nothing."""
    if not proposal.report.improves:
        raise TuningRefused("nothing got better on the held-out requests, so there is nothing to accept")
    before = await store.active_version()
    version = await store.add_tuning(proposal.tuning, metrics=metrics_of(proposal.report, before))
    await store.activate(version)
    return version


async def accept_measured(store: LearningStore, measured: Result) -> int:
    """Store and activate the row that a measurement found, beside all that the present tuning has; returns the version.

    Raises TuningRefused where there is no row, or the present tuning is of another trained model.
    """
    if measured.ability is None or measured.mean is None:
        raise TuningRefused(measured.too_few or "the measurement found no row, so there is nothing to accept")
    target_id, active = measured.target_id, await store.active_tuning()
    if active is not None and active.artifact != measured.artifact:
        raise TuningRefused(
            f"{target_id} was measured with the trained model {measured.artifact}, and the tuning in use is of "
            f"{active.artifact}; measure it again, or go back to no tuning (`weighbridge classifier rollback 0`)"
        )
    base = active if active is not None else Tuning(version=0, artifact=measured.artifact)
    groups = {team: without_shifts(each, {target_id}) for team, each in base.groups.items()}
    tuning = msgspec.structs.replace(
        base,
        abilities={**base.abilities, target_id: measured.ability},
        measured={**base.measured, target_id: measured.ability},
        # They were shifts of the row that is replaced.
        groups={team: each for team, each in groups.items() if each},
    )
    metrics = {
        "before": None if active is None else active.version,
        "labels": measured.scored,
        "targets": [{"target_id": target_id, "verdict": "measured"}],
        "groups": {team: len(each) for team, each in tuning.groups.items()},
        "mean": msgspec.to_builtins(measured.mean),
    }
    note = (
        f"{target_id} measured: {measured.mean.value:.3f} [{measured.mean.low:.3f}, {measured.mean.high:.3f}] "
        f"by {measured.scored} questions"
    )
    version = await store.add_tuning(tuning, metrics=metrics, note=note)
    await store.activate(version)
    return version


def metrics_of(report: Report, before: int | None) -> dict[str, Any]:
    """Return the metrics stored with a version; `before` is the version that it replaced."""
    return {"before": before, **msgspec.to_builtins(report)}


async def roll_back(store: LearningStore, version: int | None = None) -> int:
    """Activate `version`, by default the one that the active version replaced, and return it. AS_TRAINED is none.
    Raises TuningRefused or UnknownTuning.
    """
    if version is None:
        version = _before(await store.tunings())
    await store.activate(None if version == AS_TRAINED else version)
    return version


def _before(records: list[TuningRecord]) -> int:
    active = next((record for record in records if record.active), None)
    if active is None:
        raise TuningRefused("no tuning is in use; the models are classified as trained")
    before = active.metrics.get("before")
    return before if isinstance(before, int) else AS_TRAINED


class TuningSource(Protocol):
    """The source of the tuning in use; LearningStore is one."""

    async def active_version(self) -> int | None:
        """Its version; None for no tuning."""
        ...

    async def active_tuning(self) -> Tuning | None:
        """Return the tuning itself. Raises LearningError for one that cannot be read."""
        ...


class TuningWatch:
    """A watch that polls for the active tuning and applies it to this process's classifier."""

    def __init__(
        self, source: TuningSource, classifier: Classifier, changed: Callable[[], None] = lambda: None
    ) -> None:
        """Follow `source`; `changed` is called after the classifier adopted another tuning."""
        self._source = source
        self._classifier = classifier if isinstance(classifier, Trained) else None
        self._changed = changed
        self._seen: int | None = None
        self._last_logged: str | None = None
        self.version: int | None = None
        """The version that the classifier uses; None for none."""

    async def refresh(self) -> None:
        """Adopt the active tuning. On any failure the present one stays."""
        if self._classifier is None:
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                version = await self._source.active_version()
                if version == self._seen:
                    return
                tuning = await self._source.active_tuning() if version is not None else None
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            # The driver's message may hold the address.
            self._log_once(f"the tuning in use cannot be looked up: {type(error).__name__}")
            return
        except LearningError as error:
            self._seen = version
            self._log_once(str(error))
            return
        self._seen = tuning.version if tuning is not None else None
        if tuning is not None and tuning.artifact != self._classifier.artifact:
            self._log_once(
                f"tuning {tuning.version} belongs to another trained model and is not used; "
                "`weighbridge classifier recalibrate` makes one for this model"
            )
            tuning = None
        self._apply(self._classifier, tuning)

    def _apply(self, classifier: Trained, tuning: Tuning | None) -> None:
        version = tuning.version if tuning is not None else None
        if version == self.version:
            return
        try:
            classifier.tune(tuning)
        except ValueError as error:
            self._log_once(f"tuning {version} does not fit the trained model and is not used: {error}")
            return
        self.version = version
        _log.warning("weighing with %s", "no tuning, as trained" if version is None else f"tuning {version}")
        self._changed()

    def _log_once(self, message: str) -> None:
        """Log a message unless it repeats the last one, as refreshes come every few seconds."""
        if message != self._last_logged:
            self._last_logged = message
            _log.warning("%s", message)
