"""What goes into the classifier and what comes out."""

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

PredictionSource = Literal["onnx", "heuristic"]
"""Who weighed: the trained model, or the plain rule."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What the classifier sees of a request: text and a few facts, nothing of the caller."""

    text: str
    """The last user message."""
    system: str = ""
    """System and developer messages, joined."""
    history: str = ""
    """Every other earlier message, joined, oldest first."""
    turns: int = 1
    tools: int = 0
    images: int = 0
    json_mode: bool = False


class TargetPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """What one target is likely to make of one prompt.

    `adequate` is the probability, in [0, 1], that its answer is adequate; `low` and `high` bound what a
    better weigher would say of it in nine cases of ten. Output tokens are the median and the 90th percentile.
    """

    adequate: float
    low: float
    high: float
    output_tokens: int
    output_tokens_p90: int


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """How hard a prompt is, and what each target with known outcomes would make of it.

    `complexity` is in [0, 1]: the share of the training prompts that gain less from a strong model
    than this one does. 0.7 reads "harder than 70 % of what was seen".
    """

    complexity: float
    source: PredictionSource
    expected_output_tokens: int
    """The median."""
    output_tokens_p90: int = 0
    outlooks: Mapping[str, TargetPrediction] = {}
    """By target id; a target whose ability was never measured has none, and nothing has one from the heuristic."""
    vector: bytes = b""
    """The prompt's side as little-endian float16: loads, then the sketch. Abilities are refitted from it, text is not kept."""
    artifact: str = ""
    """Which trained model made the vector: two vectors can be compared only when this is the same."""
    group: str | None = None
    """The team's group of similar prompts that this one fell into."""


class Classifier(Protocol):
    """Scores one prompt: no I/O, bounded milliseconds of CPU, never raises."""

    def classify(self, prompt: Prompt, team_id: str = "") -> Prediction: ...
