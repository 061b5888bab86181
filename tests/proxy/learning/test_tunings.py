"""Tunings: proposed from what is stored, in use only when accepted, followed by servers, and taken back."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from classifier.heuristic import HeuristicClassifier
from classifier.learning.recalibrate import MIN_LABELS, TooFewLabels
from classifier.learning.silence import NOTICED, silent_answers
from classifier.learning.store import ClassifiedRequest, LearningStore, UnknownTuning, Verdict
from classifier.prediction import Prediction, Prompt
from classifier.tuning import SKETCH, Ability, Tuning
from gateway.database import make_engine
from providers.catalog import Catalog
from proxy.learning.tunings import AS_TRAINED, TuningRefused, TuningWatch, accept, propose, roll_back
from tests.classifier.learning.simulated import LOADS, ability, verdicts
from tests.proxy.plan.test_route_plan import target

CATALOG = Catalog(targets={name: target(name) for name in ("cheap", "dear")})


class TrainedTwin:
    """A trained model's side of learning, with made-up rows, and a note of what it was told."""

    def __init__(self, artifact: str = "a1") -> None:
        self.artifact = artifact
        self.loads = LOADS
        self.abilities: Mapping[str, Ability] = {"cheap": ability(1.0, bias=2.0), "dear": ability(0.5, bias=2.0)}
        self.tuned: list[int | None] = []

    def classify(self, prompt: Prompt, team_id: str = "", *, learns: bool = True) -> Prediction:
        return HeuristicClassifier().classify(prompt)

    def tune(self, tuning: Tuning | None) -> None:
        if tuning is not None and any(len(row.weights) != self.loads for row in tuning.abilities.values()):
            raise ValueError("a row of another length")
        self.tuned.append(tuning.version if tuning is not None else None)


@pytest.fixture
def store(engine: AsyncEngine) -> LearningStore:
    return LearningStore(engine)


async def fill(store: LearningStore, prompts: int = 300, *, artifact: str = "a1", target_id: str = "cheap") -> None:
    """Verdicts that find the target far worse than its shipped row says."""
    rng = np.random.default_rng(1)
    made = verdicts(
        {target_id: ability(1.0, bias=-1.0)}, rng.normal(size=(prompts, LOADS)), np.zeros((prompts, SKETCH)), rng
    )
    common: dict[str, Any] = {"organisation_id": "o", "team_id": "team_a", "target_id": target_id}
    await store.add(
        [
            ClassifiedRequest(
                request_id=each.request_id,
                at_us=each.at_us,
                artifact=artifact,
                vector=each.vector,
                complexity=0.5,
                **common,
            )
            for each in made
        ],
        [
            Verdict(
                request_id=each.request_id,
                at_us=each.at_us,
                source="feedback",
                signal="rating",
                adequate=each.adequate,
                **common,
            )
            for each in made
        ],
    )


async def test_a_proposal_changes_nothing_until_it_is_accepted(engine: AsyncEngine, store: LearningStore) -> None:
    """Without acceptance there is no version; with it one is in use, with what it brought beside it."""
    await fill(store)
    proposal = await propose(engine, TrainedTwin(), CATALOG)
    assert await store.tunings() == []
    assert proposal.report.improves
    version = await accept(store, proposal)
    assert await store.active_version() == version
    (record,) = await store.tunings()
    assert record.active
    assert record.metrics["before"] is None
    assert record.metrics["targets"][0]["verdict"] == "better"
    stored = await store.active_tuning()
    assert stored == msgspec.structs.replace(proposal.tuning, version=version)


async def test_what_brings_nothing_is_not_accepted(engine: AsyncEngine, store: LearningStore) -> None:
    """The present rows stay, and no version is made."""
    await fill(store)
    proposal = await propose(engine, TrainedTwin(), CATALOG)
    worse = [msgspec.structs.replace(each, verdict="worse") for each in proposal.report.targets]
    none_better = msgspec.structs.replace(proposal, report=msgspec.structs.replace(proposal.report, targets=worse))
    with pytest.raises(TuningRefused, match="nothing got better"):
        await accept(store, none_better)
    assert await store.tunings() == []


async def test_only_what_belongs_together_is_read(engine: AsyncEngine, store: LearningStore) -> None:
    """Vectors of another trained model and targets that are no longer configured do not count."""
    await fill(store, artifact="a0")
    with pytest.raises(TooFewLabels, match="none at all"):
        await propose(engine, TrainedTwin(), CATALOG)
    await fill(store, target_id="gone")
    with pytest.raises(TooFewLabels, match="none at all"):
        await propose(engine, TrainedTwin("a0"), CATALOG, team_id="team_b")
    with pytest.raises(TooFewLabels):
        await propose(engine, TrainedTwin(), CATALOG)


async def test_the_plain_rule_has_nothing_to_refit(engine: AsyncEngine, store: LearningStore) -> None:
    """Without a trained model the error says so, and the watch does nothing."""
    with pytest.raises(TuningRefused, match="no trained model"):
        await propose(engine, HeuristicClassifier(), CATALOG)
    watch = TuningWatch(store, HeuristicClassifier())
    await watch.refresh()
    assert watch.version is None


async def test_rolling_back_goes_where_the_present_one_came_from(engine: AsyncEngine, store: LearningStore) -> None:
    """Back means the version that was replaced, not the number before; at the end it is as trained."""
    await fill(store)
    first = await accept(store, await propose(engine, TrainedTwin(), CATALOG))
    unused = await store.add_tuning(Tuning(version=0, artifact="a1"))
    second = await store.add_tuning(Tuning(version=0, artifact="a1"), metrics={"before": first})
    await store.activate(second)
    assert (first, unused, second) == (1, 2, 3)
    assert await roll_back(store) == first
    assert await store.active_version() == first
    assert await roll_back(store) == AS_TRAINED
    assert await store.active_version() is None
    with pytest.raises(TuningRefused, match="no tuning is in use"):
        await roll_back(store)
    assert await roll_back(store, second) == second
    assert await roll_back(store, AS_TRAINED) == AS_TRAINED
    with pytest.raises(UnknownTuning):
        await roll_back(store, 99)


async def test_servers_follow_what_is_in_use(engine: AsyncEngine, store: LearningStore) -> None:
    """Acceptance and rollback both arrive, each once, and whoever depends on them is told."""
    classifier = TrainedTwin()
    changes: list[int | None] = []
    watch = TuningWatch(store, classifier, lambda: changes.append(watch.version))
    await watch.refresh()
    assert classifier.tuned == []
    await fill(store)
    version = await accept(store, await propose(engine, classifier, CATALOG))
    for _ in range(3):
        await watch.refresh()
    await roll_back(store)
    for _ in range(3):
        await watch.refresh()
    assert classifier.tuned == [version, None]
    assert changes == [version, None]


async def test_a_tuning_of_another_model_is_ignored_and_told_once(
    store: LearningStore, caplog: pytest.LogCaptureFixture
) -> None:
    """It could not be right for this one's vectors, so the shipped rows serve."""
    await store.activate(await store.add_tuning(Tuning(version=0, artifact="a0")))
    classifier = TrainedTwin()
    watch = TuningWatch(store, classifier)
    with caplog.at_level(logging.WARNING, "weighbridge.tunings"):
        for _ in range(3):
            await watch.refresh()
    assert (watch.version, classifier.tuned) == (None, [])
    assert len(caplog.records) == 1
    assert "another trained model" in caplog.text


async def test_a_tuning_that_does_not_fit_changes_nothing(
    store: LearningStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A row of another length is refused by the classifier; the present tuning stays."""
    damaged = Tuning(version=0, artifact="a1", abilities={"cheap": Ability(weights=[1.0], bias=0.0)})
    await store.activate(await store.add_tuning(damaged))
    classifier = TrainedTwin()
    watch = TuningWatch(store, classifier)
    await watch.refresh()
    assert (watch.version, classifier.tuned) == (None, [])
    assert "does not fit" in caplog.text


async def test_a_database_that_does_not_answer_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The present tuning stays, it is told once, and the address is not."""
    engine = make_engine("sqlite+aiosqlite:////nowhere/secret-place/db.sqlite")
    watch = TuningWatch(LearningStore(engine), TrainedTwin())
    for _ in range(3):
        await watch.refresh()
    await engine.dispose()
    assert len([record for record in caplog.records if record.name == "weighbridge.tunings"]) == 1
    assert "secret-place" not in caplog.text


async def test_silence_is_the_other_side_of_what_was_noticed(engine: AsyncEngine, store: LearningStore) -> None:
    """Where signals speak against one answer in twenty, the target is found good and not hopeless."""
    rng = np.random.default_rng(2)
    answered = verdicts({"cheap": ability(bias=2.0)}, rng.normal(size=(1_200, LOADS)), np.zeros((1_200, SKETCH)), rng)
    common: dict[str, Any] = {"organisation_id": "o", "team_id": "team_a", "target_id": "cheap"}
    weighings = [
        ClassifiedRequest(
            request_id=each.request_id, at_us=each.at_us, artifact="a1", vector=each.vector, complexity=0.5, **common
        )
        for each in answered
    ]
    noticed = [
        Verdict(
            request_id=each.request_id, at_us=each.at_us, source="implicit", signal="refused", adequate=0.0, **common
        )
        for each in answered
        if each.adequate == 0 and rng.random() < NOTICED * 2
    ]
    assert len(noticed) >= MIN_LABELS
    await store.add(weighings, noticed)
    silent = await silent_answers(engine, "a1")
    assert len(silent) == 1_200 - len(noticed)
    few = await silent_answers(engine, "a1", limit=100)
    assert sum(each.weight for each in few) == pytest.approx(sum(each.weight for each in silent))
    assert await silent_answers(engine, "a1", team_id="team_b") == []
    found = await propose(engine, TrainedTwin(), CATALOG)
    row = found.tuning.abilities.get("cheap") or TrainedTwin().abilities["cheap"]
    assert row.bias > 0.5
