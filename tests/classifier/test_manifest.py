"""An artifact is used only when model, sample, manifest and feature code belong together."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.features import SHAPES
from classifier.manifest import (
    FORMAT,
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    MODEL_FILE,
    SAMPLE_FILE,
    Artifact,
    ArtifactError,
    ArtifactMalformed,
    ArtifactMismatch,
    ArtifactMissing,
    Blend,
    Calibration,
    Manifest,
    read_artifact,
    write_artifact,
)
from classifier.tuning import Ability
from tests.classifier.made_up import LLAMA

BLEND = Blend(
    trust={"open": 0.9, "choice": 1.0, "tools": 0.5},
    known_from=0.4,
    known_to=0.8,
    half_terms=30,
    like_from=0.5,
    like_to=0.75,
    full_terms_tools=20,
    rule=[0.0, 0.5, 1.0],
    loads=[[-1.0, 0.0], [0.0, 0.5], [1.0, 1.0]],
)
SHARE = st.floats(0, 1)
TERMS = st.floats(0, 1e4)


def test_an_artifact_survives_writing_and_reading(tmp_path: Path, made_up_artifact: Artifact) -> None:
    """What is written is what is read."""
    write_artifact(tmp_path, made_up_artifact)
    assert read_artifact(tmp_path) == made_up_artifact


def test_an_artifact_that_was_trained_with_a_second_weigher_still_loads(
    tmp_path: Path, made_up_artifact: Artifact
) -> None:
    """What older training wrote of it is left unread."""
    write_artifact(tmp_path, made_up_artifact)
    (tmp_path / MANIFEST_FILE).write_bytes(changed(made_up_artifact.manifest, second={"sha256": "0" * 64}))
    assert read_artifact(tmp_path) == made_up_artifact


@pytest.mark.parametrize(
    "change", [{"feature_hash": "0" * 64}, {"model_sha256": "0" * 64}, {"sample_sha256": "0" * 64}, {"format": 99}]
)
def test_a_mismatched_manifest_is_refused(tmp_path: Path, made_up_artifact: Artifact, change: dict[str, Any]) -> None:
    """Another format, other feature code, another model file or another sample is refused by name."""
    manifest = msgspec.structs.replace(made_up_artifact.manifest, **change)
    write_artifact(tmp_path, msgspec.structs.replace(made_up_artifact, manifest=manifest))
    with pytest.raises(ArtifactMismatch):
        read_artifact(tmp_path)


@pytest.mark.parametrize("name", [MODEL_FILE, SAMPLE_FILE])
def test_a_changed_file_is_refused(tmp_path: Path, made_up_artifact: Artifact, name: str) -> None:
    """One flipped bit of the model or of the sample is noticed, and the file is named."""
    write_artifact(tmp_path, made_up_artifact)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtifactMismatch, match=name):
        read_artifact(tmp_path)


def test_an_older_format_is_a_mismatch(tmp_path: Path, made_up_artifact: Artifact) -> None:
    """A manifest of the first format, with none of the present fields, is told apart from a broken one."""
    write_artifact(tmp_path, made_up_artifact)
    (tmp_path / MANIFEST_FILE).write_bytes(b'{"format": 1, "code_version": "0.1", "model_sha256": ""}')
    with pytest.raises(ArtifactMismatch, match=f"has format 1, this code reads {FORMAT}"):
        read_artifact(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[1, 2", b'{"format": %d}' % FORMAT, b'{"format": "2"}'])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, made_up_artifact: Artifact, content: bytes) -> None:
    """A manifest that cannot be read as one is refused by name."""
    write_artifact(tmp_path, made_up_artifact)
    (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(ArtifactMalformed):
        read_artifact(tmp_path)


@pytest.mark.parametrize("name", [MODEL_FILE, MANIFEST_FILE, SAMPLE_FILE])
def test_a_missing_file_is_refused(tmp_path: Path, made_up_artifact: Artifact, name: str) -> None:
    """Each of the three files is needed, and the missing one is named; every refusal is an ArtifactError."""
    write_artifact(tmp_path, made_up_artifact)
    (tmp_path / name).unlink()
    with pytest.raises(ArtifactMissing, match=name) as refused:
        read_artifact(tmp_path)
    assert isinstance(refused.value, ArtifactError)


def test_a_file_beyond_its_limit_is_refused(tmp_path: Path, made_up_artifact: Artifact) -> None:
    """No more is read than a file may hold."""
    write_artifact(tmp_path, made_up_artifact)
    (tmp_path / MANIFEST_FILE).write_bytes(b" " * (MAX_MANIFEST_BYTES + 1))
    with pytest.raises(ArtifactMalformed, match="larger than"):
        read_artifact(tmp_path)


def changed(manifest: Manifest, **fields: object) -> bytes:
    """A manifest as a file would hold it; the checks are those of reading."""
    return msgspec.json.encode({**msgspec.to_builtins(manifest), **msgspec.to_builtins(fields)})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"abilities": {}}, "one weight for each load"),
        ({"abilities": {LLAMA: Ability(weights=[0.5], bias=0.0)}}, "one weight for each load"),
        ({"spread": {"rule": 0.1}}, "every kind, and the rule"),
        ({"spread": {"chat": 0.1, "exam": 0.1, "calls": 0.1}}, "every kind, and the rule"),
        ({"calibration": {"weak": ["nobody"], "strong": [LLAMA], "gain": [0, 1], "complexity": [0, 1]}}, "nobody"),
        ({"calibration": {"weak": [LLAMA], "strong": ["no one"], "gain": [0, 1], "complexity": [0, 1]}}, "no one"),
        ({"calibration": {"weak": [], "strong": [LLAMA], "gain": [0, 1], "complexity": [0, 1]}}, "weak and strong"),
        ({"lengths": {"network_p90": 0.0, "rule_p90": 3.0}}, "factors above 0"),
        ({"usual_facts": [0.0]}, "one number for each fact"),
        ({"references": None}, "references"),
    ],
)
def test_tables_that_make_no_sense_are_refused(
    tmp_path: Path, made_up_artifact: Artifact, fields: dict[str, object], told: str
) -> None:
    """Abilities of another width, unknown yardsticks and kinds without a spread are refused, and it is said why."""
    write_artifact(tmp_path, made_up_artifact)
    (tmp_path / MANIFEST_FILE).write_bytes(changed(made_up_artifact.manifest, **fields))
    with pytest.raises(ArtifactMalformed, match=told):
        read_artifact(tmp_path)


@pytest.mark.parametrize(
    ("rule", "loads"),
    [
        ([0.5], [[1.0]]),
        ([0.0, 0.0], [[1.0], [1.0]]),
        ([1.0, 0.0], [[1.0], [1.0]]),
        ([0.0, 1.0], [[1.0]]),
        ([0.0, 1.0], [[1.0], [1.0, 2.0]]),
        ([0.0, 1.0], [[1.0], [math.nan]]),
    ],
)
def test_a_blend_without_a_row_for_each_complexity_is_refused(rule: list[float], loads: list[list[float]]) -> None:
    """The blend's rows stand for rising complexities, and are of one length and finite."""
    with pytest.raises(ValueError, match="blend"):
        msgspec.structs.replace(BLEND, rule=rule, loads=loads)


@pytest.mark.parametrize(
    "fields",
    [
        {"trust": {"open": 1.0, "choice": 1.0}},
        {"known_from": 0.8},
        {"like_from": 0.9},
        {"half_terms": 0},
        {"full_terms_tools": 0},
    ],
)
def test_a_blend_whose_trust_cannot_grow_is_refused(fields: dict[str, Any]) -> None:
    """What would fail on every prompt fails when it is read."""
    with pytest.raises(ValueError, match="trust"):
        msgspec.structs.replace(BLEND, **fields)


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
        Calibration(weak=["small"], strong=["big"], gain=gain, complexity=complexity)


@settings(deadline=None)
@given(st.floats(-1, 1), st.floats(-1, 1))
def test_a_trained_calibration_is_monotone_and_bounded(made_up_artifact: Artifact, one: float, other: float) -> None:
    """More gain is never less complexity, and complexity stays in [0, 1]."""
    low, high = (made_up_artifact.manifest.calibration.complexity_of(gain) for gain in sorted((one, other)))
    assert 0 <= low <= high <= 1


def test_calibration_is_a_straight_line_between_knots() -> None:
    """Knots map to themselves, the middle to the middle, and beyond the ends nothing moves."""
    calibration = Calibration(weak=["small"], strong=["big"], gain=[0.0, 1.0, 3.0], complexity=[0.1, 0.5, 0.9])
    said = [calibration.complexity_of(gain) for gain in (-5, 0, 0.5, 1, 2, 3, 5)]
    assert said == pytest.approx([0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 0.9])


@settings(deadline=None)
@given(SHARE, TERMS, SHARE, st.sampled_from(range(len(SHAPES))))
def test_trust_is_bounded(known: float, terms: float, likeness: float, shape: int) -> None:
    """Trust is never below 0 nor above what the shape allows."""
    assert 0 <= BLEND.trust_in(shape, known, terms, likeness) <= BLEND.trust[SHAPES[shape]]


@settings(deadline=None)
@given(SHARE, SHARE, TERMS, TERMS, SHARE, SHARE, st.sampled_from(range(len(SHAPES))))
def test_knowing_more_is_trusted_more(
    known: float, knows: float, terms: float, more: float, like: float, likes: float, shape: int
) -> None:
    """More known words, more words and more likeness never lower trust in the network."""
    low = [min(known, knows), min(terms, more), min(like, likes)]
    high = [max(known, knows), max(terms, more), max(like, likes)]
    assert BLEND.trust_in(shape, *low) <= BLEND.trust_in(shape, *high) + 1e-12


def test_open_text_like_a_learned_kind_is_trusted_by_that_alone() -> None:
    """Short text of unknown words has no trust; like a kind that was learned it has all there is."""
    assert BLEND.trust_in(0, 0.0, 2, 0.4) == 0
    assert BLEND.trust_in(0, 0.0, 2, 0.9) == pytest.approx(0.9)
    assert BLEND.trust_in(0, 0.9, 30, 0.4) == pytest.approx(0.45)


def test_few_words_beside_tools_are_not_trusted() -> None:
    """A "hi" beside ten tools is only that; choices are always trusted."""
    assert BLEND.trust_in(2, 1.0, 1, 1.0) == pytest.approx(0.5 / 20)
    assert BLEND.trust_in(2, 0.0, 200, 0.0) == pytest.approx(0.5)
    assert BLEND.trust_in(1, 0.0, 1, 0.0) == 1.0
