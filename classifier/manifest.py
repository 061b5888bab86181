"""What lies beside model.onnx: how to read it, what it was made of, and how good it was."""

import bisect
import hashlib
import math
from pathlib import Path
from typing import Any, Final

import msgspec

from classifier.features import SHAPES, feature_hash
from classifier.prediction import Prompt

FORMAT: Final = 1
MODEL_FILE: Final = "model.onnx"
MANIFEST_FILE: Final = "manifest.json"
_FEWEST_KNOTS: Final = 2
MAX_MODEL_BYTES: Final = 16 * 2**20
MAX_MANIFEST_BYTES: Final = 2**20


class ArtifactError(Exception):
    """A trained model that cannot be used."""


class ArtifactMissing(ArtifactError):
    """There is no such file, or it cannot be read."""


class ArtifactMalformed(ArtifactError):
    """The manifest is not one, or its tables make no sense."""


class ArtifactMismatch(ArtifactError):
    """The model, the manifest and this code do not belong together."""


class Blend(msgspec.Struct, frozen=True, kw_only=True):
    """How far the model is trusted, and what stands in where it is not.

    The model knows exam questions, sums, puzzles in code and tool calls. Of other text it knows few
    words, and a short text has few words to know, so there the structural rule leads.
    """

    trust: dict[str, float]
    """The most that the model is trusted, by shape."""
    known_from: float
    known_to: float
    """Of open text: no trust up to this share of known words, full trust from this one."""
    half_terms: float
    """Of open text: with so many words and pairs trust is halved."""
    full_terms_tools: float
    """Of a request with tools: trust grows with words and pairs up to so many. "hi" beside ten tools is "hi"."""
    low_gain: float
    high_gain: float
    """The gains that the rule's 0 and 1 stand for."""

    def trust_in(self, shape: int, known_share: float, terms: float) -> float:
        most = self.trust[SHAPES[shape]]
        if SHAPES[shape] == "choice":
            return most
        if SHAPES[shape] == "tools":
            return most * min(1.0, terms / self.full_terms_tools)
        known = (known_share - self.known_from) / (self.known_to - self.known_from)
        return most * min(1.0, max(0.0, known)) * terms / (terms + self.half_terms)

    def gain(self, model_gain: float, rule: float, trust: float) -> float:
        prior = self.low_gain + (self.high_gain - self.low_gain) * rule
        return trust * model_gain + (1 - trust) * prior


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Gain to share of the training prompts below it: rising knots, straight lines between."""

    gain: list[float]
    complexity: list[float]

    def __post_init__(self) -> None:
        both = (*self.gain, *self.complexity)
        if (
            len(self.gain) != len(self.complexity)
            or len(self.gain) < _FEWEST_KNOTS
            or not all(map(math.isfinite, both))
        ):
            raise ValueError("calibration needs two columns of at least two finite numbers")
        rising = all(a < b for a, b in zip(self.gain, self.gain[1:], strict=False))
        rising = rising and all(a <= b for a, b in zip(self.complexity, self.complexity[1:], strict=False))
        if not rising or self.complexity[0] < 0 or self.complexity[-1] > 1:
            raise ValueError("calibration must rise within [0, 1]")

    def complexity_of(self, gain: float) -> float:
        above = bisect.bisect_right(self.gain, gain)
        if above == 0:
            return self.complexity[0]
        if above == len(self.gain):
            return self.complexity[-1]
        left, right = self.gain[above - 1], self.gain[above]
        low, high = self.complexity[above - 1], self.complexity[above]
        return low + (high - low) * (gain - left) / (right - left)


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with the prediction that the training run made for it."""

    prompt: Prompt
    complexity: float
    expected_output_tokens: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    feature_hash: str
    model_sha256: str
    data_sha256: str
    seed: int
    rows: dict[str, int]
    libraries: dict[str, str]
    blend: Blend
    calibration: Calibration
    references: list[Reference]
    metrics: dict[str, Any]
    training: dict[str, Any]


class Artifact(msgspec.Struct, frozen=True):
    model: bytes
    manifest: Manifest


def read_artifact(folder: Path) -> Artifact:
    """The model and its manifest, once they are known to belong to each other and to this code."""
    model = _read(folder / MODEL_FILE, MAX_MODEL_BYTES)
    try:
        manifest = msgspec.json.decode(_read(folder / MANIFEST_FILE, MAX_MANIFEST_BYTES), type=Manifest)
    except msgspec.DecodeError as error:
        raise ArtifactMalformed(f"{MANIFEST_FILE}: {error}") from error
    if manifest.format != FORMAT:
        raise ArtifactMismatch(f"the manifest has format {manifest.format}, this code reads {FORMAT}")
    if manifest.feature_hash != feature_hash():
        raise ArtifactMismatch("the model was trained with other feature code; train it anew")
    if manifest.model_sha256 != hashlib.sha256(model).hexdigest():
        raise ArtifactMismatch(f"{MODEL_FILE} is not the file that the manifest describes")
    return Artifact(model, manifest)


def write_artifact(folder: Path, artifact: Artifact) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_FILE).write_bytes(artifact.model)
    text = msgspec.json.format(msgspec.json.encode(artifact.manifest), indent=1)
    (folder / MANIFEST_FILE).write_bytes(text + b"\n")


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise ArtifactMissing(f"{path.name} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise ArtifactMalformed(f"{path.name} is larger than {limit} bytes")
    return content
