"""The shipped model: it says what training stored, stays within bounds and never fails a request."""

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from classifier.config import ClassifierSection
from classifier.features import SHAPES, Features
from classifier.heuristic import MAX_OUTPUT_TOKENS, MIN_OUTPUT_TOKENS, HeuristicClassifier
from classifier.manifest import Artifact, ArtifactMalformed, read_artifact, write_artifact
from classifier.onnx_classifier import OnnxClassifier, load_classifier, open_classifier
from classifier.prediction import Prompt
from tests.classifier.obvious import EASY, HARD
from tests.classifier.test_features import PROMPTS
from tests.classifier.test_manifest import SHIPPED

CLASSIFIER = open_classifier()


def test_the_packaged_model_loads() -> None:
    """Without configuration the packaged model is in use."""
    classifier = load_classifier(ClassifierSection())
    assert isinstance(classifier, OnnxClassifier)
    assert classifier.fallback_reason is None


def test_the_shipped_artifact_is_small() -> None:
    """Model and manifest together stay under two megabytes."""
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 2 * 2**20


@pytest.mark.parametrize("number", range(len(CLASSIFIER.manifest.references)))
def test_stored_references_come_out_again(number: int) -> None:
    """The prompts that training stored get the predictions that training stored."""
    reference = CLASSIFIER.manifest.references[number]
    said = CLASSIFIER.classify(reference.prompt)
    assert said.complexity == pytest.approx(reference.complexity, abs=2e-3)
    assert said.expected_output_tokens == pytest.approx(reference.expected_output_tokens, abs=1)
    assert said.source == "onnx"


@settings(deadline=None)
@given(PROMPTS)
def test_any_prompt_is_scored_within_bounds(prompt: Prompt) -> None:
    """Any prompt, empty and broken ones too, is scored by the model within bounds, and the same each time."""
    before = CLASSIFIER.fallbacks
    said = CLASSIFIER.classify(prompt)
    assert 0 <= said.complexity <= 1
    assert MIN_OUTPUT_TOKENS <= said.expected_output_tokens <= MAX_OUTPUT_TOKENS
    assert CLASSIFIER.fallbacks == before
    assert CLASSIFIER.classify(prompt) == said


@pytest.mark.parametrize("text", ["", "\x00", "\ud800", "a" * 2**20, "漢字" * 2**18, "prove " * 2**17, "\n" * 2**20])
def test_empty_and_huge_prompts_are_scored(text: str) -> None:
    """Nothing and a megabyte are scored by the model like anything else."""
    assert CLASSIFIER.classify(Prompt(text=text)).source == "onnx"


def test_obvious_prompts_are_in_order() -> None:
    """Every plainly easy prompt scores low, every plainly hard one high."""
    easy = [CLASSIFIER.classify(Prompt(text=text)).complexity for text in EASY]
    hard = [CLASSIFIER.classify(Prompt(text=text)).complexity for text in HARD]
    assert max(easy) < 0.35
    assert min(hard) > 0.5


def test_a_hard_conversation_stays_hard_when_the_follow_up_is_short() -> None:
    """A short follow-up to a hard request scores above the same words on their own."""
    follow_up = Prompt(text="And now in Rust, please.", history=HARD[2], turns=3)
    alone = Prompt(text="And now in Rust, please.")
    assert CLASSIFIER.classify(follow_up).complexity > CLASSIFIER.classify(alone).complexity


def test_a_length_that_is_asked_for_is_expected() -> None:
    """A request for 500 words expects about their tokens, whatever the model says."""
    assert CLASSIFIER.classify(Prompt(text="Write 500 words about rain.")).expected_output_tokens == 675


class Broken(OnnxClassifier):
    """A twin whose graph gives no number."""

    def raw(self, features: Features) -> list[float]:
        return [float("nan")] * (len(SHAPES) + 2)


class Raising(OnnxClassifier):
    """A twin whose graph fails."""

    def raw(self, features: Features) -> list[float]:
        raise RuntimeError("no more memory")


@pytest.mark.parametrize("kind", [Broken, Raising])
def test_a_failing_graph_falls_back_and_is_counted(kind: type[OnnxClassifier]) -> None:
    """When the graph fails on a prompt the rule answers, and the fallback is counted."""
    classifier = kind(read_artifact(SHIPPED))
    said = classifier.classify(Prompt(text="hi"))
    assert said == HeuristicClassifier().classify(Prompt(text="hi"))
    assert classifier.fallbacks == 1


def test_a_folder_without_an_artifact_gives_the_heuristic(tmp_path: Path) -> None:
    """When nothing can be loaded the heuristic serves, and says why."""
    classifier = load_classifier(ClassifierSection(artifact_dir=tmp_path))
    assert isinstance(classifier, HeuristicClassifier)
    assert classifier.fallback_reason is not None
    assert "ArtifactMissing" in classifier.fallback_reason


def test_a_mismatched_artifact_gives_the_heuristic(tmp_path: Path) -> None:
    """An artifact of other feature code is not used, and the reason is told."""
    shipped = read_artifact(SHIPPED)
    write_artifact(tmp_path, Artifact(shipped.model, msgspec.structs.replace(shipped.manifest, feature_hash="")))
    assert "feature code" in str(load_classifier(ClassifierSection(artifact_dir=tmp_path)).fallback_reason)


def test_a_graph_that_does_not_load_is_refused() -> None:
    """Bytes that are no graph are refused by name."""
    with pytest.raises(ArtifactMalformed):
        OnnxClassifier(Artifact(b"not a graph", read_artifact(SHIPPED).manifest))


def test_without_onnxruntime_the_heuristic_serves() -> None:
    """When onnxruntime cannot be imported nothing fails: the heuristic scores, and says why."""
    code = (
        "import sys\n"
        "sys.modules['onnxruntime'] = None\n"
        "from classifier.config import ClassifierSection\n"
        "from classifier.onnx_classifier import load_classifier\n"
        "from classifier.prediction import Prompt\n"
        "classifier = load_classifier(ClassifierSection())\n"
        "print(classifier.classify(Prompt(text='hi')).source, classifier.fallback_reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("heuristic RuntimeMissing: ")


def test_loading_leaves_no_file_behind(tmp_path: Path) -> None:
    """The telemetry of onnxruntime is off before it loads: it leaves nothing in the folder for temporary files."""
    code = (
        "from classifier.config import ClassifierSection\n"
        "from classifier.onnx_classifier import load_classifier\n"
        "load_classifier(ClassifierSection())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"TMPDIR": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_disabled_means_the_heuristic() -> None:
    """`enabled: false` serves the heuristic without looking at any file."""
    classifier = load_classifier(ClassifierSection(enabled=False))
    assert isinstance(classifier, HeuristicClassifier)
    assert classifier.classify(Prompt(text="hi")).source == "heuristic"


def test_the_session_takes_no_other_thread() -> None:
    """The graph runs on the caller's thread: it takes microseconds."""
    options = CLASSIFIER._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)


def test_serving_imports_no_training_library() -> None:
    """Loading and using the classifier imports none of what only training needs."""
    code = (
        "import sys\n"
        "from classifier.config import ClassifierSection\n"
        "from classifier.onnx_classifier import load_classifier\n"
        "from classifier.prediction import Prompt\n"
        "from classifier.tokens import estimate_tokens\n"
        "assert load_classifier(ClassifierSection()).classify(Prompt(text='hi')).source == 'onnx'\n"
        "estimate_tokens('hi')\n"
        "heavy = {'sklearn', 'onnx', 'skl2onnx', 'scipy', 'pyarrow', 'pandas', 'torch', 'litellm', 'tiktoken'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))\n"
        "print([name for name in sys.modules if name.startswith('classifier.training')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]


def test_features_of_an_empty_prompt_pass_the_graph() -> None:
    """No words at all: the graph still gives finite numbers, and no known share."""
    empty = Features(np.zeros(0, np.int32), np.zeros(0, np.intp), np.zeros(26, np.float32), 0)
    values = CLASSIFIER.raw(empty)
    assert np.all(np.isfinite(values))
    assert values[len(SHAPES)] == 0
