"""The manifest beside model.onnx: parameters to read the model's outputs with, provenance, and measured quality."""

import bisect
import hashlib
import itertools
import math
from pathlib import Path
from typing import Any, Final

import msgspec

from classifier.features import SHAPES, STRUCTURE, feature_hash
from classifier.prediction import Prompt
from classifier.tuning import Ability

FORMAT: Final = 2
MODEL_FILE: Final = "model.onnx"
MANIFEST_FILE: Final = "manifest.json"
SAMPLE_FILE: Final = "sample.npz"
_MIN_KNOTS: Final = 2
MAX_MODEL_BYTES: Final = 16 * 2**20
MAX_MANIFEST_BYTES: Final = 2**20
MAX_SAMPLE_BYTES: Final = 4 * 2**20


class ArtifactError(Exception):
    """A trained model cannot be used."""


class ArtifactMissing(ArtifactError):
    """A file of the artifact does not exist or cannot be read."""


class ArtifactMalformed(ArtifactError):
    """A file of the artifact cannot be decoded, or its values are inconsistent."""


class ArtifactMismatch(ArtifactError):
    """Model, manifest and this code do not belong together."""


class Blend(msgspec.Struct, frozen=True, kw_only=True):
    """The trust in the network by prompt, and the loads that replace its own where it is not trusted.

    The network knows exam questions, sums, puzzles in code and tool calls. Of other text it knows few words, and a
    short text has few words to know, so there the structural rule leads: a prompt then has the mean loads of the
    prompts that the rule calls just as hard.
    """

    trust: dict[str, float]
    """Upper bound of the trust in the network, in [0, 1], by shape."""
    known_from: float
    known_to: float
    """Open text: the trust grows from 0 to full between these two shares of known words."""
    half_terms: float
    """Open text: number of words and pairs at which trust is halved."""
    like_from: float
    like_to: float
    """Open text: the trust grows from 0 to full between these two likenesses to a learned kind."""
    full_terms_tools: float
    """Requests with tools: words and pairs at which trust is full. "hi" beside ten tools is still "hi"."""
    rule: list[float]
    """The rule's complexities at the rows of `loads`, rising."""
    loads: list[list[float]]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.rule, self.rule[1:], strict=False))
        if len(self.rule) < _MIN_KNOTS or not rising or len(self.loads) != len(self.rule):
            raise ValueError("the blend needs a row of loads for each of at least two rising complexities")
        if len({len(row) for row in self.loads}) != 1 or not all(map(math.isfinite, itertools.chain(*self.loads))):
            raise ValueError("the blend's rows of loads must be of one length, and finite")
        rises = self.known_from < self.known_to and self.like_from < self.like_to
        if not rises or min(self.half_terms, self.full_terms_tools) <= 0 or not self.trust.keys() >= set(SHAPES):
            raise ValueError("the blend needs a trust for every shape, and trust that grows")

    def trust_in(self, shape: int, known_share: float, terms: float, likeness: float) -> float:
        """The trust in the network for one prompt, in [0, 1]."""
        most = self.trust[SHAPES[shape]]
        if SHAPES[shape] == "choice":
            return most
        if SHAPES[shape] == "tools":
            return most * min(1.0, terms / self.full_terms_tools)
        known = _ramp(known_share, self.known_from, self.known_to) * terms / (terms + self.half_terms)
        return most * max(known, _ramp(likeness, self.like_from, self.like_to))


def _ramp(value: float, start: float, end: float) -> float:
    return min(1.0, max(0.0, (value - start) / (end - start)))


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """A piecewise linear map from gain to complexity, the share of training prompts with a lower gain.

    The gain is the mean probability of the strong abilities less that of the weak ones.
    """

    weak: list[str]
    strong: list[str]

    gain: list[float]
    complexity: list[float]

    def __post_init__(self) -> None:
        both = (*self.gain, *self.complexity)
        if len(self.gain) != len(self.complexity) or len(self.gain) < _MIN_KNOTS or not all(map(math.isfinite, both)):
            raise ValueError("calibration needs two columns of at least two finite numbers")
        rising = all(a < b for a, b in zip(self.gain, self.gain[1:], strict=False))
        rising = rising and all(a <= b for a, b in zip(self.complexity, self.complexity[1:], strict=False))
        if not rising or self.complexity[0] < 0 or self.complexity[-1] > 1:
            raise ValueError("calibration must rise within [0, 1]")
        if not self.weak or not self.strong:
            raise ValueError("calibration needs weak and strong abilities")

    def complexity_of(self, gain: float) -> float:
        """The complexity of a gain, constant beyond the first and last knot."""
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


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Factors from an answer's median length to its 90th percentile, for the network and for the rule."""

    network_p90: float
    rule_p90: float


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is stored about a trained model; `__post_init__` raises ValueError where it is inconsistent."""

    format: int
    code_version: str
    feature_hash: str
    model_sha256: str
    sample_sha256: str
    data_sha256: str
    seed: int
    rows: dict[str, int]
    libraries: dict[str, str]
    kinds: list[str]
    blend: Blend
    abilities: dict[str, Ability]
    """Row that turns loads into the logit of an adequate answer, by model."""
    calibration: Calibration
    spread: dict[str, float]
    """Standard deviation of the error of a difference of two probabilities, by kind and for `rule`."""
    lengths: Lengths
    usual_facts: list[float]
    """Mean of each fact of STRUCTURE, which an explanation puts in its place."""
    references: list[Reference]
    metrics: dict[str, Any]
    training: dict[str, Any]

    def __post_init__(self) -> None:
        widths = {len(ability.weights) for ability in self.abilities.values()} | {len(self.blend.loads[0])}
        if len(widths) != 1 or not self.abilities:
            raise ValueError("every ability needs one weight for each load")
        unknown = {*self.calibration.weak, *self.calibration.strong} - self.abilities.keys()
        if unknown:
            raise ValueError(f"calibration names abilities that are not there: {', '.join(sorted(unknown))}")
        if not {*self.kinds, "rule"} <= self.spread.keys():
            raise ValueError("spread must name every kind, and the rule")
        if min(self.lengths.network_p90, self.lengths.rule_p90) <= 0 or len(self.usual_facts) != len(STRUCTURE):
            raise ValueError("lengths need factors above 0, and usual facts one number for each fact")


class _Format(msgspec.Struct):
    """The format number alone, read first: another format is a mismatch, whatever else is in the manifest."""

    format: int


class Artifact(msgspec.Struct, frozen=True):
    """A trained model: the ONNX graph, its manifest, and a sample of held-out prompts."""

    model: bytes
    manifest: Manifest
    sample: bytes
    """Held-out prompts as numbers, for cost-quality curves: see classifier/sample.py."""


def read_artifact(folder: Path) -> Artifact:
    """Reads an artifact and checks that its files belong to each other and to this code. Raises ArtifactError."""
    model = read_limited(folder / MODEL_FILE, MAX_MODEL_BYTES)
    try:
        content = read_limited(folder / MANIFEST_FILE, MAX_MANIFEST_BYTES)
        found = msgspec.json.decode(content, type=_Format).format
        if found != FORMAT:
            raise ArtifactMismatch(f"the manifest has format {found}, this code reads {FORMAT}")
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise ArtifactMalformed(f"{MANIFEST_FILE}: {error}") from error
    if manifest.feature_hash != feature_hash():
        raise ArtifactMismatch("the model was trained with other feature code; train it anew")
    if manifest.model_sha256 != hashlib.sha256(model).hexdigest():
        raise ArtifactMismatch(f"{MODEL_FILE} is not the file that the manifest describes")
    sample = read_limited(folder / SAMPLE_FILE, MAX_SAMPLE_BYTES)
    if manifest.sample_sha256 != hashlib.sha256(sample).hexdigest():
        raise ArtifactMismatch(f"{SAMPLE_FILE} is not the file that the manifest describes")
    return Artifact(model, manifest, sample)


def write_artifact(folder: Path, artifact: Artifact) -> None:
    """Writes the artifact's three files, creating the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_FILE).write_bytes(artifact.model)
    (folder / SAMPLE_FILE).write_bytes(artifact.sample)
    text = msgspec.json.format(msgspec.json.encode(artifact.manifest), indent=1)
    (folder / MANIFEST_FILE).write_bytes(text + b"\n")


def read_limited(path: Path, limit: int) -> bytes:
    """A whole file of an artifact. Raises ArtifactMissing, or ArtifactMalformed for one larger than `limit` bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise ArtifactMissing(f"{path.name} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise ArtifactMalformed(f"{path.name} is larger than {limit} bytes")
    return content
