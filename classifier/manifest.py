"""The manifest beside model.onnx: parameters to read the model's outputs with, provenance, and measured quality."""

import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from classifier.features import STRUCTURE, feature_hash
from classifier.prediction import Prompt
from classifier.shipped_rows import MANIFEST_FILE, MAX_MANIFEST_BYTES
from classifier.tuning import Ability

FORMAT: Final = 4
MODEL_FILE: Final = "model.onnx"
TABLES_FILE: Final = "tables.npz"
SAMPLE_FILE: Final = "sample.npz"
MAX_MODEL_BYTES: Final = 4 * 2**20
MAX_TABLES_BYTES: Final = 16 * 2**20
MAX_SAMPLE_BYTES: Final = 4 * 2**20
_FEWEST_KNOTS: Final = 2


class ArtifactError(Exception):
    """A trained model cannot be used."""


class ArtifactMissing(ArtifactError):
    """A file of the artifact does not exist or cannot be read."""


class ArtifactMalformed(ArtifactError):
    """A file of the artifact cannot be decoded, or its values are inconsistent."""


class ArtifactMismatch(ArtifactError):
    """Model, manifest and this code do not belong together."""


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with the prediction that the training run made for it."""

    prompt: Prompt
    complexity: float
    expected_output_tokens: int


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Factors from an answer's median length to its 90th percentile: where outcomes are known of such prompts, and where
    the complexity alone leads.
    """

    known_p90: float
    other_p90: float


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Standard deviations of the error of a difference of two probabilities, for the same two."""

    known: float
    other: float


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """The trust in the network where tools are on offer: a request no harder than one call is like the training data, an agent's
    job is not.
    """

    tools_by_complexity: float
    """Gain of the domain's logit with the complexity."""
    one_call: float
    """Complexity up to which the trust is whole, in any case."""
    agents_job: float
    """Complexity from which the domain alone decides, above `one_call`."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is stored about a trained model; `__post_init__` raises ValueError where it is inconsistent."""

    format: int
    code_version: str
    feature_hash: str
    model_sha256: str
    tables_sha256: str
    sample_sha256: str
    data_sha256: str
    seed: int
    rows: dict[str, int]
    libraries: dict[str, str]
    kinds: list[str]
    """Names of the kinds of task, in the order of the graph's scores."""
    loads: int
    """The number of loads."""
    abilities: dict[str, Ability]
    """Row that turns loads into the logit of an adequate answer, by model."""
    trust: Trust
    blend: list[list[float]]
    """Loads, and the logarithm of the answer's tokens, of a prompt that is unlike those with outcomes: at evenly spaced
    complexities from 0 to 1, between which they are interpolated.
    """
    spread: Spread
    lengths: Lengths
    usual_facts: list[float]
    """Mean of each fact of STRUCTURE, which an explanation puts in its place."""
    references: list[Reference]
    metrics: dict[str, Any]
    training: dict[str, Any]

    def __post_init__(self) -> None:
        if {len(ability.weights) for ability in self.abilities.values()} != {self.loads}:
            raise ValueError("every ability needs one weight for each load")
        if len(self.blend) < _FEWEST_KNOTS or {len(row) for row in self.blend} != {self.loads + 1}:
            raise ValueError("the blend needs two complexities or more, each with every load and a length")
        if self.trust.one_call >= self.trust.agents_job:
            raise ValueError("an agent's job has to be harder than one call")
        if min(self.lengths.known_p90, self.lengths.other_p90) <= 0 or len(self.usual_facts) != len(STRUCTURE):
            raise ValueError("lengths need factors above 0, and usual facts one number for each fact")
        if not self.kinds or min(self.spread.known, self.spread.other) < 0:
            raise ValueError("there must be a kind of task, and no spread below 0")


class _Format(msgspec.Struct):
    """The format number alone, read first: another format is a mismatch, whatever else is in the manifest."""

    format: int


class Artifact(msgspec.Struct, frozen=True):
    """A trained model: the ONNX graph, the tables that are looked up for it, its manifest, and a sample of held-out
    prompts.
    """

    model: bytes
    tables: bytes
    """See classifier/tables.py."""
    manifest: Manifest
    sample: bytes
    """Held-out prompts as numbers, for cost-quality curves: see classifier/sample.py."""


def read_artifact(folder: Path) -> Artifact:
    """Read an artifact and checks that its files belong to each other and to this code. Raises ArtifactError."""
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
    tables = read_limited(folder / TABLES_FILE, MAX_TABLES_BYTES)
    if manifest.tables_sha256 != hashlib.sha256(tables).hexdigest():
        raise ArtifactMismatch(f"{TABLES_FILE} is not the file that the manifest describes")
    sample = read_limited(folder / SAMPLE_FILE, MAX_SAMPLE_BYTES)
    if manifest.sample_sha256 != hashlib.sha256(sample).hexdigest():
        raise ArtifactMismatch(f"{SAMPLE_FILE} is not the file that the manifest describes")
    return Artifact(model, tables, manifest, sample)


def write_artifact(folder: Path, artifact: Artifact) -> None:
    """Write the artifact's four files, creating the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_FILE).write_bytes(artifact.model)
    (folder / TABLES_FILE).write_bytes(artifact.tables)
    (folder / SAMPLE_FILE).write_bytes(artifact.sample)
    text = msgspec.json.format(msgspec.json.encode(artifact.manifest), indent=1)
    (folder / MANIFEST_FILE).write_bytes(text + b"\n")


def read_limited(path: Path, limit: int) -> bytes:
    """Return a whole file of an artifact. Raises ArtifactMissing, or ArtifactMalformed for one larger than `limit` bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise ArtifactMissing(f"{path.name} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise ArtifactMalformed(f"{path.name} is larger than {limit} bytes")
    return content


def read_columns(
    content: bytes,
    what: str,
    columns: Sequence[tuple[str, DTypeLike]],
    placed: Callable[[NDArray[Any]], NDArray[Any]] = lambda array: array,
) -> list[NDArray[Any]]:
    """Return the named arrays of an .npz file, each as the given type, and where `placed` puts it. Raises ArtifactMalformed,
    naming `what`.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            return [placed(found[name].astype(dtype, copy=False)) for name, dtype in columns]
    except Exception as error:  # A broken archive fails in many ways: zip's, zlib's, numpy's and a header's parser.
        raise ArtifactMalformed(f"{what} cannot be read: {type(error).__name__}") from error
