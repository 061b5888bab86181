"""What goes into the classifier and what comes out."""

from typing import Literal, Protocol

import msgspec

PredictionSource = Literal["onnx", "heuristic"]


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


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """How hard a prompt is.

    `complexity` is in [0, 1]: the share of the training prompts that gain less from a strong model
    than this one does. 0.7 reads "harder than 70 % of what was seen".
    """

    complexity: float
    source: PredictionSource
    expected_output_tokens: int


class Classifier(Protocol):
    """Scores one prompt: no I/O, bounded milliseconds of CPU, never raises."""

    def classify(self, prompt: Prompt) -> Prediction: ...
