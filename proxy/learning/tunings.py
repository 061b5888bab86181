"""What was learned from own traffic on its way into use: proposed, accepted, taken over by every server, taken back."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.learning.labels import MAX_LABELS
from classifier.learning.recalibrate import MIN_LABELS, Known, Proposal, Report, recalibrate
from classifier.learning.silence import MAX_SILENT, silent_answers
from classifier.learning.store import LearningError, LearningStore, TuningRecord
from classifier.prediction import Classifier
from classifier.tuning import Ability, Tuning
from providers.catalog import Catalog

_log: Final = logging.getLogger("weighbridge.tunings")

_MOST_SPOKEN: Final = MAX_LABELS - MAX_SILENT
_SHARE_OF_A_TEAM: Final = 0.4
"""Of the labels that are read, so that a busy team does not crowd out the others."""
_PATIENCE_S: Final = 5.0
"""A start waits no longer for a database that is silent."""
AS_TRAINED: Final = 0
"""Stands for no tuning at all."""


class TuningRefused(Exception):
    """A tuning cannot be made, accepted or taken back as asked. The message says why."""


@runtime_checkable
class Trained(Protocol):
    """What of a trained classifier is needed to refit it; the plain rule has none of this."""

    @property
    def artifact(self) -> str:
        """Names the trained model; vectors and tunings of another one do not fit."""
        ...

    @property
    def loads(self) -> int:
        """How many numbers of a vector stand before its sketch."""
        ...

    @property
    def abilities(self) -> Mapping[str, Ability]:
        """The shipped rows by target id, without any tuning."""
        ...

    def tune(self, tuning: Tuning | None) -> None:
        """Takes over what was learned after the training; None goes back to the shipped rows."""
        ...


def known_of(classifier: Classifier, catalog: Catalog, tuning: Tuning | None) -> Known:
    """What a refit starts from. Raises TuningRefused when there is no trained model."""
    if not isinstance(classifier, Trained):
        raise TuningRefused("no trained model is in use, and the plain rule has nothing to refit")
    return Known(
        artifact=classifier.artifact,
        loads=classifier.loads,
        abilities=classifier.abilities,
        capabilities={target_id: target.capability for target_id, target in catalog.targets.items()},
        tuning=tuning,
    )


async def propose(
    engine: AsyncEngine, classifier: Classifier, catalog: Catalog, team_id: str | None = None
) -> Proposal:
    """A tuning from everything that is stored. Raises TuningRefused or TooFewLabels; writes nothing."""
    store = LearningStore(engine)
    active = await store.active_tuning()
    known = known_of(classifier, catalog, active)
    spoken = await store.outcomes(
        known.artifact,
        _MOST_SPOKEN,
        team_id=team_id,
        per_team=None if team_id is not None else round(_MOST_SPOKEN * _SHARE_OF_A_TEAM),
    )
    # What is no longer configured gets no row.
    spoken = [outcome for outcome in spoken if outcome.target_id in catalog.targets]
    counts = Counter(outcome.target_id for outcome in spoken)
    # Silence about a target that nobody speaks of may only mean that nobody listens.
    spoken_of = {target_id for target_id, count in counts.items() if count >= MIN_LABELS}
    since_us = min((outcome.at_us for outcome in spoken), default=0)
    silent = await silent_answers(engine, known.artifact, since_us=since_us, team_id=team_id) if spoken_of else []
    outcomes = [*spoken, *(outcome for outcome in silent if outcome.target_id in spoken_of)]
    return recalibrate(outcomes, known, version=(active.version if active is not None else 0) + 1, team_id=team_id)


async def accept(store: LearningStore, proposal: Proposal) -> int:
    """Keeps a proposal and puts it in use. Raises TuningRefused when it brings nothing."""
    if not proposal.report.improves:
        raise TuningRefused("nothing got better on the held-out requests, so there is nothing to accept")
    before = await store.active_version()
    version = await store.add_tuning(proposal.tuning, metrics=metrics_of(proposal.report, before))
    await store.activate(version)
    return version


def metrics_of(report: Report, before: int | None) -> dict[str, Any]:
    """What stays readable beside a version; `before` is the version that it took the place of."""
    return {"before": before, **msgspec.to_builtins(report)}


async def roll_back(store: LearningStore, version: int | None = None) -> int:
    """Goes back to a version, or to the one that the present one took the place of. Tells which is in use now.

    AS_TRAINED is none. Raises TuningRefused or UnknownTuning.
    """
    if version is None:
        version = _before(await store.tunings())
    await store.activate(None if version == AS_TRAINED else version)
    return version


def _before(records: list[TuningRecord]) -> int:
    active = next((record for record in records if record.active), None)
    if active is None:
        raise TuningRefused("no tuning is in use; the targets are weighed as trained")
    before = active.metrics.get("before")
    return before if isinstance(before, int) else AS_TRAINED


class TuningWatch:
    """Brings an accepted tuning into this process: asks every few seconds which version is in use."""

    def __init__(
        self, store: LearningStore, classifier: Classifier, changed: Callable[[], None] = lambda: None
    ) -> None:
        """`changed` is called after the classifier took another tuning over."""
        self._store = store
        self._classifier = classifier if isinstance(classifier, Trained) else None
        self._changed = changed
        self._seen: int | None = None
        self._told: str | None = None
        self.version: int | None = None
        """The version that this process weighs with; None is as trained."""

    async def refresh(self) -> None:
        """Takes over what is in use now. Whatever goes wrong, the present tuning stays."""
        if self._classifier is None:
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                version = await self._store.active_version()
                if version == self._seen:
                    return
                tuning = await self._store.active_tuning() if version is not None else None
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            # The driver's message may hold the address.
            self._tell(f"the tuning in use cannot be looked up: {type(error).__name__}")
            return
        except LearningError as error:
            self._seen = version
            self._tell(str(error))
            return
        self._seen = tuning.version if tuning is not None else None
        if tuning is not None and tuning.artifact != self._classifier.artifact:
            self._tell(
                f"tuning {tuning.version} belongs to another trained model and is not used; "
                "`weighbridge classifier recalibrate` makes one for this model"
            )
            tuning = None
        self._take(self._classifier, tuning)

    def _take(self, classifier: Trained, tuning: Tuning | None) -> None:
        version = tuning.version if tuning is not None else None
        if version == self.version:
            return
        try:
            classifier.tune(tuning)
        except ValueError as error:
            self._tell(f"tuning {version} does not fit the trained model and is not used: {error}")
            return
        self.version = version
        _log.warning("weighing with %s", "no tuning, as trained" if version is None else f"tuning {version}")
        self._changed()

    def _tell(self, message: str) -> None:
        """Once, not every few seconds."""
        if message != self._told:
            self._told = message
            _log.warning("%s", message)
