"""An artifact is used only when model, manifest and feature code belong together."""

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.features import SHAPES
from classifier.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    Artifact,
    ArtifactError,
    ArtifactMalformed,
    ArtifactMismatch,
    ArtifactMissing,
    Blend,
    Calibration,
    read_artifact,
    write_artifact,
)

SHIPPED = Path(__file__).parents[2] / "classifier" / "artifacts"
SHIPPED_CALIBRATION = read_artifact(SHIPPED).manifest.calibration
BLEND = Blend(
    trust={"open": 0.9, "choice": 1.0, "tools": 0.5},
    known_from=0.4,
    known_to=0.8,
    half_terms=30,
    full_terms_tools=20,
    low_gain=-0.1,
    high_gain=0.3,
)
GAIN = st.floats(-1, 1)
SHARE = st.floats(0, 1)


@pytest.fixture(scope="module")
def shipped() -> Artifact:
    return read_artifact(SHIPPED)


def test_an_artifact_survives_writing_and_reading(tmp_path: Path, shipped: Artifact) -> None:
    """What is written is what is read."""
    write_artifact(tmp_path, shipped)
    assert read_artifact(tmp_path) == shipped


@pytest.mark.parametrize("change", [{"format": 99}, {"feature_hash": "0" * 64}, {"model_sha256": "0" * 64}])
def test_a_mismatched_manifest_is_refused(tmp_path: Path, shipped: Artifact, change: dict[str, object]) -> None:
    """Another format, other feature code or another model file is refused by name."""
    write_artifact(tmp_path, Artifact(shipped.model, msgspec.structs.replace(shipped.manifest, **change)))
    with pytest.raises(ArtifactMismatch):
        read_artifact(tmp_path)


def test_a_changed_model_is_refused(tmp_path: Path, shipped: Artifact) -> None:
    """One flipped bit of the model is noticed."""
    write_artifact(tmp_path, shipped)
    (tmp_path / MODEL_FILE).write_bytes(shipped.model[:-1] + bytes([shipped.model[-1] ^ 1]))
    with pytest.raises(ArtifactMismatch):
        read_artifact(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[1, 2"])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, shipped: Artifact, content: bytes) -> None:
    """A manifest that cannot be read as one is refused by name."""
    write_artifact(tmp_path, shipped)
    (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(ArtifactMalformed):
        read_artifact(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """An empty folder is refused by name, and every refusal is an ArtifactError."""
    with pytest.raises(ArtifactMissing) as refused:
        read_artifact(tmp_path)
    assert isinstance(refused.value, ArtifactError)


@pytest.mark.parametrize(
    ("gain", "complexity"),
    [
        ([0.0], [0.5]),
        ([0.0, 0.0], [0.1, 0.2]),
        ([0.1, 0.0], [0.1, 0.2]),
        ([0.0, 0.1], [0.2, 0.1]),
        ([0.0, 0.1], [0.0, 1.1]),
        ([0.0, 0.1], [-0.1, 1.0]),
        ([0.0, math.inf], [0.0, 1.0]),
        ([0.0, 0.1, 0.2], [0.0, 1.0]),
    ],
)
def test_a_calibration_that_does_not_rise_is_refused(gain: list[float], complexity: list[float]) -> None:
    """A calibration must rise within [0, 1]."""
    with pytest.raises(ValueError, match="calibration"):
        Calibration(gain=gain, complexity=complexity)


@settings(deadline=None)
@given(GAIN, GAIN)
def test_the_shipped_calibration_is_monotone_and_bounded(one: float, other: float) -> None:
    """More gain is never less complexity, and complexity stays in [0, 1]."""
    low, high = (SHIPPED_CALIBRATION.complexity_of(gain) for gain in sorted((one, other)))
    assert 0 <= low <= high <= 1


def test_calibration_is_a_straight_line_between_knots() -> None:
    """Knots map to themselves, the middle to the middle, and beyond the ends nothing moves."""
    calibration = Calibration(gain=[0.0, 1.0, 3.0], complexity=[0.1, 0.5, 0.9])
    said = [calibration.complexity_of(gain) for gain in (-5, 0, 0.5, 1, 2, 3, 5)]
    assert said == pytest.approx([0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 0.9])


@settings(deadline=None)
@given(GAIN, SHARE, SHARE, st.floats(0, 1e4), st.sampled_from(range(len(SHAPES))))
def test_the_blend_lies_between_model_and_rule(
    gain: float, rule: float, known: float, terms: float, shape: int
) -> None:
    """Trust is within [0, 1], and the blended gain between the model's and the rule's."""
    trust = BLEND.trust_in(shape, known, terms)
    assert 0 <= trust <= BLEND.trust[SHAPES[shape]]
    prior = BLEND.gain(0.0, rule, 0.0)
    assert min(gain, prior) - 1e-9 <= BLEND.gain(gain, rule, trust) <= max(gain, prior) + 1e-9


@settings(deadline=None)
@given(SHARE, SHARE, st.floats(1, 1e4))
def test_more_known_words_are_more_trust(one: float, other: float, terms: float) -> None:
    """Of open text, knowing more of its words never lowers trust in the model."""
    low, high = sorted((one, other))
    assert BLEND.trust_in(0, low, terms) <= BLEND.trust_in(0, high, terms)
