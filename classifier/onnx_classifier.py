"""The trained classifier: features, what they look up in tables, an ONNX graph, and abilities."""

import importlib.resources
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.config import ClassifierSection
from classifier.features import Features, extract_by_numpy
from classifier.heuristic import HeuristicClassifier, asked_tokens, bounded_tokens
from classifier.learning.groups import GroupTable
from classifier.learning.labels import probability
from classifier.manifest import Artifact, ArtifactError, ArtifactMalformed, Manifest, read_artifact
from classifier.placing import PlacedPrompt, Values, logistic, place_by
from classifier.prediction import Prediction, Prompt, TargetPrediction
from classifier.runtime import Graph
from classifier.sample import Sample, read_sample
from classifier.tables import Inputs, Tables, look_up_features, look_up_in, read_tables
from classifier.tuning import SKETCH, Ability, Group, Tuning

Floats = NDArray[np.float64]

NINE_IN_TEN: Final = 1.645
"""Standard deviations to either side of the mean that hold 90 % of a normal distribution."""
BEST_KNOWN: Final = ""
"""The name of the best of all known rows in a table of targets' rows: no target has it."""
_ARTIFACT_CHARS: Final = 12
_MAX_LOG_TOKENS: Final = 30.0


class AbilityTable:
    """Abilities by name, as one matrix."""

    def __init__(self, abilities: Mapping[str, Ability]) -> None:
        self.names = tuple(abilities)
        self.rows = {name: at for at, name in enumerate(self.names)}
        self._weights = np.array([each.weights for each in abilities.values()], np.float64).T
        self._bias = np.array([each.bias for each in abilities.values()], np.float64)
        self.lengths = [math.exp(min(_MAX_LOG_TOKENS, each.log_length)) for each in abilities.values()]
        """Factors of the usual length."""
        self.reaches = [each.reach for each in abilities.values()]
        """Width that is added to either side of an interval."""

    def logits(self, loads: Floats) -> Floats:
        """Return the logits of shape (abilities,) for one prompt's loads, or (prompts, abilities) for many."""
        if not self.names:
            return np.zeros((*loads.shape[:-1], 0))
        # Of some dozen numbers the method takes less than half of the operator's time.
        said: Floats = loads.dot(self._weights)
        said += self._bias
        return said


class ScoringContext(threading.local):
    """The scoring state of a thread: the graph reads the inputs where they are filled in, and leaves its output here."""

    def __init__(self, tables: Tables, graph: Graph, manifest: Manifest) -> None:
        self.inputs = Inputs(tables)
        scores = np.zeros((1, graph.width), np.float32)
        self.scores: Values = scores[0]
        self.run = graph.on(self.inputs.gist, self.inputs.sums, scores)
        self.place = place_by(self.scores, manifest)
        self._vector = np.empty(manifest.loads + SKETCH, "<f2")
        self._loads, self._sketch = self._vector[: manifest.loads], self._vector[manifest.loads :]

    def vector(self, loads: Floats) -> bytes:
        """Return loads, then the sketch of the prompt that was looked up last, as little-endian float16."""
        self._loads[:] = loads
        self._sketch[:] = self.inputs.sketch
        return self._vector.tobytes()


class OnnxClassifier:
    """The trained classifier; a prompt that it cannot score falls back to the heuristic, and is counted."""

    fallback_reason: None = None

    def __init__(
        self, artifact: Artifact, abilities: Mapping[str, str] = {}, efforts: Mapping[str, Mapping[str, str]] = {}
    ) -> None:
        """`abilities` and `efforts` are as in `adopt`."""
        self.manifest: Manifest = artifact.manifest
        self.artifact = artifact.manifest.model_sha256[:_ARTIFACT_CHARS]
        self.loads = artifact.manifest.loads
        self.fallbacks = 0
        self._tables = read_tables(artifact.tables, self.loads)
        self._look_up = look_up_in(self._tables)
        self._context = ScoringContext(self._tables, Graph(artifact.model), artifact.manifest)
        self._sample = read_sample(artifact.sample, self.loads + SKETCH)
        self._rule = HeuristicClassifier()
        lengths = artifact.manifest.lengths
        self._log_p90 = math.log(lengths.known_p90), math.log(lengths.other_p90)
        self._best = _best_of(artifact.manifest.abilities, self._sample, self.loads)
        self._tuning: Tuning | None = None
        self.abilities: dict[str, Ability] = {}
        """Each target's row as shipped, without any tuning."""
        self.rows: Mapping[str, Ability] = {}
        """Each target's row in use, shipped or learned; the others have no prediction."""
        self.adopt(abilities, efforts)

    def classify(self, prompt: Prompt, team_id: str = "", *, learns: bool = True) -> Prediction:
        """Return the prediction for a prompt, with the shifts of the team's groups. Its `vector` is empty where nothing is
        learned from it. Never raises.
        """
        try:
            inputs = self.look_up(prompt)
            table = self._by_effort.get(prompt.effort, self._table) if prompt.effort else self._table
            placed = self.placed(inputs)
            is_clear = has_clear_kind(prompt.text, placed.kind_chance)
            return self._prediction(inputs, placed, table, team_id, is_clear=is_clear, learns=learns)
        except Exception:  # noqa: BLE001 - A request must never fail because it could not be weighed.
            self.fallbacks += 1
            return self._rule.classify(prompt)

    def adopt(self, abilities: Mapping[str, str], efforts: Mapping[str, Mapping[str, str]] = {}) -> None:
        """Set the targets, with the name of each one's row, and by target the names of its rows at other reasoning efforts than
        its usual one. A target of an unknown row gets no prediction.
        """
        known = self.manifest.abilities
        named = {target_id: known[name] for target_id, name in abilities.items() if name in known}
        by_effort: dict[str, dict[str, Ability]] = {}
        for target_id, rows in efforts.items():
            for effort, name in rows.items():
                if name in known and target_id in named:
                    by_effort.setdefault(effort, {})[target_id] = known[name]
        self._rebuild(named, by_effort, self._tuning)

    def tune(self, tuning: Tuning | None) -> None:
        """Put a tuning in use, or none. A tuning of another artifact counts as none.

        Raises ValueError for one that does not fit; then the present one stays.
        """
        fits = tuning is not None and tuning.artifact == self.artifact
        self._rebuild(self.abilities, self._efforts, tuning if fits else None)

    @property
    def measured(self) -> frozenset[str]:
        """Targets with a row, shipped or learned."""
        return frozenset(self.rows)

    def sample(self) -> Sample:
        """Return the held-out prompts of the training data, as numbers."""
        return self._sample

    def adequacies(self, vectors: NDArray[np.float32], target_ids: Sequence[str]) -> Floats:
        """Return (n, targets): probabilities that these targets' answers are adequate. Raises KeyError for an unknown
        target.
        """
        # Asked in threads, too, while a reload or a tuning may put another table in its place.
        table = self._table
        rows = [table.rows[target_id] for target_id in target_ids]
        return probability(table.logits(vectors[:, : self.loads].astype(np.float64))[:, rows])

    def place(self, features: Features) -> PlacedPrompt:
        """Return the place of a prompt of these features. Raises NotFinite."""
        inputs = self._context.inputs
        look_up_features(self._tables, features, inputs)
        return self.placed(inputs)

    def look_up(self, prompt: Prompt) -> Inputs:
        """Fill in the graph's inputs of a prompt. They are this thread's, and stand until the thread's next prompt."""
        inputs = self._context.inputs
        self._look_up(prompt, inputs)
        return inputs

    def scores(self) -> Values:
        """Return the graph's scores for this thread's inputs, which stands until the thread's next prompt."""
        context = self._context
        context.run()
        return context.scores

    def placed(self, inputs: Inputs) -> PlacedPrompt:
        """Return the place of the prompt that was looked up last in this thread. Raises NotFinite."""
        self.scores()
        return self._context.place(inputs.tools)

    def _prediction(
        self, inputs: Inputs, placed: PlacedPrompt, table: AbilityTable, team_id: str, *, is_clear: bool, learns: bool
    ) -> Prediction:
        group = self._groups.assign(team_id, inputs.sketch) if self._groups is not None else None
        log_tokens = placed.log_tokens
        # Lengths are mixed as factors.
        known, other = self._log_p90
        longer = placed.trust * known + (1 - placed.trust) * other
        asked = asked_tokens(inputs.asked)
        if asked is not None:
            log_tokens = math.log(asked)
        tokens, p90 = _tokens(log_tokens), _tokens(log_tokens + longer)
        best, outlooks = self._outlooks(table, placed, tokens, p90, group)
        return Prediction(
            complexity=placed.complexity,
            source="onnx",
            kind=self.manifest.kinds[placed.kind] if is_clear else "",
            expected_output_tokens=bounded_tokens(tokens),
            output_tokens_p90=bounded_tokens(p90),
            outlooks=outlooks,
            best_known=best,
            vector=self._context.vector(placed.loads) if learns else b"",
            artifact=self.artifact,
            group=group.group_id if group is not None else None,
        )

    def _outlooks(
        self, table: AbilityTable, placed: PlacedPrompt, tokens: float, p90: float, group: Group | None
    ) -> tuple[float | None, dict[str, TargetPrediction]]:
        """Return the best known model's chance, and each target's prediction."""
        if not table.names:
            return None, {}
        logits = table.logits(placed.loads).tolist()
        best = logistic(logits[0])
        if group is not None:
            logits = [logit + group.shift.get(name, 0.0) for logit, name in zip(logits, table.names, strict=True)]
        spread = self.manifest.spread
        # Half of a difference's uncertainty lies on either target.
        reach = NINE_IN_TEN * (placed.trust * spread.known + (1 - placed.trust) * spread.other) / 2
        found = {}
        for name, logit, length, wider in zip(table.names, logits, table.lengths, table.reaches, strict=True):
            chance = logistic(logit)
            low, high = chance - reach - wider, chance + reach + wider
            found[name] = TargetPrediction(
                adequate=chance,
                # Comparisons cost a third of what calls of max and min do, and here are most of them.
                low=low if low > 0 else 0.0,
                high=high if high < 1 else 1.0,
                output_tokens=bounded_tokens(tokens * length),
                output_tokens_p90=bounded_tokens(p90 * length),
            )
        del found[BEST_KNOWN]
        return best, found

    def _rebuild(
        self, abilities: dict[str, Ability], efforts: Mapping[str, Mapping[str, Ability]], tuning: Tuning | None
    ) -> None:
        """Replace tables and groups together; everything is built first, so a failure changes nothing. `efforts` has rows by
        effort and target.
        """
        learned = tuning.abilities if tuning is not None else {}
        fitting = {name: row for name, row in learned.items() if len(row.weights) == self.loads and _is_finite(row)}
        # Learned rows are of targets; one that is configured no more is left out by whoever plans.
        rows = {**abilities, **fitting}
        lengths = tuning.lengths if tuning is not None else {}
        for name, log_length in lengths.items():
            if name in rows and math.isfinite(log_length):
                rows[name] = msgspec.structs.replace(rows[name], log_length=log_length)
        changed = {name: row for name, row in rows.items() if name in fitting or name in lengths}
        best = {BEST_KNOWN: self._best} if rows and self._best is not None else {}
        table = AbilityTable({**best, **rows})
        by_effort = {
            effort: AbilityTable({**best, **rows, **_at_effort(abilities, changed, theirs)})
            for effort, theirs in efforts.items()
        }
        groups = GroupTable(tuning.groups) if tuning is not None and tuning.groups else None
        self.abilities, self._efforts, self._tuning, self.rows = abilities, efforts, tuning, rows
        self._table, self._by_effort, self._groups = table, by_effort, groups


def _best_of(abilities: Mapping[str, Ability], sample: Sample, loads: int) -> Ability | None:
    """Return the row of the model that does best over the sample."""
    if not abilities:
        return None
    table = AbilityTable(abilities)
    means = probability(table.logits(sample.vectors[:, :loads].astype(np.float64))).T @ sample.weights
    return abilities[table.names[int(np.argmax(means))]]


def _at_effort(
    shipped: Mapping[str, Ability], learned: Mapping[str, Ability], at_effort: Mapping[str, Ability]
) -> dict[str, Ability]:
    """Return the rows of targets at an effort that is not their usual one. A target is learned at its usual effort: the
    difference to the shipped row there is added here.
    """
    return {
        target_id: row if target_id not in learned else _moved(learned[target_id], shipped[target_id], row)
        for target_id, row in at_effort.items()
    }


_CLEAR: Final = 0.6
"""Probability from which a kind is told. Of 4,000 prompts whose kind is known two of three were right from .6, two of five below .5."""
_CLEAR_OF_SHORT: Final = 0.8
_SHORT_CHARS: Final = 40
"""Of prompts this short half were right at .6, and two of three from .8."""
_FEWEST_WORDS: Final = 3
_TINY_CHARS: Final = 16


def has_clear_kind(text: str, chance: float) -> bool:
    """Return True where the likeliest kind of task is worth telling: of a word or two nothing is known, however sure the scores."""
    if chance < _CLEAR:
        return False
    if len(text) > _SHORT_CHARS:
        return True
    tiny = len(text) < _TINY_CHARS and len(text.split()) < _FEWEST_WORDS
    return chance >= _CLEAR_OF_SHORT and not tiny


def _moved(row: Ability, since: Ability, to: Ability) -> Ability:
    """Return the row plus the difference of `to` and `since`."""
    return msgspec.structs.replace(
        row,
        weights=[mine + new - old for mine, old, new in zip(row.weights, since.weights, to.weights, strict=True)],
        bias=row.bias + to.bias - since.bias,
        log_length=row.log_length + to.log_length - since.log_length,
    )


def _is_finite(ability: Ability) -> bool:
    return math.isfinite(sum(ability.weights) + ability.bias + ability.log_length)


def _tokens(log_tokens: float) -> float:
    return math.exp(min(_MAX_LOG_TOKENS, log_tokens))


def warmed(classifier: OnnxClassifier) -> OnnxClassifier:
    """Return the classifier after a first run, which allocates. Raises ArtifactMalformed when the graph does not fit the
    manifest.
    """
    try:
        placed = classifier.place(extract_by_numpy(Prompt(text="")))
    except Exception as error:  # onnxruntime's errors share no base class.
        raise ArtifactMalformed(f"the graph does not run: {type(error).__name__}") from error
    if placed.loads.shape != (classifier.loads,) or not 0 <= placed.kind < len(classifier.manifest.kinds):
        raise ArtifactMalformed("the graph gives other outputs than the manifest describes")
    return classifier


def open_classifier(
    folder: Path | None = None, abilities: Mapping[str, str] = {}, efforts: Mapping[str, Mapping[str, str]] = {}
) -> OnnxClassifier:
    """Return the classifier from `folder`, or the packaged one. Raises ArtifactError."""
    if folder is not None:
        return warmed(OnnxClassifier(read_artifact(folder), abilities, efforts))
    with importlib.resources.as_file(importlib.resources.files("classifier") / "artifacts") as packaged:
        return open_classifier(packaged, abilities, efforts)


def load_classifier(
    section: ClassifierSection, abilities: Mapping[str, str] = {}, efforts: Mapping[str, Mapping[str, str]] = {}
) -> OnnxClassifier | HeuristicClassifier:
    """Return the trained classifier, or the heuristic with the reason in its `fallback_reason`."""
    if not section.enabled:
        return HeuristicClassifier("disabled by configuration")
    try:
        return open_classifier(section.artifact_dir, abilities, efforts)
    except ArtifactError as error:
        return HeuristicClassifier(f"{type(error).__name__}: {error}")
