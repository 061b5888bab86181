"""A made-up classifier with abilities and a sample: everything that planning and previews take of the real one."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.prediction import Prediction, Prompt, TargetPrediction
from classifier.tuning import SKETCH, Ability, Tuning
from proxy.plan.quality_tolerance import Sample

LOADS = 2
ARTIFACT = "made-up"


class MadeUpSample(msgspec.Struct, frozen=True, kw_only=True):
    vectors: NDArray[np.float32]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    weights: NDArray[np.float64]


def made_up_sample(seed: int = 0, prompts: int = 300) -> MadeUpSample:
    random = np.random.default_rng(seed)
    return MadeUpSample(
        vectors=random.normal(size=(prompts, LOADS + SKETCH)).astype(np.float32),
        input_tokens=random.integers(10, 3_000, prompts),
        output_tokens=random.integers(10, 800, prompts),
        weights=random.random(prompts) + 0.5,
    )


class MadeUpClassifier:
    """P(adequate) = 1 / (1 + exp(-(bias + weights · loads))). `lengths` are factors on the usual answer."""

    def __init__(
        self,
        abilities: Mapping[str, tuple[float, Sequence[float]]],
        sample: Sample | None = None,
        lengths: Mapping[str, float] | None = None,
    ) -> None:
        self.abilities = dict(abilities)
        self.lengths = dict(lengths or {})
        self.weighed = 0
        self._sample = sample

    @property
    def rows(self) -> dict[str, Ability]:
        """As those of models whose answers were graded."""
        return {name: Ability(weights=list(weights), bias=bias) for name, (bias, weights) in self.abilities.items()}

    def sample(self) -> Sample | None:
        return self._sample

    def adequacies(self, vectors: NDArray[np.float32], target_ids: Sequence[str]) -> NDArray[np.float64]:
        self.weighed += 1
        loads = vectors[:, :LOADS].astype(np.float64)
        logits = [self.abilities[name][0] + loads @ np.array(self.abilities[name][1]) for name in target_ids]
        return np.asarray(1 / (1 + np.exp(-np.column_stack(logits))))

    def tune(self, tuning: Tuning | None) -> None:
        if tuning is not None:
            self.abilities |= {name: (each.bias, each.weights) for name, each in tuning.abilities.items()}

    def classify(self, prompt: Prompt, team_id: str = "", *, learns: bool = True) -> Prediction:
        return self.predicted(np.zeros((1, LOADS + SKETCH), dtype=np.float32), 1_000)

    def predicted(self, vector: NDArray[np.float32], tokens: int) -> Prediction:
        """What it would say of a prompt with this vector."""
        chances = self.adequacies(vector.reshape(1, -1), tuple(self.abilities))[0] if self.abilities else ()
        return Prediction(
            complexity=0.5,
            source="onnx",
            expected_output_tokens=tokens,
            outlooks={
                name: _outlook(float(chance), round(tokens * self.lengths.get(name, 1.0)))
                for name, chance in zip(self.abilities, chances, strict=True)
            },
            vector=vector.astype("<f2").tobytes(),
            artifact=ARTIFACT,
        )


def _outlook(chance: float, tokens: int) -> TargetPrediction:
    fields: dict[str, Any] = {"low": max(0.0, chance - 0.05), "high": min(1.0, chance + 0.05)}
    return TargetPrediction(adequate=chance, output_tokens=tokens, output_tokens_p90=2 * tokens, **fields)
