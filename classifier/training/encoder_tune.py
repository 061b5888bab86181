"""Fine-tunes the sentence encoder on outcomes: loads and gains, all layers, a table of words that stays as it is.

    python -m classifier.training.encoder_tune --data DIR --model paraphrase-MiniLM-L3-v2.onnx \
        --vocabulary vocab.txt --out tuned.npz [--hold K]

It needs PyTorch, which nothing else here does; `encoder_build --tuned` makes the served file of what it writes.
With `--hold K` (of `FOLDS`) that fold's questions are kept out, and what the tuned encoder says of them goes to
`--out` as well, so that whatever is fitted on top sees only answers about prompts which were not taught.
"""

import argparse
import importlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.encoder import MAX_TOKENS
from classifier.training.data import Corpus, load
from classifier.training.encoder_build import EPSILON, HEADS, Weights, packaged_weights
from classifier.training.evaluate import PAIRS
from classifier.training.factors import taught_loads
from classifier.wordpiece import WordPiece

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

FOLDS: Final = 3
TAUGHT_TOKENS: Final = 192
"""Fewer than are read when serving, for time; one prompt in six is longer."""
BATCH_TOKENS: Final = 2048
RATE: Final = 1.2e-4
HEAD_RATE: Final = 10.0
WARM_UP: Final = 0.08
DECAY: Final = 0.01
FEW_ROWS: Final = 3_000
MOST_WEIGHT: Final = 3.0
"""A row of a small source counts up to so much more."""
LOAD_WEIGHT: Final = 0.3
RAW_WEIGHT: Final = 0.7
_FROZEN: Final = ("embeddings.word_embeddings", "embeddings.position_embeddings", "embeddings.token_type_embeddings")


class Lessons(msgspec.Struct, frozen=True):
    """What every prompt is taught with: columns of mean 0 and deviation 1, 0 and no weight where unknown."""

    targets: Floats
    weights: Floats
    mean: Floats
    deviation: Floats
    """(columns,): what was taken off and divided by."""
    pairs: list[tuple[str, str, str]]
    """Source, weak and strong model of each gain."""
    gains: list[int]
    """The columns of the pairs' gains as the factors tell them."""


def lessons(corpus: Corpus, rows: Integers) -> Lessons:
    """Of `rows` alone: the loads, and for each pair its gain as it was and as the factors tell it."""
    outcomes, sources = corpus.outcomes[rows], corpus.sources[rows]
    lesson = taught_loads(outcomes, sources)
    expected = lesson.basis.outcomes(lesson.loads)
    columns, shares = list(lesson.loads.T), [LOAD_WEIGHT] * lesson.loads.shape[1]
    pairs: list[tuple[str, str, str]] = []
    gains: list[int] = []
    for pair in PAIRS:
        if {pair.weak, pair.strong} <= set(corpus.models) and pair.source in sources:
            pairs.append((pair.source, pair.weak, pair.strong))
            gains.append(len(columns) + 1)
            weak, strong = corpus.models.index(pair.weak), corpus.models.index(pair.strong)
            for told, share in ((outcomes, RAW_WEIGHT), (expected, 1.0)):
                columns.append(np.where(sources == pair.source, told[:, strong] - told[:, weak], np.nan))
                shares.append(share)
    table = np.stack(columns, axis=1)
    known = ~np.isnan(table)
    mean, deviation = np.nanmean(table, axis=0), np.maximum(np.nanstd(table, axis=0), 1e-6)
    scaled = np.where(known, (table - mean) / deviation, 0.0)
    _, which, sizes = np.unique(sources, return_inverse=True, return_counts=True)
    row_weights = np.clip(np.sqrt(FEW_ROWS / sizes), 1.0, MOST_WEIGHT)[which]
    weights = known * np.array(shares) * row_weights[:, None]
    return Lessons(
        targets=scaled.astype(np.float32),
        weights=weights.astype(np.float32),
        mean=mean.astype(np.float32),
        deviation=deviation.astype(np.float32),
        pairs=pairs,
        gains=gains,
    )


def gain_head(given: Lessons, head: Floats, bias: Floats) -> dict[str, Floats]:
    """The head as weights from vector to each pair's gain, in units of outcomes."""
    scale = given.deviation[given.gains]
    return {
        "gain_weights": (head[:, given.gains] * scale).astype(np.float32),
        "gain_bias": (bias[given.gains] * scale + given.mean[given.gains]).astype(np.float32),
    }


def held_fold(groups: Integers, number: int, seed: int = 0) -> NDArray[np.bool_]:
    """Which rows a fold keeps; a question is in one fold alone."""
    questions, which = np.unique(groups, return_inverse=True)
    dealt = np.random.default_rng(seed).permutation(len(questions)) % FOLDS
    held: NDArray[np.bool_] = dealt[which] == number
    return held


def batches(lengths: Integers, draw: np.random.Generator) -> Iterator[Integers]:
    """Prompts of about the same length, so that little is padded, in random order."""
    order = np.argsort(lengths * draw.uniform(0.85, 1.15, len(lengths)))
    found: list[list[int]] = [[]]
    widest = 0
    for row in order.tolist():
        widest = max(widest, int(lengths[row]))
        if found[-1] and widest * (len(found[-1]) + 1) > BATCH_TOKENS:
            found.append([])
            widest = int(lengths[row])
        found[-1].append(row)
    for at in draw.permutation(len(found)):
        yield np.array(found[at])


def rate_at(step: int, steps: int) -> float:
    """Up over the first steps, then down to nothing in a straight line."""
    done = step / max(1, steps)
    return done / WARM_UP if done < WARM_UP else max(0.0, (1 - done) / (1 - WARM_UP))


def _torch() -> Any:
    """PyTorch, which is in none of the extras: only this script needs it."""
    return importlib.import_module("torch")


class Tuner:
    """BERT as plain functions of its named weights, and one linear head for all targets."""

    def __init__(self, weights: Weights, targets: int) -> None:
        self.torch = torch = _torch()
        torch.manual_seed(0)
        self.weights = {name: torch.tensor(array) for name, array in weights.items()}
        self.taught = {name: tensor for name, tensor in self.weights.items() if not name.startswith(_FROZEN)}
        for tensor in self.taught.values():
            tensor.requires_grad_()
        self.layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
        self.head = torch.zeros(weights["embeddings.LayerNorm.weight"].shape[0], targets, requires_grad=True)
        self.head_bias = torch.zeros(targets, requires_grad=True)

    def _dense(self, value: Any, key: str) -> Any:
        return value @ self.weights[f"{key}.weight"] + self.weights[f"{key}.bias"]

    def _norm(self, value: Any, key: str) -> Any:
        scale, bias = self.weights[f"{key}.weight"], self.weights[f"{key}.bias"]
        return self.torch.nn.functional.layer_norm(value, scale.shape, scale, bias, EPSILON)

    def _attended(self, value: Any, key: str, masked: Any) -> Any:
        texts, tokens, width = value.shape

        def heads(part: str) -> Any:
            return self._dense(value, f"{key}.self.{part}").view(texts, tokens, HEADS, -1).transpose(1, 2)

        likeness = heads("query") @ heads("key").transpose(2, 3) * (width // HEADS) ** -0.5 + masked
        mixed = self.torch.softmax(likeness, -1) @ heads("value")
        return self._dense(mixed.transpose(1, 2).reshape(texts, tokens, width), f"{key}.output.dense")

    def vectors(self, texts: Sequence[Sequence[int]]) -> Any:
        torch, widest = self.torch, max(map(len, texts))
        tokens = torch.zeros(len(texts), widest, dtype=torch.int64)
        there = torch.zeros(len(texts), widest)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = torch.tensor(text)
            there[row, : len(text)] = 1.0
        value = self.weights["embeddings.word_embeddings.weight"][tokens]
        value = value + self.weights["embeddings.position_embeddings.weight"][:widest]
        value = value + self.weights["embeddings.token_type_embeddings.weight"][0]
        value = self._norm(value, "embeddings.LayerNorm")
        with torch.autocast("cpu", torch.bfloat16):
            masked = ((there - 1) * 1e4)[:, None, None, :].bfloat16()
            for layer in range(self.layers):
                key = f"encoder.layer.{layer}"
                attended = self._attended(value, f"{key}.attention", masked)
                value = self._norm(value + attended, f"{key}.attention.output.LayerNorm")
                bent = torch.nn.functional.gelu(self._dense(value, f"{key}.intermediate.dense"))
                value = self._norm(value + self._dense(bent, f"{key}.output.dense"), f"{key}.output.LayerNorm")
        value = value.float()
        return (value * there[..., None]).sum(1) / there.sum(1, keepdim=True)

    def learn(self, texts: Sequence[Sequence[int]], given: Lessons, epochs: int, seed: int) -> None:
        torch, draw = self.torch, np.random.default_rng(seed)
        lengths = np.array([len(text) for text in texts])
        plan = [batch for _ in range(epochs) for batch in batches(lengths, draw)]
        tensors = list(self.taught.values())
        parts = [
            {"params": [one for one in tensors if one.ndim > 1], "weight_decay": DECAY},
            {"params": [one for one in tensors if one.ndim == 1], "weight_decay": 0.0},
            {"params": [self.head, self.head_bias], "weight_decay": DECAY, "factor": HEAD_RATE},
        ]
        optimizer = torch.optim.AdamW(parts, betas=(0.9, 0.98), fused=True)
        for step, batch in enumerate(plan):
            for group in optimizer.param_groups:
                group["lr"] = RATE * rate_at(step, len(plan)) * group.get("factor", 1.0)
            said = self.vectors([texts[row] for row in batch]) @ self.head + self.head_bias
            weights = torch.from_numpy(given.weights[batch])
            error = said - torch.from_numpy(given.targets[batch])
            loss = (weights * error**2).sum() / weights.sum().clamp(min=1e-6)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(tensors, 1.0)
            optimizer.step()
            if step % 100 == 0:
                print(f"step {step} of {len(plan)}, loss {loss.item():.4f}", flush=True)

    def embedded(self, texts: Sequence[Sequence[int]]) -> Floats:
        found = np.zeros((len(texts), self.head.shape[0]), np.float32)
        lengths = np.array([len(text) for text in texts])
        with self.torch.inference_mode():
            for batch in batches(lengths, np.random.default_rng(0)):
                found[batch] = self.vectors([texts[row] for row in batch]).numpy()
        return found

    def arrays(self) -> dict[str, Floats]:
        """What was taught, under the package's names."""
        return {name: tensor.detach().numpy() for name, tensor in self.taught.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune the sentence encoder.")
    parser.add_argument("--data", type=Path, required=True, help="folder with prompts.parquet and outcomes.parquet")
    parser.add_argument("--model", type=Path, required=True, help="the package's fp32 ONNX file")
    parser.add_argument("--vocabulary", type=Path, required=True, help="bert-base-uncased's vocab.txt")
    parser.add_argument("--out", type=Path, required=True, help="where the tuned weights go (npz)")
    parser.add_argument(
        "--hold", type=int, choices=range(FOLDS), help="keep this fold out, and write what is said of it"
    )
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    _torch().set_num_threads(given.threads)
    corpus = load(given.data)
    pieces = given.vocabulary.read_text(encoding="utf-8").splitlines()
    cut, whole = WordPiece(pieces, TAUGHT_TOKENS), WordPiece(pieces, MAX_TOKENS)
    held = np.zeros(len(corpus.texts), bool) if given.hold is None else held_fold(corpus.groups, given.hold, given.seed)
    rows = np.flatnonzero(~held)
    taught = lessons(corpus, rows)
    tuner = Tuner(packaged_weights(given.model), taught.targets.shape[1])
    tuner.learn([cut.ids(corpus.texts[row]) for row in rows], taught, given.epochs, given.seed)
    if math.isnan(float(tuner.head.detach().sum())):
        raise ArithmeticError("the tuning diverged")
    arrays: dict[str, Any] = tuner.arrays()
    np.savez(given.out, **arrays)
    head, bias = tuner.head.detach().numpy(), tuner.head_bias.detach().numpy()
    heads = gain_head(taught, head, bias)
    named: dict[str, Any] = {"pairs": np.array(taught.pairs), **heads}
    np.savez(given.out.with_suffix(".heads.npz"), **named)
    kept = np.flatnonzero(held)
    if len(kept):
        vectors = tuner.embedded([whole.ids(corpus.texts[row]) for row in kept])
        gains = vectors @ heads["gain_weights"] + heads["gain_bias"]
        # Twins differ in level, which is nothing that they know of the prompts: each is told about the taught mean.
        for at, (source, _, _) in enumerate(taught.pairs):
            of_source = corpus.sources[kept] == source
            if of_source.any():
                gains[:, at] += taught.mean[taught.gains[at]] - gains[of_source, at].mean()
        np.savez(given.out.with_suffix(".held.npz"), rows=kept, gains=gains)


if __name__ == "__main__":
    main()
