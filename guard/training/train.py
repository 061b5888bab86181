"""Fit guard/artifacts/injection.npz and measure it: `python -m guard.training.train --data DIR`.

DIR has a folder for each source of sources.toml. Each family is left out once, with whatever resembles it, and scored by the
model that never saw it; thresholds come from the benign families so scored, each counting the same. The shipped weights are
then fitted on all families. `--record` writes the sources' digests into sources.toml; otherwise they have to match.
"""

import argparse
import hashlib
import io
import math
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from guard.guard_config import FALSE_RATES
from guard.injection import (
    ARTIFACTS,
    BUCKET_BITS,
    FEATURE_VERSION,
    MANIFEST_FILE,
    WEIGHTS_FILE,
    Injection,
    Manifest,
    grams,
    plain,
    windows,
)
from guard.training.sources import SourceError, Text, digest, own, record, sources, texts

_STRENGTH: Final = 0.3
"""The inverse of the penalty on the weights."""
_MOST_WINDOWS: Final = 5
"""Windows taken of a text that does no harm, spread evenly."""
_KEPT: Final = 2
"""Windows of an attack that are taken as attacks: those that the round before scored highest."""
_STEPS: Final = (25, 80)
"""Steps of the search for weights, by round."""
_PHRASE: Final = 5
_ALIKE: Final = 0.2
"""Share of its runs of five words that an attack has in common with a family, from which it is left out with it."""
_LEAST_STEPS: Final = 126

Scores = NDArray[np.float64]
Fitted = Callable[[Sequence["Read"]], Scores]


class Read(msgspec.Struct, frozen=True):
    """A text as the model sees it."""

    told: Text
    columns: NDArray[np.uint32]
    """Buckets, a row for each order."""
    spans: list[tuple[int, int]]
    """Start and length of each window."""
    known: dict[tuple[int, int], tuple[NDArray[np.uint32], NDArray[np.float32]]]

    def counted(self, span: tuple[int, int]) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        """Return a window's buckets, and how often each, by the root of its length. They are kept."""
        if span not in self.known:
            start, length = span
            found, counts = np.unique(self.columns[:, start : start + length], return_counts=True)
            self.known[span] = found, (counts / math.sqrt(length)).astype(np.float32)
        return self.known[span]


class Family(msgspec.Struct, frozen=True):
    """What is published of a family."""

    name: str
    attack: bool
    trained: bool
    ordinary: bool
    scores: Scores


def read(told: Text) -> Read:
    """Return a text's buckets and windows."""
    data = plain(told.text)
    return Read(told, grams(data), windows(len(data)), {})


def _spread(spans: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    return list(spans) if len(spans) <= most else [spans[at * len(spans) // most] for at in range(most)]


def _matrix(rows: Sequence[tuple[Read, tuple[int, int]]]) -> csr_matrix:
    """Return the windows' features as rows."""
    indices, bounds, values = [], [0], []
    for item, span in rows:
        found, counts = item.counted(span)
        indices.append(found)
        values.append(counts)
        bounds.append(bounds[-1] + len(found))
    shape = (len(rows), 2**BUCKET_BITS)
    return csr_matrix((np.concatenate(values), np.concatenate(indices), bounds), shape=shape)


def _window_scores(item: Read, weights: Scores) -> Scores:
    sums = np.concatenate(([0.0], weights.take(item.columns).sum(axis=0).cumsum()))
    return np.array([(sums[start + length] - sums[start]) / math.sqrt(length) for start, length in item.spans])


def fit(items: Sequence[Read]) -> tuple[Scores, float]:
    """Return the weights and the bias: fitted to windows, in rounds that each time choose the attacks' telling ones anew."""
    weights, bias = np.zeros(2**BUCKET_BITS), 0.0
    families: dict[str, int] = {}
    for item in items:
        families[item.told.family] = families.get(item.told.family, 0) + 1
    for turn, steps in enumerate(_STEPS):
        rows: list[tuple[Read, tuple[int, int]]] = []
        worth: list[float] = []
        for item in items:
            if not item.told.attack:
                chosen = _spread(item.spans, _MOST_WINDOWS)
            elif turn == 0:
                chosen = _spread(item.spans, _KEPT)
            else:
                order = np.argsort(-_window_scores(item, weights), kind="stable")[:_KEPT]
                chosen = [item.spans[at] for at in order]
            rows += [(item, span) for span in chosen]
            # The root lets a family of many texts say more than one of few, and not all.
            worth += [1.0 / len(chosen) / math.sqrt(families[item.told.family])] * len(chosen)
        labels = np.array([item.told.attack for item, _ in rows])
        shares = np.array(worth)
        for side in (True, False):
            shares[labels == side] *= len(items) / shares[labels == side].sum() / 2
        model = LogisticRegression(C=_STRENGTH, max_iter=steps, tol=1e-3)
        model.fit(_matrix(rows), labels, sample_weight=shares)
        weights, bias = model.coef_[0].astype(np.float64), float(model.intercept_[0])
    return weights, bias


def scores_of(items: Sequence[Read], weights: Scores, bias: float) -> Scores:
    """Return each text's logit, that of its highest window."""
    return np.array([_window_scores(item, weights).max() + bias for item in items])


def apart(items: Sequence[Read], family: str) -> list[Read]:
    """Return the texts of other families, without attacks that resemble one of this family."""
    known = {phrase for item in items if item.told.family == family and item.told.attack for phrase in _phrases(item)}
    return [item for item in items if item.told.family != family and not _resembles(item, known)]


def _phrases(item: Read) -> set[bytes]:
    """Return the text's runs of five words."""
    words = plain(item.told.text).split()
    return {b" ".join(words[at : at + _PHRASE]) for at in range(max(1, len(words) - _PHRASE + 1))}


def _resembles(item: Read, known: set[bytes]) -> bool:
    if not (known and item.told.attack):
        return False
    phrases = _phrases(item)
    return len(phrases & known) > _ALIKE * len(phrases)


def measured(items: Sequence[Read], held: Sequence[Read], say: Callable[[str], None]) -> list[Family]:
    """Return each family's logits by a model that was trained without it."""
    found = []
    for family in sorted({item.told.family for item in items}):
        own_texts = [item for item in items if item.told.family == family]
        rest = apart(items, family)
        weights, bias = fit(rest)
        found.append(_family(own_texts, weights, bias))
        say(
            f"left out: {family} ({len(own_texts)} texts, {len(items) - len(own_texts) - len(rest)} others that resemble it)"
        )
    weights, bias = fit(items)
    unseen = sorted({item.told.family for item in held})
    return found + [_family([each for each in held if each.told.family == name], weights, bias) for name in unseen]


def _family(items: Sequence[Read], weights: Scores, bias: float) -> Family:
    told = items[0].told
    scores = scores_of(items, weights, bias)
    return Family(told.family, told.attack, told.train, told.train and not told.attack and not told.hard, scores)


def cut_at(families: Sequence[Family], rate: float) -> float:
    """Return the lowest logit that at most this share of ordinary harmless texts reaches.

    Families that were made to sound like attempts are not ordinary: a threshold that suits them finds nothing any more. Their
    rates are published instead.
    """
    scores = np.sort(np.concatenate([family.scores for family in families if family.ordinary]))
    return float(np.nextafter(scores[len(scores) - 1 - int(rate * len(scores))], math.inf))


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))


def _packed(weights: Scores) -> tuple[bytes, float]:
    scale = float(np.abs(weights).max()) / _LEAST_STEPS
    buffer = io.BytesIO()
    np.savez_compressed(buffer, weights=np.round(weights / scale).astype(np.int8))
    return buffer.getvalue(), scale


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ARTIFACTS)
    parser.add_argument("--record", action="store_true")
    asked = parser.parse_args()
    rows = sources()
    digests = {row.name: digest(row, asked.data) for row in rows}
    wrong = [row.name for row in rows if row.sha256 != digests[row.name]]
    if asked.record:
        record(digests)
    elif wrong:
        raise SourceError(f"other files than those recorded: {', '.join(wrong)}")
    found = [text for row in rows for text in texts(row, asked.data)] + own()
    items = [read(text) for text in {text.text: text for text in found}.values()]
    training = [item for item in items if item.told.train]
    _say(f"{len(training)} texts to train on, {len(items) - len(training)} to measure")
    families = measured(training, [item for item in items if not item.told.train], _say)
    cuts = [(rate, cut_at(families, rate)) for rate in FALSE_RATES]
    weights, bias = fit(training)
    packed, scale = _packed(weights)
    manifest = Manifest(
        feature_version=FEATURE_VERSION,
        weights_sha256=hashlib.sha256(packed).hexdigest(),
        scale=scale,
        bias=bias,
        thresholds=[(rate, _sigmoid(cut)) for rate, cut in cuts],
        sources=digests,
        libraries={name: metadata.version(name) for name in ("numpy", "scipy", "scikit-learn")},
        rates={family.name: _rates(family, cuts) for family in families},
    )
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / WEIGHTS_FILE).write_bytes(packed)
    (asked.out / MANIFEST_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    Injection.load(asked.out)
    sys.stdout.write("\n".join(table(manifest)) + "\n")


def _rates(family: Family, cuts: Sequence[tuple[float, float]]) -> dict[str, float]:
    reached = {f"{rate:g}": round(float((family.scores >= cut).mean()), 4) for rate, cut in cuts}
    return {"texts": len(family.scores), "attack": float(family.attack), "trained": float(family.trained), **reached}


def table(manifest: Manifest) -> list[str]:
    """Return the rates by family, in percent, as rows for docs/injection.md: attacks first, those trained on before others."""
    lines = ["| family | texts | " + " | ".join(f"{100 * rate:g} %" for rate, _ in manifest.thresholds) + " |"]
    lines.append("|---|---|" + "---|" * len(manifest.thresholds))
    for name, found in sorted(manifest.rates.items(), key=lambda one: (-one[1]["attack"], -one[1]["trained"], one[0])):
        shares = " | ".join(f"{100 * found[f'{rate:g}']:.1f}" for rate, _ in manifest.thresholds)
        lines.append(f"| {name} | {found['texts']:,.0f} | {shares} |")
    return lines


if __name__ == "__main__":
    main()
