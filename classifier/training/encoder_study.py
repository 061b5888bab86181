"""A fine-tuned encoder as training takes it: its served files, its head, and what held-out twins of it said.

The folder holds `encoder.onnx` and `encoder-vocabulary.txt` (from `encoder_build`), `tuned.heads.npz`, and one
`*.held.npz` a fold (both from `encoder_tune`).
"""

import zipfile
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.encoder import MODEL_FILE, VOCABULARY_FILE
from classifier.training.data import BadData, Corpus, Problem

Floats = NDArray[np.float64]

HEADS_FILE: Final = "tuned.heads.npz"


class GainPair(msgspec.Struct, frozen=True):
    """Two models whose gain the encoder was taught on the prompts of one source."""

    source: str
    weak: str
    strong: str


class Study(msgspec.Struct, frozen=True):
    """`held` are gains (prompts, pairs) from encoders that had not seen the prompt's question; NaN where none said."""

    files: dict[str, bytes]
    pairs: list[GainPair]
    weights: Floats
    """(width, pairs): from a vector to the gain of each pair."""
    bias: Floats
    held: Floats


def read_study(folder: Path, corpus: Corpus) -> Study:
    """Raises BadData where a file is missing, is none, or does not fit the corpus."""
    try:
        files = {name: (folder / name).read_bytes() for name in (MODEL_FILE, VOCABULARY_FILE)}
        with np.load(folder / HEADS_FILE, allow_pickle=False) as heads:
            pairs = [GainPair(*names) for names in heads["pairs"].tolist()]
            weights, bias = heads["gain_weights"].astype(np.float64), heads["gain_bias"].astype(np.float64)
        held = np.full((len(corpus.texts), len(pairs)), np.nan)
        for path in sorted(folder.glob("*.held.npz")):
            with np.load(path, allow_pickle=False) as found:
                held[found["rows"]] = found["gains"]
    except (OSError, KeyError, ValueError, IndexError, TypeError, zipfile.BadZipFile) as error:
        told = f"the encoder's folder cannot be used ({type(error).__name__}: {error})"
        raise BadData([Problem(told, [])]) from error
    strangers = sorted({name for pair in pairs for name in (pair.weak, pair.strong)} - set(corpus.models))
    if strangers:
        raise BadData(
            [Problem(f"the encoder was tuned on models that have no outcomes here: {', '.join(strangers)}", [])]
        )
    return Study(files, pairs, weights, bias, held)
