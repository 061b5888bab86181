"""The trained classifier: features, an ONNX graph, the blend with the heuristic, abilities and calibration."""

import importlib.resources
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.config import ClassifierSection
from classifier.features import Features, extract, shape_of
from classifier.heuristic import (
    HeuristicClassifier,
    asked_tokens,
    bounded_tokens,
    structural_complexity,
    structural_tokens,
)
from classifier.learning.groups import GroupTable
from classifier.learning.labels import probability
from classifier.manifest import Artifact, ArtifactError, ArtifactMalformed, Manifest, read_artifact
from classifier.prediction import Prediction, Prompt, TargetPrediction
from classifier.runtime import open_session
from classifier.sample import Sample, read_sample
from classifier.sketch import sketch
from classifier.tuning import SKETCH, Ability, Group, Tuning

Floats = NDArray[np.float64]

_INPUTS: Final = {"indices": "tensor(int32)", "counts": "tensor(float)", "structure": "tensor(float)"}
_OUTPUTS: Final = ["loads", "kinds", "known_terms", "likeness", "log_tokens"]
NINE_IN_TEN: Final = 1.645
"""Standard deviations to either side of the mean that hold 90 % of a normal distribution."""
_ARTIFACT_CHARS: Final = 12
_MAX_LOG_TOKENS: Final = 30.0


class NotFinite(Exception):
    """The graph returned infinity or NaN."""


class NetworkOutput(msgspec.Struct, frozen=True):
    """The graph's outputs for one prompt, before any blending."""

    loads: Floats
    kinds: list[float]
    known_share: float
    likeness: float
    log_tokens: float


class PlacedPrompt(msgspec.Struct, frozen=True):
    """A prompt's loads as abilities take them: the network's and the rule's, mixed by trust."""

    loads: Floats
    spread: float
    """Standard deviation of the error of a difference of two probabilities."""
    log_tokens: float
    log_tokens_p90: float


class AbilityTable:
    """Abilities by name, as one matrix."""

    def __init__(self, abilities: Mapping[str, Ability]) -> None:
        self.names = tuple(abilities)
        self.rows = {name: at for at, name in enumerate(self.names)}
        self._weights = np.array([each.weights for each in abilities.values()], np.float64)
        self._bias = np.array([each.bias for each in abilities.values()], np.float64)
        self.log_lengths = [each.log_length for each in abilities.values()]

    def logits(self, loads: Floats) -> Floats:
        """Logits of shape (abilities,) for one prompt's loads, or (prompts, abilities) for many."""
        if not self.names:
            return np.zeros((*loads.shape[:-1], 0))
        said: Floats = loads @ self._weights.T + self._bias
        return said


class OnnxClassifier:
    """Scores with the trained model; a prompt that it cannot score falls back to the heuristic, and is counted."""

    fallback_reason: None = None

    def __init__(self, artifact: Artifact, abilities: Mapping[str, str] = {}) -> None:
        self.manifest: Manifest = artifact.manifest
        self.artifact = artifact.manifest.model_sha256[:_ARTIFACT_CHARS]
        self.loads = len(artifact.manifest.blend.loads[0])
        self.fallbacks = 0
        self._session = open_session(artifact.model, _INPUTS)
        self._sample = read_sample(artifact.sample, self.loads + SKETCH)
        self._rule = HeuristicClassifier()
        self._knots = np.array(artifact.manifest.blend.rule)
        self._rule_loads = np.array(artifact.manifest.blend.loads)
        self._all_abilities = AbilityTable(artifact.manifest.abilities)
        weak, strong = artifact.manifest.calibration.weak, artifact.manifest.calibration.strong
        self._calibration_rows = [self._all_abilities.rows[name] for name in (*weak, *strong)]
        # A dot product with these is the strong ones' mean less the weak ones'.
        self._gain_weights = np.array([-1 / len(weak)] * len(weak) + [1 / len(strong)] * len(strong))
        self._tuning: Tuning | None = None
        self.abilities: dict[str, Ability] = {}
        self.adopt(abilities)

    def classify(self, prompt: Prompt, team_id: str = "") -> Prediction:
        """The prediction for a prompt, with the shifts of the team's groups. Never raises."""
        try:
            features = extract(prompt)
            return self._prediction(prompt, features, self.place(features), team_id)
        except Exception:  # noqa: BLE001 - A request must never fail because it could not be weighed.
            self.fallbacks += 1
            return self._rule.classify(prompt)

    def adopt(self, abilities: Mapping[str, str]) -> None:
        """Sets the targets, with the name of each one's ability. A target of an unknown ability gets no prediction."""
        known = self.manifest.abilities
        named = {target_id: known[name] for target_id, name in abilities.items() if name in known}
        self._rebuild(named, self._tuning)

    def tune(self, tuning: Tuning | None) -> None:
        """Puts a tuning in use, or none. A tuning of another artifact counts as none.

        Raises ValueError for one that does not fit; then the present one stays.
        """
        self._rebuild(self.abilities, tuning if tuning is not None and tuning.artifact == self.artifact else None)

    @property
    def measured(self) -> frozenset[str]:
        """Targets with a row, shipped or learned; the others go by their declared capability."""
        return frozenset(self._table.names)

    def sample(self) -> Sample:
        """Held-out prompts of the training data, as numbers."""
        return self._sample

    def adequacies(self, vectors: NDArray[np.float32], target_ids: Sequence[str]) -> Floats:
        """(n, targets): probabilities that these targets' answers are adequate. Raises KeyError for an unknown target."""
        # Asked in threads, too, while a reload or a tuning may put another table in its place.
        table = self._table
        rows = [table.rows[target_id] for target_id in target_ids]
        return probability(table.logits(vectors[:, : self.loads].astype(np.float64))[:, rows])

    def raw(self, features: Features) -> NetworkOutput:
        """The graph's outputs for one prompt."""
        loads, kinds, known, likeness, log_tokens = self._session.run(
            _OUTPUTS,
            {
                "indices": features.indices,
                "counts": features.counts.astype(np.float32),
                "structure": features.structure,
            },
        )
        return NetworkOutput(
            loads=loads.astype(np.float64),
            kinds=kinds.tolist(),
            known_share=float(known) / max(1, features.terms),
            likeness=float(likeness),
            log_tokens=float(log_tokens[0]),
        )

    def place(self, features: Features) -> PlacedPrompt:
        """The network's loads and the rule's, mixed by the trust in the network. Raises NotFinite."""
        said = self.raw(features)
        kind = max(range(len(said.kinds)), key=said.kinds.__getitem__)
        spread = self.manifest.spread[self.manifest.kinds[kind]]
        rule = structural_complexity(features)
        trust = self.manifest.blend.trust_in(shape_of(features), said.known_share, features.terms, said.likeness)
        loads = trust * said.loads + (1 - trust) * self._loads_of_rule(rule)
        if not math.isfinite(float(loads.sum()) + said.log_tokens):
            raise NotFinite("loads or length")
        # Lengths are mixed as factors.
        lengths = self.manifest.lengths
        p90 = trust * lengths.network_p90 + (1 - trust) * lengths.rule_p90
        log_tokens = trust * said.log_tokens + (1 - trust) * math.log(structural_tokens(rule))
        spread = trust * spread + (1 - trust) * self.manifest.spread["rule"]
        return PlacedPrompt(loads, spread, log_tokens, log_tokens + math.log(p90))

    def complexity_of(self, placed: PlacedPrompt) -> float:
        """The share of the training prompts that gain less from a strong model than this one, in [0, 1]."""
        chances = probability(self._all_abilities.logits(placed.loads)[self._calibration_rows])
        return self.manifest.calibration.complexity_of(float(self._gain_weights @ chances))

    def _prediction(self, prompt: Prompt, features: Features, placed: PlacedPrompt, team_id: str) -> Prediction:
        drawn = sketch(features)
        group = self._groups.assign(team_id, drawn) if self._groups is not None else None
        asked = asked_tokens(prompt.text, features)
        log_tokens, log_p90 = placed.log_tokens, placed.log_tokens_p90
        if asked is not None:
            log_p90 += math.log(asked) - log_tokens
            log_tokens = math.log(asked)
        return Prediction(
            complexity=self.complexity_of(placed),
            source="onnx",
            expected_output_tokens=_bounded_tokens(log_tokens),
            output_tokens_p90=_bounded_tokens(log_p90),
            outlooks=self._outlooks(placed, log_tokens, log_p90, group),
            vector=np.concatenate([placed.loads, drawn]).astype("<f2").tobytes(),
            artifact=self.artifact,
            group=group.group_id if group is not None else None,
        )

    def _outlooks(
        self, placed: PlacedPrompt, log_tokens: float, log_p90: float, group: Group | None
    ) -> dict[str, TargetPrediction]:
        table = self._table
        logits = table.logits(placed.loads)
        if group is not None:
            logits = logits + [group.shift.get(name, 0.0) for name in table.names]
        chances = probability(logits)
        # Half of a difference's uncertainty lies on either target.
        reach = NINE_IN_TEN * placed.spread / 2
        return {
            name: TargetPrediction(
                adequate=chance,
                low=max(0.0, chance - reach),
                high=min(1.0, chance + reach),
                output_tokens=_bounded_tokens(log_tokens + length),
                output_tokens_p90=_bounded_tokens(log_p90 + length),
            )
            for name, chance, length in zip(table.names, chances.tolist(), table.log_lengths, strict=True)
        }

    def _loads_of_rule(self, complexity: float) -> Floats:
        above = int(np.searchsorted(self._knots, complexity))
        if above == 0 or above == len(self._knots):
            found: Floats = self._rule_loads[min(above, len(self._knots) - 1)]
            return found
        left, right = self._knots[above - 1], self._knots[above]
        part = (complexity - left) / (right - left)
        mixed: Floats = (1 - part) * self._rule_loads[above - 1] + part * self._rule_loads[above]
        return mixed

    def _rebuild(self, abilities: dict[str, Ability], tuning: Tuning | None) -> None:
        """Replaces table and groups together; everything is built first, so a failure changes nothing."""
        learned = tuning.abilities if tuning is not None else {}
        fitting = {name: row for name, row in learned.items() if len(row.weights) == self.loads and _is_finite(row)}
        # Learned rows are of targets; one that is configured no more is left out by whoever plans.
        table = AbilityTable({**abilities, **fitting})
        groups = GroupTable(tuning.groups) if tuning is not None and tuning.groups else None
        self.abilities, self._tuning, self._table, self._groups = abilities, tuning, table, groups


def _is_finite(ability: Ability) -> bool:
    return math.isfinite(sum(ability.weights) + ability.bias + ability.log_length)


def _bounded_tokens(log_tokens: float) -> int:
    return bounded_tokens(math.exp(min(_MAX_LOG_TOKENS, log_tokens)))


def warmed(classifier: OnnxClassifier) -> OnnxClassifier:
    """The classifier after a first run, which allocates. Raises ArtifactMalformed when the graph does not fit the
    manifest.
    """
    try:
        raw = classifier.raw(extract(Prompt(text="")))
    except Exception as error:  # onnxruntime's errors share no base class.
        raise ArtifactMalformed(f"the graph does not run: {type(error).__name__}") from error
    if raw.loads.shape != (classifier.loads,) or len(raw.kinds) != len(classifier.manifest.kinds):
        raise ArtifactMalformed("the graph gives other outputs than the manifest describes")
    return classifier


def open_classifier(folder: Path | None = None, abilities: Mapping[str, str] = {}) -> OnnxClassifier:
    """The classifier from `folder`, or the packaged one. Raises ArtifactError."""
    if folder is not None:
        return warmed(OnnxClassifier(read_artifact(folder), abilities))
    with importlib.resources.as_file(importlib.resources.files("classifier") / "artifacts") as packaged:
        return open_classifier(packaged, abilities)


def load_classifier(
    section: ClassifierSection, abilities: Mapping[str, str] = {}
) -> OnnxClassifier | HeuristicClassifier:
    """The trained classifier, or the heuristic with the reason in its `fallback_reason`."""
    if not section.enabled:
        return HeuristicClassifier("disabled by configuration")
    try:
        return open_classifier(section.artifact_dir, abilities)
    except ArtifactError as error:
        return HeuristicClassifier(f"{type(error).__name__}: {error}")
