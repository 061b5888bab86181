"""The classifier as it serves: within bounds, never failing a request, and what the shipped model says."""

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from classifier.config import ClassifierSection
from classifier.features import extract
from classifier.heuristic import MAX_OUTPUT_TOKENS, MIN_OUTPUT_TOKENS, HeuristicClassifier
from classifier.manifest import Artifact, ArtifactMalformed, read_artifact, write_artifact
from classifier.onnx_classifier import OnnxClassifier, has_clear_kind, load_classifier, open_classifier
from classifier.placing import PlacedPrompt, Values
from classifier.prediction import Prompt
from classifier.sample import write_sample
from classifier.tables import Inputs
from classifier.training.commands import PACKAGED
from classifier.tuning import SKETCH, Ability, Group, Tuning
from tests.classifier import plain_life
from tests.classifier.made_up import GPT_4O, LLAMA, MODELS, SONNET
from tests.classifier.obvious import EASY, HARD
from tests.classifier.test_features import PROMPTS

TARGETS = {"small": LLAMA, "big": GPT_4O, "wordy": SONNET, "unheard": "a-model-of-nobody"}
LEARNED = Prompt(text="Case 7 gate road truck driver morning ticket yard coffee letter garden gate truck?")
"""Open text like what the made-up model was taught."""


@pytest.fixture(scope="module")
def shipped() -> OnnxClassifier:
    """The packaged model, with a target for each ability that it has."""
    manifest = read_artifact(PACKAGED).manifest
    return open_classifier(abilities={name: name for name in manifest.abilities})


@pytest.fixture
def made_up(made_up_artifact: Artifact) -> OnnxClassifier:
    return OnnxClassifier(made_up_artifact, TARGETS)


def test_the_packaged_model_loads() -> None:
    """Without configuration the packaged model is in use."""
    classifier = load_classifier(ClassifierSection())
    assert isinstance(classifier, OnnxClassifier)
    assert classifier.fallback_reason is None


def test_the_shipped_artifact_is_small() -> None:
    """All of it stays under 16 megabytes."""
    assert sum(file.stat().st_size for file in PACKAGED.iterdir()) < 16 * 2**20


def test_stored_references_come_out_again(shipped: OnnxClassifier) -> None:
    """The prompts that training stored get the predictions that training stored."""
    assert shipped.manifest.references
    for reference in shipped.manifest.references:
        said = shipped.classify(reference.prompt)
        assert said.complexity == pytest.approx(reference.complexity, abs=2e-3)
        assert said.expected_output_tokens == pytest.approx(reference.expected_output_tokens, abs=1)
        assert said.source == "onnx"


def test_the_shipped_model_tells_how_good_it_is(shipped: OnnxClassifier) -> None:
    """The manifest carries what cross-validation measured: pairs with intervals, and calibration by target."""
    metrics = shipped.manifest.metrics
    assert "10-fold" in {row["split"] for row in metrics["rows"]}
    assert all(row["lo"] <= row["apgr"] <= row["hi"] for row in metrics["rows"])
    assert all(0 <= each["ece"] <= 1 for each in metrics["targets"])
    assert shipped.manifest.rows.keys() >= {"routellm_mmlu", "mmlu_pro", "bfcl_v1"}


@settings(deadline=None)
@given(PROMPTS)
def test_any_prompt_is_scored_within_bounds(made_up_artifact: Artifact, prompt: Prompt) -> None:
    """Any prompt, empty and broken ones too, is scored by the model within bounds, and the same each time."""
    classifier = OnnxClassifier(made_up_artifact, TARGETS)
    said = classifier.classify(prompt)
    assert 0 <= said.complexity <= 1
    assert MIN_OUTPUT_TOKENS <= said.expected_output_tokens <= said.output_tokens_p90 <= MAX_OUTPUT_TOKENS
    assert set(said.outlooks) == {"small", "big", "wordy"}
    for outlook in said.outlooks.values():
        assert 0 <= outlook.low <= outlook.adequate <= outlook.high <= 1
        assert MIN_OUTPUT_TOKENS <= outlook.output_tokens <= outlook.output_tokens_p90 <= MAX_OUTPUT_TOKENS
    assert len(said.vector) == 2 * (classifier.loads + SKETCH)
    assert said.source == "onnx"
    assert classifier.fallbacks == 0
    assert classifier.classify(prompt) == said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00",
        "\ud800",
        "a" * 2**20,
        "漢字" * 2**18,
        "prove " * 2**17,
        "\n" * 2**20,
        "`" * 2**20,
        "1 words " * 2**17,
    ],
    ids=["empty", "zero", "surrogate", "one word", "one script", "repeated", "lines", "fences", "lengths"],
)
def test_empty_and_huge_prompts_are_scored(shipped: OnnxClassifier, text: str) -> None:
    """Nothing and a megabyte are scored by the shipped model like anything else."""
    prompt = Prompt(text=text, system=text, history=text, turns=10**9, tools=10**9, images=10**9)
    for each in (prompt, Prompt(text=text)):
        said = shipped.classify(each)
        assert said.source == "onnx"
        assert all(0 <= outlook.adequate <= 1 for outlook in said.outlooks.values())


def test_plain_life_is_in_order(shipped: OnnxClassifier) -> None:
    """Look-ups and thanks, with tools, histories, pasted pages and typos, in five languages, stand below work that takes an expert;
    everyday work stands between.
    """
    easy, everyday, hard = (
        np.array([shipped.classify(prompt).complexity for prompt in prompts])
        for prompts in (plain_life.EASY, plain_life.EVERYDAY, plain_life.HARD)
    )
    assert (easy[:, None] < hard).mean() > 0.995
    assert (easy[:, None] < everyday).mean() > 0.95
    assert (everyday[:, None] < hard).mean() > 0.98


def test_obvious_prompts_are_in_order(shipped: OnnxClassifier) -> None:
    """Every plainly easy prompt scores low, every plainly hard one high."""
    easy = [shipped.classify(Prompt(text=text)).complexity for text in EASY]
    hard = [shipped.classify(Prompt(text=text)).complexity for text in HARD]
    assert max(easy) < 0.35
    assert min(hard) > 0.5


def test_a_stronger_target_has_the_better_outlook_where_it_is_hard(shipped: OnnxClassifier) -> None:
    """On plainly hard prompts GPT-4o's outlook is above Llama's, and the gain above that of plainly easy ones."""

    def gain(text: str) -> float:
        outlooks = shipped.classify(Prompt(text=text)).outlooks
        return outlooks[GPT_4O].adequate - outlooks[LLAMA].adequate

    assert min(map(gain, HARD)) > 0
    assert np.mean([gain(text) for text in HARD]) > np.mean([gain(text) for text in EASY])


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("What is the capital of Japan?", "waht is teh captial of japan"),
        ("Tell me a joke about cats.", "tel me a jokr abuot cats"),
        (HARD[0], HARD[0].replace("contradiction", "contradicton").replace("Justify each", "Justfy eahc")),
        (HARD[2], HARD[2].lower().replace("concurrent", "concurent").replace("eviction", "evicton")),
    ],
)
def test_typos_move_an_obvious_prompt_little(shipped: OnnxClassifier, text: str, typed: str) -> None:
    """Misspelt, even in every other word, a prompt moves by less than a tier."""
    one, other = (shipped.classify(Prompt(text=each)).complexity for each in (text, typed))
    assert other == pytest.approx(one, abs=1 / 3)


@pytest.mark.parametrize(
    "text",
    [
        "Was ist die Hauptstadt von Japan?",
        "Quelle est la capitale du Japon ?",
        "¿Cuál es la capital de Japón?",
        "日本の首都はどこですか",
        "Какая столица Японии?",
        "ما هي عاصمة اليابان؟",
    ],
)
def test_an_easy_question_is_easy_in_other_languages(shipped: OnnxClassifier, text: str) -> None:
    """Where no word is known, form alone decides, and a short question is short in every language."""
    said = shipped.classify(Prompt(text=text))
    assert said.source == "onnx"
    assert said.complexity < 0.45


def test_a_system_prompts_words_are_not_read(made_up: OnnxClassifier) -> None:
    """The words of a system prompt are the application's, not the question's: at most their number counts."""
    one, other = (
        made_up.classify(msgspec.structs.replace(LEARNED, system=system)) for system in ("prove lemma", "hello you !")
    )
    assert one == other
    without = made_up.classify(LEARNED)
    assert one.complexity == without.complexity
    assert np.array_equal(vector(without.vector)[made_up.loads :], vector(one.vector)[made_up.loads :])


def test_the_conversation_moves_no_word(made_up: OnnxClassifier) -> None:
    """Groups are of what is asked now: the sketch is the last message's alone."""
    alone = made_up.classify(Prompt(text="gate road"))
    talk = made_up.classify(Prompt(text="gate road", before="quorum manifold", history="quorum manifold", turns=2))
    assert np.array_equal(vector(alone.vector)[made_up.loads :], vector(talk.vector)[made_up.loads :])


@pytest.mark.parametrize("fact", [{"images": 3}, {"json_mode": True}, {"turns": 9}, {"tools": 40}])
def test_what_is_on_offer_is_not_what_is_asked(made_up: OnnxClassifier, fact: dict[str, int]) -> None:
    """Facts of the request that are no text move neither the complexity nor the sketch."""
    bare = Prompt(text="Résumez ceci, svp.")
    plain, laden = made_up.classify(bare), made_up.classify(msgspec.structs.replace(bare, **fact))
    assert np.array_equal(vector(plain.vector)[made_up.loads :], vector(laden.vector)[made_up.loads :])
    assert laden.complexity == plain.complexity
    assert laden.kind == plain.kind


def test_a_length_that_is_asked_for_is_expected(made_up: OnnxClassifier) -> None:
    """A request for 500 words expects about their tokens, and a wordy target's more, whatever the model says."""
    said = made_up.classify(Prompt(text="Write 500 words about rain."))
    assert said.expected_output_tokens == 675
    assert said.output_tokens_p90 >= 675
    assert said.outlooks["wordy"].output_tokens > said.outlooks["big"].output_tokens


def vector(content: bytes) -> np.ndarray:
    return np.frombuffer(content, "<f2").astype(np.float32)


def test_the_vector_is_loads_then_sketch(made_up: OnnxClassifier) -> None:
    """The prompt's side can be read back: what abilities meet, and what tells how alike prompts are."""
    said, features = made_up.classify(LEARNED), extract(LEARNED)
    found = vector(said.vector)
    assert found[: made_up.loads] == pytest.approx(made_up.place(features).loads, abs=2e-3)
    assert found[made_up.loads :] == pytest.approx(features.sketch, abs=1e-3)
    assert said.artifact == made_up.manifest.model_sha256[:12]


def test_of_who_is_not_learned_from_no_vector_is_made(made_up: OnnxClassifier) -> None:
    """All else of the prediction is the same."""
    learned, other = made_up.classify(LEARNED), made_up.classify(LEARNED, learns=False)
    assert learned.vector
    assert other == msgspec.structs.replace(learned, vector=b"")


@settings(deadline=None)
@given(PROMPTS)
def test_a_stored_vector_gives_the_outlook_again(made_up_artifact: Artifact, prompt: Prompt) -> None:
    """From the vector alone come the probabilities that the prompt had, to the digits of float16."""
    classifier = OnnxClassifier(made_up_artifact, TARGETS)
    said = classifier.classify(prompt)
    names = ["big", "small"]
    found = classifier.adequacies(vector(said.vector)[None, :], names)
    assert found.shape == (1, 2)
    assert found[0] == pytest.approx([said.outlooks[name].adequate for name in names], abs=0.01)


def test_adequacies_are_those_of_the_named_targets(made_up: OnnxClassifier) -> None:
    """A column for each target that is named, in that order; a target without ability is a KeyError."""
    vectors = made_up.sample().vectors
    both = made_up.adequacies(vectors, ["small", "big"])
    assert np.array_equal(both[:, ::-1], made_up.adequacies(vectors, ["big", "small"]))
    assert both.shape == (len(vectors), 2)
    assert made_up.adequacies(vectors, []).shape == (len(vectors), 0)
    with pytest.raises(KeyError):
        made_up.adequacies(vectors, ["unheard"])


def test_only_adopted_targets_with_a_known_ability_have_an_outlook(made_up: OnnxClassifier) -> None:
    """Targets come and go at a reload; one whose ability nobody measured has none, and none is no error."""
    assert set(made_up.classify(LEARNED).outlooks) == {"small", "big", "wordy"}
    made_up.adopt({"other": GPT_4O})
    assert set(made_up.classify(LEARNED).outlooks) == {"other"}
    made_up.adopt({})
    said = made_up.classify(LEARNED)
    assert said.outlooks == {}
    assert said.source == "onnx"


def tuning(classifier: OnnxClassifier, *, artifact: str | None = None, version: int = 1, **fields: object) -> Tuning:
    return msgspec.convert(
        {"version": version, "artifact": artifact or classifier.artifact, **msgspec.to_builtins(fields)}, Tuning
    )


def adequate(classifier: OnnxClassifier, name: str, team_id: str = "") -> float:
    return classifier.classify(LEARNED, team_id).outlooks[name].adequate


def test_what_was_learned_stands_before_what_was_trained(made_up: OnnxClassifier) -> None:
    """A learned row replaces the adopted one, gives an unheard-of target its outlook, and goes with a rollback."""
    before = {name: adequate(made_up, name) for name in ("small", "big")}
    even = Ability(weights=[0.0] * made_up.loads, bias=0.0, log_length=0.5, verdicts=40)
    made_up.tune(tuning(made_up, abilities={"small": even, "unheard": even}))
    assert adequate(made_up, "small") == adequate(made_up, "unheard") == 0.5
    assert adequate(made_up, "big") == before["big"]
    # A reload keeps what was learned.
    made_up.adopt(TARGETS)
    assert adequate(made_up, "small") == 0.5
    made_up.tune(None)
    assert adequate(made_up, "small") == before["small"]
    assert "unheard" not in made_up.classify(LEARNED).outlooks


def test_a_published_row_is_less_sure_and_own_lengths_go_first(made_up: OnnxClassifier) -> None:
    """A row's own reach is added on either side of its chance, and a tuning's length replaces that of the row."""
    even = Ability(weights=[0.0] * made_up.loads, bias=0.0, log_length=0.5, verdicts=40)
    placed = msgspec.structs.replace(even, basis="published", reach=0.1)
    made_up.tune(tuning(made_up, abilities={"small": even, "big": placed}, lengths={"big": 0.5 + float(np.log(3))}))
    found = made_up.classify(LEARNED).outlooks
    assert found["big"].low == pytest.approx(found["small"].low - 0.1)
    assert found["big"].high == pytest.approx(found["small"].high + 0.1)
    assert found["big"].output_tokens == pytest.approx(3 * found["small"].output_tokens, abs=2)


def test_a_rollback_is_an_older_tuning(made_up: OnnxClassifier) -> None:
    """Tuning again leaves nothing of the one before."""
    even = Ability(weights=[0.0] * made_up.loads, bias=0.0)
    trained = adequate(made_up, "big")
    made_up.tune(tuning(made_up, version=1, abilities={"small": even}))
    made_up.tune(tuning(made_up, version=2, abilities={"big": even}))
    assert adequate(made_up, "big") == 0.5
    made_up.tune(tuning(made_up, version=1, abilities={"small": even}))
    assert adequate(made_up, "small") == 0.5
    assert adequate(made_up, "big") == trained


def test_a_tuning_of_another_artifact_is_ignored(made_up: OnnxClassifier) -> None:
    """Rows that were fitted to other loads mean nothing here, nor do rows of another length."""
    before = made_up.classify(LEARNED)
    even = Ability(weights=[0.0] * made_up.loads, bias=0.0)
    made_up.tune(tuning(made_up, artifact="another", abilities={"small": even}))
    assert made_up.classify(LEARNED) == before
    short = Ability(weights=[0.0] * (made_up.loads - 1), bias=0.0)
    made_up.tune(tuning(made_up, abilities={"small": short}))
    assert made_up.classify(LEARNED) == before


def group_at(prompt: Prompt, shift: float) -> Group:
    centre = extract(prompt).sketch.tolist()
    return Group(group_id="slips", centre=centre, shift={"small": shift}, verdicts=50, reach=0.5)


def test_a_groups_shift_moves_its_teams_outlooks(made_up: OnnxClassifier) -> None:
    """A prompt near a team's group gets its shift on the logit; other teams, prompts and targets do not."""
    before, big = adequate(made_up, "small"), adequate(made_up, "big", "ours")
    elsewhere = made_up.classify(Prompt(text="currency search mail"), "ours")
    made_up.tune(tuning(made_up, groups={"ours": [group_at(LEARNED, -2.0)]}))
    odds = before / (1 - before) * np.exp(-2.0)
    assert adequate(made_up, "small", "ours") == pytest.approx(odds / (1 + odds))
    assert adequate(made_up, "big", "ours") == big
    assert adequate(made_up, "small", "theirs") == adequate(made_up, "small") == before
    assert made_up.classify(LEARNED, "ours").group == "slips"
    assert made_up.classify(LEARNED, "ours", learns=False).group == "slips"
    assert made_up.classify(LEARNED, "theirs").group is None
    assert made_up.classify(Prompt(text="currency search mail"), "ours") == elsewhere


def test_a_tuning_that_does_not_fit_leaves_nothing_behind(made_up: OnnxClassifier) -> None:
    """Refused whole, its fitting rows too; and a later reload does not stumble over it."""
    even = Ability(weights=[0.0] * made_up.loads, bias=0.0)
    before = adequate(made_up, "small")
    short = Group(group_id="short", centre=[1.0], shift={}, verdicts=1)
    with pytest.raises(ValueError, match="centre"):
        made_up.tune(tuning(made_up, abilities={"small": even}, groups={"ours": [short]}))
    assert adequate(made_up, "small") == before
    made_up.adopt(TARGETS)
    assert adequate(made_up, "small") == before


def test_a_group_does_not_move_complexity(made_up: OnnxClassifier) -> None:
    """Complexity is of the prompt, for every team the same."""
    before = made_up.classify(LEARNED, "ours")
    made_up.tune(tuning(made_up, groups={"ours": [group_at(LEARNED, -2.0)]}))
    after = made_up.classify(LEARNED, "ours")
    assert (after.complexity, after.vector) == (before.complexity, before.vector)


class Broken(OnnxClassifier):
    """A twin whose graph gives no number for a part of what it is asked."""

    broken: slice = slice(None)

    def scores(self) -> Values:
        scores = super().scores()
        scores[self.broken] = np.nan
        return scores


class Speechless(Broken):
    """One that tells no length."""

    broken = slice(6, 7)


class Doubtful(Broken):
    """One that does not tell how far the network can be trusted."""

    broken = slice(0, 1)


class Unplaced(OnnxClassifier):
    """A twin that fails after its graph."""

    def placed(self, inputs: Inputs) -> PlacedPrompt:
        raise ZeroDivisionError


@pytest.mark.parametrize("kind", [Broken, Speechless, Doubtful, Unplaced])
def test_a_failing_graph_falls_back_and_is_counted(made_up_artifact: Artifact, kind: type[OnnxClassifier]) -> None:
    """When the graph fails on a prompt the rule answers, and the fallback is counted."""
    classifier = kind(made_up_artifact, TARGETS)
    assert classifier.classify(LEARNED, "ours") == HeuristicClassifier().classify(LEARNED)
    assert classifier.fallbacks == 1


def test_a_tuned_row_that_is_no_number_has_no_outlook(made_up: OnnxClassifier) -> None:
    """A learned row that would give no number is left out, and the trained one stands."""
    before = made_up.classify(LEARNED)
    for broken in (
        Ability(weights=[float("nan")] * made_up.loads, bias=0.0),
        Ability(weights=[0.0] * made_up.loads, bias=float("inf")),
    ):
        made_up.tune(Tuning(version=1, artifact=made_up.artifact, abilities={"small": broken, "unheard": broken}))
        assert made_up.classify(LEARNED) == before


def test_a_folder_without_an_artifact_gives_the_heuristic(tmp_path: Path) -> None:
    """When nothing can be loaded the heuristic serves, and says why."""
    classifier = load_classifier(ClassifierSection(artifact_dir=tmp_path))
    assert isinstance(classifier, HeuristicClassifier)
    assert classifier.fallback_reason is not None
    assert "ArtifactMissing" in classifier.fallback_reason


def test_a_mismatched_artifact_gives_the_heuristic(tmp_path: Path, made_up_artifact: Artifact) -> None:
    """An artifact of other feature code is not used, and the reason is told."""
    manifest = msgspec.structs.replace(made_up_artifact.manifest, feature_hash="")
    write_artifact(tmp_path, msgspec.structs.replace(made_up_artifact, manifest=manifest))
    assert "feature code" in str(load_classifier(ClassifierSection(artifact_dir=tmp_path)).fallback_reason)


def test_a_graph_that_does_not_load_is_refused(made_up_artifact: Artifact) -> None:
    """Bytes that are no graph are refused by name."""
    with pytest.raises(ArtifactMalformed):
        OnnxClassifier(msgspec.structs.replace(made_up_artifact, model=b"not a graph"))


def test_a_sample_of_other_loads_is_refused(made_up_artifact: Artifact, made_up: OnnxClassifier) -> None:
    """A sample whose vectors are of another width is no sample of this model."""
    narrow = msgspec.structs.replace(made_up.sample(), vectors=made_up.sample().vectors[:, 1:])
    with pytest.raises(ArtifactMalformed, match="vectors"):
        OnnxClassifier(msgspec.structs.replace(made_up_artifact, sample=write_sample(narrow)))


@pytest.mark.parametrize("broken", ["None", "type(sys)('onnxruntime')"], ids=["missing", "broken"])
def test_without_onnxruntime_the_heuristic_serves(broken: str) -> None:
    """Where it is not installed, or is not whole, nothing fails: the heuristic scores, and says why."""
    code = (
        "import sys\n"
        f"sys.modules['onnxruntime'] = {broken}\n"
        "from classifier.config import ClassifierSection\n"
        "from classifier.onnx_classifier import load_classifier\n"
        "from classifier.prediction import Prompt\n"
        "classifier = load_classifier(ClassifierSection())\n"
        "print(classifier.classify(Prompt(text='hi')).source, classifier.fallback_reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("heuristic RuntimeMissing: onnxruntime does not load")


def test_loading_leaves_no_file_behind(tmp_path: Path) -> None:
    """The telemetry of onnxruntime is off before it loads: it leaves nothing in the folder for temporary files."""
    code = (
        "from classifier.manifest import read_artifact\n"
        "from classifier.runtime import Graph\n"
        "from pathlib import Path\n"
        f"Graph(read_artifact(Path({str(PACKAGED)!r})).model)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"TMPDIR": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_disabled_means_the_heuristic() -> None:
    """`enabled: false` serves the heuristic without looking at any file."""
    classifier = load_classifier(ClassifierSection(enabled=False))
    assert isinstance(classifier, HeuristicClassifier)
    assert classifier.classify(Prompt(text="hi")).source == "heuristic"


def test_serving_imports_no_training_library() -> None:
    """Loading and using the classifier imports none of what only training needs."""
    code = (
        "import sys\n"
        "from classifier.config import ClassifierSection\n"
        "from classifier.explanation import contributions\n"
        "from classifier.onnx_classifier import load_classifier\n"
        "from classifier.prediction import Prompt\n"
        "from classifier.tokens import estimate_tokens\n"
        "assert load_classifier(ClassifierSection()).classify(Prompt(text='hi')).source == 'onnx'\n"
        "estimate_tokens('hi')\n"
        "heavy = {'sklearn', 'onnx', 'numpy.random', 'skl2onnx', 'scipy', 'pyarrow', 'pandas', 'torch', 'litellm', 'tiktoken'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
        "print([name for name in sys.modules if name.startswith('classifier.training')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]


def test_the_models_of_the_made_up_data_are_all_there(made_up: OnnxClassifier) -> None:
    """Each model that was taught can be a target's ability."""
    made_up.adopt({name: name for name in MODELS})
    assert set(made_up.classify(LEARNED).outlooks) == set(MODELS)


def test_threads_score_apart(shipped: OnnxClassifier) -> None:
    """Each thread has a place of its own for what the graph takes and gives, so nobody reads another's."""
    prompts = [Prompt(text=text, tools=number % 2) for number, text in enumerate((*EASY, *HARD))]
    expected = [shipped.classify(prompt) for prompt in prompts]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            assert list(threads.map(shipped.classify, prompts)) == expected


def at_effort(classifier: OnnxClassifier, effort: str) -> dict[str, float]:
    prompt = msgspec.structs.replace(LEARNED, effort=effort)
    return {name: each.adequate for name, each in classifier.classify(prompt).outlooks.items()}


def test_a_requests_effort_chooses_the_row(made_up_artifact: Artifact) -> None:
    """Of those targets that have one for it; the others, and other efforts, are predicted as always."""
    classifier = OnnxClassifier(made_up_artifact, TARGETS, {"small": {"high": GPT_4O}, "unheard": {"high": LLAMA}})
    usual = at_effort(classifier, "")
    assert at_effort(classifier, "low") == usual
    high = at_effort(classifier, "high")
    assert high["small"] == usual["big"] != usual["small"]
    assert {**high, "small": usual["small"]} == usual
    classifier.adopt(TARGETS)
    assert at_effort(classifier, "high") == usual


def test_what_was_learned_at_the_usual_effort_moves_the_others_too(made_up_artifact: Artifact) -> None:
    """By as much: a row that is a logit better than shipped is so at every effort."""
    classifier = OnnxClassifier(made_up_artifact, TARGETS, {"small": {"high": GPT_4O}})
    shipped = classifier.abilities["small"]
    better = msgspec.structs.replace(shipped, bias=shipped.bias + 1.0)
    before = at_effort(classifier, "high")["small"]
    classifier.tune(tuning(classifier, abilities={"small": better}))
    after = at_effort(classifier, "high")["small"]
    assert math.log(after / (1 - after)) == pytest.approx(math.log(before / (1 - before)) + 1.0)


def test_the_best_known_model_is_told_beside_the_targets(made_up: OnnxClassifier) -> None:
    """It stands for a baseline model without a row; no target is called so, and it is among no outlooks."""
    found = made_up.classify(LEARNED)
    assert found.best_known is not None
    assert set(found.outlooks) == {"small", "big", "wordy"}
    every = OnnxClassifier(read_artifact(PACKAGED), {"gpt-4o": "gpt-4o-2024-05-13"})
    proof = every.classify(Prompt(text=HARD[0]))
    assert proof.best_known is not None
    assert proof.best_known > proof.outlooks["gpt-4o"].adequate
    every.adopt({})
    assert every.classify(Prompt(text=HARD[0])).best_known is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("What is 2+2?", ""),
        ("Continue", ""),
        ("asdf", ""),
        ("hello", ""),
        ("?", ""),
        ("Write a python function that reverses a list.", "code"),
        ("Prove that sqrt(2) is irrational", "maths"),
        ("Write a poem about the sea", "text"),
    ],
)
def test_a_kind_is_told_where_it_is_clear(text: str, kind: str) -> None:
    """By the model that ships: of a word or two, and where scores differ little, none is told rather than a wrong one."""
    assert open_classifier(None, {}).classify(Prompt(text=text)).kind == kind


@pytest.mark.parametrize(
    ("chars", "chance", "is_clear"),
    [(41, 0.6, True), (41, 0.59, False), (40, 0.79, False), (40, 0.8, True), (8, 1.0, False)],
)
def test_short_prompts_have_to_be_surer(chars: int, chance: float, is_clear: bool) -> None:
    """As scores of them are right less often than they say."""
    assert has_clear_kind("x" * chars, chance) is is_clear
