"""The classifier's input and output types."""

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

PredictionSource = Literal["onnx", "heuristic"]
"""The scorer: the trained model, or the heuristic."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a request that the classifier reads: text and a few facts, nothing of the caller."""

    text: str
    """The last user message."""
    system: str = ""
    """System and developer messages, joined."""
    before: str = ""
    """The user message before the last one."""
    history: str = ""
    """Every message before the last user message, joined, oldest first."""
    since: str = ""
    """The messages after it within its turn: the model's own words and tools' results, joined."""
    proposal: str = ""
    """The assistant's last words before the last user message."""
    turns: int = 1
    tools: int = 0
    images: int = 0
    json_mode: bool = False
    effort: str = ""
    """The reasoning effort that the request asks for, as one of `known_models.EFFORTS`; empty for the provider's default."""


class TargetPrediction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One target's predicted answer to one prompt.

    `adequate` is the probability, in [0, 1], that the answer is adequate; `low` and `high` bound it with 90 %
    confidence. Output tokens are the median and the 90th percentile.
    """

    adequate: float
    low: float
    high: float
    output_tokens: int
    output_tokens_p90: int


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's complexity, and a prediction for each target with known outcomes.

    `complexity` is in [0, 1]: the expected tier / 3, of tier 0 (a look-up or a pleasantry), 1 (everyday work), 2 (skilled
    work where small models slip) and 3 (several dependent steps, expertise, or a proof). The rubric is
    classifier/training/tiers/RUBRIC.md.
    """

    complexity: float
    source: PredictionSource
    kind: str = ""
    """The kind of task, such as `code`; empty where none is clear. It is for people: nothing is decided by it."""
    expected_output_tokens: int
    """Median of the answer's length."""
    output_tokens_p90: int = 0
    """90th percentile of the answer's length."""
    outlooks: Mapping[str, TargetPrediction] = {}
    """Prediction by target id. Targets without a row have none; the heuristic gives none at all."""
    best_known: float | None = None
    """P(adequate) of the best of all models that the classifier has rows of; None where it has none."""
    vector: bytes = b""
    """Loads, then the sketch, as little-endian float16. Abilities are refitted from it, so no text need be kept."""
    artifact: str = ""
    """Id of the trained model that made the vector; vectors of different artifacts cannot be compared."""
    group: str | None = None
    """Id of the team's group of similar prompts that the prompt falls into, if any."""


class Classifier(Protocol):
    """A scorer of one prompt: no I/O, bounded milliseconds of CPU, never raises."""

    def classify(self, prompt: Prompt, team_id: str = "", *, learns: bool = True) -> Prediction:
        """Return the prediction for a prompt. Its `vector` is empty where nothing is learned from it."""
        ...
