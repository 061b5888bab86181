"""The trained classifier: features, one small ONNX graph, the blend with the rule, the calibration."""

import importlib.resources
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from classifier.config import ClassifierSection
from classifier.features import SHAPES, Features, extract, shape_of, weighings
from classifier.heuristic import (
    HeuristicClassifier,
    asked_tokens,
    bounded_tokens,
    structural_complexity,
    structural_tokens,
)
from classifier.manifest import (
    Artifact,
    ArtifactError,
    ArtifactMalformed,
    Blend,
    Calibration,
    Manifest,
    read_artifact,
)
from classifier.prediction import Prediction, Prompt

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_INPUTS: Final = {"indices": "tensor(int32)", "weights": "tensor(float)", "structure": "tensor(float)"}
_OUTPUTS: Final = ["sums", "plain"]
# Columns of the sums, after one for each shape.
_SQUARES_AT: Final = len(SHAPES)
_KNOWN_SUM_AT: Final = len(SHAPES) + 1
_SMALLEST_NORM: Final = 1e-6
# What `raw` gives, after a gain for each shape.
_KNOWN_AT: Final = len(SHAPES)
_LENGTH_AT: Final = len(SHAPES) + 1
_SEVEREST_ONLY: Final = 4


class NotFinite(Exception):
    """The graph gave something that is no number."""


class RuntimeMissing(ArtifactError):
    """onnxruntime is not installed, or is broken."""


def _session(model: bytes) -> "InferenceSession":
    # onnxruntime reads this when it loads; its telemetry would leave a file in the folder for temporary ones.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime as ort  # noqa: PLC0415 - Without it the rule serves.
    except Exception as error:  # A library that is broken fails in its own way.
        raise RuntimeMissing(f"onnxruntime does not load: {type(error).__name__}") from error
    options = ort.SessionOptions()
    # The graph takes microseconds: handing it to other threads would cost more than it saves.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _SEVEREST_ONLY
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base class.
        raise ArtifactMalformed(f"the graph does not load: {type(error).__name__}") from error
    if {one.name: one.type for one in session.get_inputs()} != _INPUTS:
        raise ArtifactMalformed("the graph takes other inputs than these features")
    return session


class OnnxClassifier:
    """Scores with the trained model; a prompt that it cannot score is scored by the rule, and counted."""

    fallback_reason: None = None

    def __init__(self, artifact: Artifact) -> None:
        self.manifest: Manifest = artifact.manifest
        self.fallbacks = 0
        self._session = _session(artifact.model)
        self._rule = HeuristicClassifier()
        self._blend: Blend = artifact.manifest.blend
        self._calibration: Calibration = artifact.manifest.calibration

    def classify(self, prompt: Prompt) -> Prediction:
        try:
            return self._weigh(prompt)
        except Exception:  # noqa: BLE001 - A request must never fail because it could not be weighed.
            self.fallbacks += 1
            return self._rule.classify(prompt)

    def raw(self, features: Features) -> list[float]:
        """What the model says: a gain for each shape, the share of known words, the log of the reply's tokens."""
        sums, plain = self._session.run(
            _OUTPUTS,
            {
                "indices": features.indices,
                "weights": weighings(features.counts),
                "structure": features.structure,
            },
        )
        sublinear, squared, counted = sums.tolist()
        norm = max(math.sqrt(squared[_SQUARES_AT]), _SMALLEST_NORM)
        *facts, log_tokens = plain.tolist()
        # The sums have two columns more than there are shapes.
        gains = [words / norm + fact for words, fact in zip(sublinear, facts, strict=False)]
        return [*gains, counted[_KNOWN_SUM_AT] / max(1, features.terms), log_tokens]

    def _weigh(self, prompt: Prompt) -> Prediction:
        features = extract(prompt)
        values = self.raw(features)
        shape = shape_of(features)
        rule = structural_complexity(features)
        trust = self._blend.trust_in(shape, values[_KNOWN_AT], features.terms)
        gain = self._blend.gain(values[shape], rule, trust)
        if not math.isfinite(gain):
            raise NotFinite("gain")
        tokens = asked_tokens(prompt.text, features) or blended_tokens(values[_LENGTH_AT], rule, trust)
        return Prediction(
            complexity=self._calibration.complexity_of(gain),
            source="onnx",
            expected_output_tokens=bounded_tokens(tokens),
        )


def blended_tokens(log_tokens: float, rule: float, trust: float) -> float:
    """The model's and the rule's length, mixed as factors."""
    return math.exp(trust * log_tokens + (1 - trust) * math.log(structural_tokens(rule)))


def warmed(classifier: OnnxClassifier) -> OnnxClassifier:
    """The first run allocates; have that behind us before the first request."""
    classifier.raw(extract(Prompt(text="")))
    return classifier


def open_classifier(folder: Path | None = None) -> OnnxClassifier:
    """The classifier from `folder`, or the packaged one; raises ArtifactError when it cannot be used."""
    if folder is not None:
        return warmed(OnnxClassifier(read_artifact(folder)))
    with importlib.resources.as_file(importlib.resources.files("classifier") / "artifacts") as packaged:
        return warmed(OnnxClassifier(read_artifact(packaged)))


def load_classifier(section: ClassifierSection) -> OnnxClassifier | HeuristicClassifier:
    """The trained classifier, or the heuristic with the reason in its `fallback_reason`."""
    if not section.enabled:
        return HeuristicClassifier("disabled by configuration")
    try:
        return open_classifier(section.artifact_dir)
    except ArtifactError as error:
        return HeuristicClassifier(f"{type(error).__name__}: {error}")
