"""An artifact is used only when model, sample, manifest and feature code belong together."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from classifier.features import STRUCTURE
from classifier.manifest import (
    FORMAT,
    MODEL_FILE,
    SAMPLE_FILE,
    TABLES_FILE,
    Artifact,
    ArtifactError,
    ArtifactMalformed,
    ArtifactMismatch,
    ArtifactMissing,
    Manifest,
    read_artifact,
    write_artifact,
)
from classifier.shipped_rows import MANIFEST_FILE, MAX_MANIFEST_BYTES
from classifier.tuning import Ability
from tests.classifier.made_up import LLAMA


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
    "change",
    [
        {"feature_hash": "0" * 64},
        {"model_sha256": "0" * 64},
        {"tables_sha256": "0" * 64},
        {"sample_sha256": "0" * 64},
        {"format": 99},
    ],
)
def test_a_mismatched_manifest_is_refused(tmp_path: Path, made_up_artifact: Artifact, change: dict[str, Any]) -> None:
    """Another format, other feature code, another model file, other tables or another sample are refused by name."""
    manifest = msgspec.structs.replace(made_up_artifact.manifest, **change)
    write_artifact(tmp_path, msgspec.structs.replace(made_up_artifact, manifest=manifest))
    with pytest.raises(ArtifactMismatch):
        read_artifact(tmp_path)


@pytest.mark.parametrize("name", [MODEL_FILE, TABLES_FILE, SAMPLE_FILE])
def test_a_changed_file_is_refused(tmp_path: Path, made_up_artifact: Artifact, name: str) -> None:
    """One flipped bit of the model, of the tables or of the sample is noticed, and the file is named."""
    write_artifact(tmp_path, made_up_artifact)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtifactMismatch, match=name):
        read_artifact(tmp_path)


@pytest.mark.parametrize("older", [1, 2, 3])
def test_an_older_format_is_a_mismatch(tmp_path: Path, made_up_artifact: Artifact, older: int) -> None:
    """A manifest of an older format, with none of the present fields, is told apart from a broken one."""
    write_artifact(tmp_path, made_up_artifact)
    (tmp_path / MANIFEST_FILE).write_bytes(b'{"format": %d, "code_version": "0.1", "model_sha256": ""}' % older)
    with pytest.raises(ArtifactMismatch, match=f"has format {older}, this code reads {FORMAT}"):
        read_artifact(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[1, 2", b'{"format": %d}' % FORMAT, b'{"format": "3"}'])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, made_up_artifact: Artifact, content: bytes) -> None:
    """A manifest that cannot be read as one is refused by name."""
    write_artifact(tmp_path, made_up_artifact)
    (tmp_path / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(ArtifactMalformed):
        read_artifact(tmp_path)


@pytest.mark.parametrize("name", [MODEL_FILE, TABLES_FILE, MANIFEST_FILE, SAMPLE_FILE])
def test_a_missing_file_is_refused(tmp_path: Path, made_up_artifact: Artifact, name: str) -> None:
    """Each of the four files is needed, and the missing one is named; every refusal is an ArtifactError."""
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


ONE_LOAD_LESS = {LLAMA: Ability(weights=[0.5], bias=0.0)}
FACTS_ONE_LESS = [0.0] * (len(STRUCTURE) - 1)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"abilities": {}}, "one weight for each load"),
        ({"abilities": ONE_LOAD_LESS}, "one weight for each load"),
        ({"loads": 99}, "one weight for each load"),
        ({"kinds": []}, "a kind of task"),
        ({"kinds": None}, "kinds"),
        ({"spread": {"known": 0.1}}, "other"),
        ({"spread": {"known": -0.1, "other": 0.1}}, "no spread below 0"),
        ({"spread": {"known": 0.1, "other": -0.1}}, "no spread below 0"),
        ({"lengths": {"known_p90": 2.0}}, "other_p90"),
        ({"lengths": {"known_p90": 0.0, "other_p90": 3.0}}, "factors above 0"),
        ({"lengths": {"known_p90": 3.0, "other_p90": -1.0}}, "factors above 0"),
        ({"blend": [[0.0] * 6]}, "two complexities or more"),
        ({"blend": [[0.0] * 5] * 9}, "each with every load and a length"),
        ({"trust": {"tools_by_complexity": 0.0, "one_call": 0.5, "agents_job": 0.5}}, "harder than one call"),
        ({"usual_facts": []}, "one number for each fact"),
        ({"usual_facts": FACTS_ONE_LESS}, "one number for each fact"),
        ({"references": None}, "references"),
    ],
)
def test_tables_that_make_no_sense_are_refused(
    tmp_path: Path, made_up_artifact: Artifact, fields: dict[str, object], told: str
) -> None:
    """Abilities of another width, a spread below 0 and missing facts are refused, and it is said why."""
    write_artifact(tmp_path, made_up_artifact)
    (tmp_path / MANIFEST_FILE).write_bytes(changed(made_up_artifact.manifest, **fields))
    with pytest.raises(ArtifactMalformed, match=told):
        read_artifact(tmp_path)
