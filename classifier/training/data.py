"""Prompts and outcomes from Parquet, and what the model is taught of them."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from classifier.features import SHAPES, Features, extract, shape_of
from classifier.prediction import Prompt

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

WEAK: Final = ("mixtral-8x7b-instruct-v0.1", "llama-3-70b-instruct", "llama-3.1-70b-instruct")
STRONG: Final = ("gpt-4o-2024-05-13", "gpt-4-1106-preview", "claude-3-5-sonnet-20240620")
MORE_WEAK: Final = (
    "gemini-1.5-flash-002",
    "claude-3-haiku-20240307",
    "gemini-1.5-flash",
    "gpt-3.5-turbo-0125",
    "llama-3-8b-instruct",
    "llama-3.1-8b-instruct",
    "mixtral-8x22b-instruct",
)
MORE_STRONG: Final = (
    "gemini-1.5-pro-002",
    "gpt-4-turbo-2024-04-09",
    "claude-3-opus-20240229",
    "gpt-4o-2024-08-06",
    "gemini-1.5-pro",
    "chatgpt-4o-latest-24-09-07",
)
BROKEN: Final = frozenset({("bfcl_v1", "gpt-4o-2024-08-06"), ("bfcl_v1", "mistral-large-2407")})
"""Runs whose score says that their reply format was not read (0.26 beside 0.85 in function-calling mode)."""
LENGTH_MODEL: Final = "gpt-4o-2024-05-13"

_CHOICES: Final = re.compile(r"\n\s*A[.)]\s")
_NOT_WORD: Final = re.compile(r"[^a-z0-9]+")
_STEM_CHARS: Final = 400


class Corpus(msgspec.Struct, frozen=True):
    """Every prompt with its features, and each model's score on it (NaN where it was not asked)."""

    texts: list[str]
    sources: NDArray[np.str_]
    categories: NDArray[np.str_]
    groups: Integers
    features: list[Features]
    shapes: Integers
    scores: dict[str, Floats]
    output_chars: Floats
    tools: Integers
    data_sha256: str

    def gain(self, weak: str, strong: str) -> Floats:
        return self.scores[strong] - self.scores[weak]


def stem(text: str) -> str:
    """A question without its choices, case and signs: the same question in two sources has one stem."""
    return _NOT_WORD.sub(" ", _CHOICES.split(text)[0].lower()).strip()[:_STEM_CHARS]


def load(folder: Path) -> Corpus:
    prompts = pq.read_table(folder / "prompts.parquet", columns=["source", "prompt_id", "prompt", "category"])
    rows = prompts.to_pylist()
    number = {(row["source"], row["prompt_id"]): at for at, row in enumerate(rows)}
    stems: dict[str, int] = {}
    scores: dict[str, Floats] = {}
    output_chars = np.full(len(rows), np.nan)
    tools = np.zeros(len(rows), np.int64)
    for source, prompt_id, model, score, extra in _outcomes(folder):
        at = number[source, prompt_id]
        if (source, model) not in BROKEN:
            scores.setdefault(model, np.full(len(rows), np.nan))[at] = score
        tools[at] = max(tools[at], int(extra.get("n_tools", 0)))
        if model == LENGTH_MODEL and "out_chars" in extra:
            output_chars[at] = float(extra["out_chars"])
    texts = [row["prompt"] for row in rows]
    features = [extract(Prompt(text=text, tools=int(n))) for text, n in zip(texts, tools, strict=True)]
    return Corpus(
        texts=texts,
        sources=np.array([row["source"] for row in rows]),
        categories=np.array([row["category"] for row in rows]),
        groups=np.array([stems.setdefault(stem(text), len(stems)) for text in texts]),
        features=features,
        shapes=np.array([shape_of(found) for found in features]),
        scores=scores,
        output_chars=output_chars,
        tools=tools,
        data_sha256=_digest(folder),
    )


def _outcomes(folder: Path) -> Iterator[tuple[str, str, str, float, dict[str, float]]]:
    table = pq.read_table(folder / "outcomes.parquet")
    columns = [table.column(name).to_pylist() for name in ("source", "prompt_id", "model", "score", "extra")]
    for source, prompt_id, model, score, extra in zip(*columns, strict=True):
        yield source, prompt_id, model, score, json.loads(extra) if extra else {}


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in ("prompts.parquet", "outcomes.parquet"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def _mean_score(corpus: Corpus, models: tuple[str, ...]) -> Floats:
    known = np.stack([corpus.scores[model] for model in models if model in corpus.scores])
    count = np.count_nonzero(~np.isnan(known), axis=0)
    mean: Floats = np.where(count > 0, np.nansum(known, axis=0) / np.maximum(count, 1), np.nan)
    return mean


def _source_levels(corpus: Corpus) -> dict[str, float]:
    """What the strong model gains over a 70B model in each source.

    Where no 70B model was asked (MMLU), the gain over Mixtral is scaled by what the two gains are
    to each other where both are known.
    """
    seventy = _mean_score(corpus, ("llama-3-70b-instruct", "llama-3.1-70b-instruct"))
    mixtral = corpus.scores.get("mixtral-8x7b-instruct-v0.1", np.full(len(corpus.texts), np.nan))
    strong = _mean_score(corpus, STRONG)
    both = ~np.isnan(seventy - mixtral + strong)
    ratio = float((strong - seventy)[both].mean() / (strong - mixtral)[both].mean()) if both.any() else 1.0
    levels = {}
    for source in np.unique(corpus.sources).tolist():
        rows = corpus.sources == source
        gains = (strong - seventy)[rows]
        if np.isnan(gains).all():
            gains = (strong - mixtral)[rows] * ratio
        levels[source] = 0.0 if np.isnan(gains).all() else float(np.nanmean(gains))
    return levels


def teaching_gain(corpus: Corpus) -> Floats:
    """The number each prompt is taught with; NaN where no pair of models answered it.

    Within a source it is the mean gain over a small and a wide set of weak and strong models, which
    is far less noisy than one pair's -1, 0 or 1. Between sources it is the gain over a 70B model,
    because the sets differ from source to source and their means cannot be compared. Tool calls are
    taught with the one pair whose formats both worked.
    """
    few = _mean_score(corpus, STRONG) - _mean_score(corpus, WEAK)
    many = _mean_score(corpus, STRONG + MORE_STRONG) - _mean_score(corpus, WEAK + MORE_WEAK)
    gain = (few + many) / 2
    tools = corpus.shapes == SHAPES.index("tools")
    if {"llama-3-70b-instruct", "claude-3-5-sonnet-20240620"} <= corpus.scores.keys():
        gain = np.where(tools, corpus.gain("llama-3-70b-instruct", "claude-3-5-sonnet-20240620"), gain)
    for source, level in _source_levels(corpus).items():
        rows = (corpus.sources == source) & ~np.isnan(gain)
        if rows.any():
            gain[rows] += level - gain[rows].mean()
    return gain
