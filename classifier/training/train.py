"""Train the shipped classifier: `python -m classifier.training.train --data DIR`.

DIR holds prompts.parquet and outcomes.parquet. Every number in the manifest's metrics comes from
prompts that the measured model had not seen, neither them nor another wording of their question.
"""

import argparse
import hashlib
import importlib.metadata
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.model_selection import GroupKFold

from classifier.features import feature_hash
from classifier.heuristic import bounded_tokens, structural_complexity
from classifier.manifest import FORMAT, Artifact, Blend, Calibration, Manifest, Reference, write_artifact
from classifier.onnx_classifier import OnnxClassifier
from classifier.training.data import Corpus, Floats, Integers, load, teaching_gain
from classifier.training.evaluate import PAIRS, Measured, Pair, measured
from classifier.training.model import Fitted, fit, predict, structures, term_counts, to_onnx
from classifier.training.references import REFERENCE_PROMPTS

ALPHA: Final = 4.0
FOLDS: Final = 10
CHARS_PER_TOKEN: Final = 4.0
KNOTS: Final = 65
TRUST: Final = {"open": 1.0, "choice": 1.0, "tools": 0.9}
KNOWN_FROM: Final = 0.45
KNOWN_TO: Final = 0.75
HALF_TERMS: Final = 40.0
FULL_TERMS_TOOLS: Final = 20.0
LIBRARIES: Final = ("numpy", "scikit-learn", "scipy", "onnx", "onnxruntime", "pyarrow")


class Table(msgspec.Struct, frozen=True):
    """The corpus as arrays."""

    counts: sparse.csr_matrix
    facts: Floats
    shapes: Integers
    gains: Floats
    output_tokens: Floats

    def fitted(self, rows: Integers, gains: Floats | None = None) -> Fitted:
        taught = self.gains[rows] if gains is None else gains
        tokens = self.output_tokens[rows]
        # A pair is measured on its own rows; without lengths there, any length will do.
        tokens = tokens if not np.isnan(tokens).all() else np.ones(len(rows))
        return fit(self.counts[rows], self.facts[rows], self.shapes[rows], taught, tokens, ALPHA)

    def predicted(self, model: Fitted, rows: Integers) -> tuple[Floats, Floats, Floats]:
        return predict(model, self.counts[rows], self.facts[rows], self.shapes[rows])


def folds(groups: NDArray[Any], seed: int) -> Iterator[tuple[Integers, Integers]]:
    count = min(FOLDS, len(np.unique(groups)))
    yield from GroupKFold(count, shuffle=True, random_state=seed).split(groups, groups=groups)


def held_out(table: Table, groups: Integers, seed: int) -> tuple[Floats, Floats, Floats]:
    """Gain, known share and log tokens of every prompt from a model that never saw its question."""
    out = tuple(np.zeros(len(groups)) for _ in range(3))
    for number, (taught, kept) in enumerate(folds(groups, seed), 1):
        for column, values in zip(out, table.predicted(table.fitted(taught), kept), strict=True):
            column[kept] = values
        say(f"fold {number} of {FOLDS}")
    return out[0], out[1], out[2]


def own_model(table: Table, groups: NDArray[Any], rows: Integers, gain: Floats, seed: int) -> Floats:
    """Held-out scores of a model trained on one pair's rows alone."""
    score = np.zeros(len(rows))
    for taught, kept in folds(groups[rows], seed):
        score[kept] = table.predicted(table.fitted(rows[taught], gain[taught]), rows[kept])[0]
    return score


def equal_sources(sources: NDArray[np.str_]) -> Floats:
    """Weights that add up to 1 and let every source count the same, however many rows it has."""
    _, which, sizes = np.unique(sources, return_inverse=True, return_counts=True)
    return 1 / (len(sizes) * sizes[which])


def weighted_quantiles(values: Floats, weights: Floats, shares: Floats) -> Floats:
    order = np.argsort(values, kind="stable")
    middle = np.cumsum(weights[order]) - weights[order] / 2
    quantiles: Floats = np.interp(shares, middle / weights.sum(), values[order])
    return quantiles


def calibrated(gains: Floats, weights: Floats) -> Calibration:
    shares = np.linspace(0, 1, KNOTS)
    knots, first = np.unique(np.round(weighted_quantiles(gains, weights, shares), 6), return_index=True)
    return Calibration(gain=knots.tolist(), complexity=np.round(shares[first], 6).tolist())


def pair_metrics(corpus: Corpus, table: Table, pair: Pair, scores: dict[str, Floats], seed: int) -> dict[str, Any]:
    gain = corpus.scores[pair.strong] - corpus.scores[pair.weak]
    rows = np.flatnonzero((corpus.sources == pair.source) & ~np.isnan(gain))
    gain = gain[rows]
    found: dict[str, Measured] = {name: measured(score[rows], gain, seed) for name, score in scores.items()}
    found["own_model"] = measured(own_model(table, corpus.groups, rows, gain, seed), gain, seed)
    if len(np.unique(corpus.categories[rows])) >= 5:
        found["own_model_leave_category_out"] = measured(
            own_model(table, corpus.categories, rows, gain, seed), gain, seed
        )
    return {**msgspec.structs.asdict(pair), **msgspec.to_builtins(found)}


def train(corpus: Corpus, seed: int, *, metrics: bool = True) -> Artifact:
    """The artifact for a corpus; the same corpus and seed give the same bytes."""
    gains = teaching_gain(corpus)
    table = Table(
        term_counts(corpus.features),
        structures(corpus.features),
        corpus.shapes,
        gains,
        corpus.output_chars / CHARS_PER_TOKEN,
    )
    rule = np.array([structural_complexity(found) for found in corpus.features])
    model_gain, known, log_tokens = held_out(table, corpus.groups, seed)
    weights = equal_sources(corpus.sources)
    low, high = weighted_quantiles(model_gain, weights, np.array([0.02, 0.98]))
    blend = Blend(
        trust=TRUST,
        known_from=KNOWN_FROM,
        known_to=KNOWN_TO,
        half_terms=HALF_TERMS,
        full_terms_tools=FULL_TERMS_TOOLS,
        low_gain=round(float(low), 6),
        high_gain=round(float(high), 6),
    )
    terms = np.asarray(table.counts.sum(axis=1)).ravel()
    columns = zip(corpus.shapes.tolist(), known.tolist(), terms.tolist(), strict=True)
    trust = np.array([blend.trust_in(shape, share, size) for shape, share, size in columns])
    blended = np.array([blend.gain(*row) for row in zip(model_gain, rule, trust, strict=True)])
    say("fitting the model that ships")
    model = to_onnx(table.fitted(np.arange(len(gains))))
    manifest = Manifest(
        format=FORMAT,
        feature_hash=feature_hash(),
        model_sha256=hashlib.sha256(model).hexdigest(),
        data_sha256=corpus.data_sha256,
        seed=seed,
        rows={str(name): int(size) for name, size in zip(*np.unique(corpus.sources, return_counts=True), strict=True)},
        libraries={name: importlib.metadata.version(name) for name in LIBRARIES},
        blend=blend,
        calibration=calibrated(blended, weights),
        references=[],
        metrics={},
        training={"alpha": ALPHA, "folds": FOLDS, "median_trust": _by_source(corpus, trust)},
    )
    if metrics:
        scores = {"shipped": blended, "model_without_rule": model_gain, "rule": rule, "length": table.facts[:, 0]}
        found = [pair_metrics(corpus, table, pair, scores, seed) for pair in progress(PAIRS)]
        manifest = msgspec.structs.replace(
            manifest,
            metrics={
                "pairs": found,
                "all_sources": _across_sources(corpus, scores, seed),
                "output_tokens": _length_error(table, log_tokens),
            },
        )
    artifact = Artifact(model, manifest)
    return Artifact(model, msgspec.structs.replace(manifest, references=_references(artifact)))


def _across_sources(corpus: Corpus, scores: dict[str, Floats], seed: int) -> dict[str, Any]:
    """One curve over every source at once for a 70B Llama and GPT-4o: what a mixed stream of prompts would see."""
    strong = corpus.scores["gpt-4o-2024-05-13"]
    seventy = [strong - corpus.scores[name] for name in ("llama-3-70b-instruct", "llama-3.1-70b-instruct")]
    gain = np.where(np.isnan(seventy[0]), seventy[1], seventy[0])
    rows = ~np.isnan(gain)
    return {name: msgspec.to_builtins(measured(score[rows], gain[rows], seed)) for name, score in scores.items()}


def _by_source(corpus: Corpus, values: Floats) -> dict[str, float]:
    return {
        str(source): round(float(np.median(values[corpus.sources == source])), 3)
        for source in np.unique(corpus.sources)
    }


def _length_error(table: Table, log_tokens: Floats) -> dict[str, float]:
    rows = ~np.isnan(table.output_tokens)
    said = np.array([bounded_tokens(float(np.exp(value))) for value in log_tokens[rows]])
    error = 100 * abs(said / np.maximum(table.output_tokens[rows], 1) - 1)
    return {
        "n": int(rows.sum()),
        "median_error_percent": round(float(np.median(error)), 1),
        "p90_error_percent": round(float(np.percentile(error, 90)), 1),
    }


def _references(artifact: Artifact) -> list[Reference]:
    """What this run's own artifact says of a few prompts: whoever loads it can check that it says so still."""
    classifier = OnnxClassifier(artifact)
    said = [(prompt, classifier.classify(prompt)) for prompt in REFERENCE_PROMPTS]
    return [
        Reference(
            prompt=prompt,
            complexity=round(found.complexity, 6),
            expected_output_tokens=found.expected_output_tokens,
        )
        for prompt, found in said
    ]


_STARTED = time.monotonic()


def say(line: str) -> None:
    print(f"{time.monotonic() - _STARTED:6.1f} s  {line}", flush=True)


def progress(pairs: tuple[Pair, ...]) -> Iterator[Pair]:
    for pair in pairs:
        say(f"measuring {pair.source}: {pair.weak} / {pair.strong}")
        yield pair


def show(manifest: Manifest) -> None:
    for row in manifest.metrics["pairs"]:
        parts = [
            f"{name} {row[name]['apgr']:.3f} [{row[name]['low']:.3f}, {row[name]['high']:.3f}] "
            f"({row[name]['cpt50']} / {row[name]['cpt80']})"
            for name in (
                "shipped",
                "model_without_rule",
                "rule",
                "length",
                "own_model",
                "own_model_leave_category_out",
            )
            if name in row
        ]
        print(f"{row['source']} {row['weak']} / {row['strong']}\n    " + "\n    ".join(parts))
    print("all sources, Llama 70B / GPT-4o", {k: v["apgr"] for k, v in manifest.metrics["all_sources"].items()})
    print("output tokens", manifest.metrics["output_tokens"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with prompts.parquet and outcomes.parquet")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "artifacts")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    corpus = load(given.data)
    say(
        f"{len(corpus.texts)} prompts, {len(np.unique(corpus.groups))} different questions, {len(corpus.scores)} models"
    )
    artifact = train(corpus, given.seed)
    write_artifact(given.out, artifact)
    show(artifact.manifest)
    say(f"wrote {len(artifact.model)} bytes of model and its manifest to {given.out}")


if __name__ == "__main__":
    main()
