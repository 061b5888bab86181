"""How many questions place a model that was never seen: `python -m classifier.training.new_models DATA OUT`.

Whole families of models are left out, and half of the questions: a network is trained on the rest, so that neither the
model nor the prompt was seen. A left-out model is then weighed by n questions of the other half, as `classifier measure`
does it, and judged on those that were not asked. Takes about two minutes a family.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from classifier.measuring.ability_row import Floats, loads_of
from classifier.onnx_classifier import OnnxClassifier
from classifier.training.data import Corpus
from classifier.tuning import Ability

Say = Callable[[str], None]
Booleans = np.ndarray[Any, np.dtype[np.bool_]]

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "gpt-4 and llama-3": ("gpt-4", "chatgpt", "llama-3", "athene", "hermes-2-pro-llama-3", "o1-"),
    "gemini and gemma": ("gemini", "gemma"),
    "claude and mistral": ("claude", "mixtral", "mistral", "mathstral"),
}
SIZES: Final = (25, 50, 100, 200, 400)
ASKED: Final = ("mmlu_pro", "zeroeval_crux", "zeroeval_gsm8k", "zeroeval_math_l5", "zeroeval_numersense")
PAIRS: Final = (
    ("mmlu_pro", "llama-3.1-70b-instruct", "gpt-4o-2024-05-13"),
    ("mmlu_pro", "llama-3.1-8b-instruct", "gpt-4o-2024-05-13"),
    ("mmlu_pro", "gemini-1.5-flash-002", "gemini-1.5-pro-002"),
    ("zeroeval_crux", "llama-3-70b-instruct", "gpt-4o-2024-05-13"),
    ("zeroeval_crux", "claude-3-haiku-20240307", "claude-3-5-sonnet-20240620"),
    ("zeroeval_gsm8k", "claude-3-haiku-20240307", "claude-3-5-sonnet-20240620"),
)
DRAWS: Final = 20
_LEAST_ROWS: Final = 400


class Unseen(msgspec.Struct, frozen=True):
    """Prompts and models that a network had not seen, as its loads."""

    family: str
    rows: np.ndarray[Any, np.dtype[np.int64]]
    """Rows of the corpus."""
    loads: Floats
    models: list[str]
    abilities: dict[str, Ability]
    """The rows of the models that it had seen."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The measures of one model or pair at one number of questions, over the draws."""

    what: str
    name: str
    fit: str
    questions: int
    """0 stands for all that there are."""
    values: list[float]


def unseen_parts(corpus: Corpus, say: Say) -> Iterator[Unseen]:
    """One network for each family that is left out."""
    from classifier.training import train as training  # noqa: PLC0415 - it needs libraries of its own

    rng = np.random.default_rng(0)
    taught = rng.random(int(corpus.groups.max()) + 1)[corpus.groups] < 0.5
    for family, prefixes in FAMILIES.items():
        left_out = [model for model in corpus.models if model.startswith(prefixes)]
        kept = [at for at, model in enumerate(corpus.models) if model not in left_out]
        part = corpus.only(np.flatnonzero(taught))
        part = msgspec.structs.replace(
            part,
            models=[corpus.models[at] for at in kept],
            outcomes=part.outcomes[:, kept],
            output_tokens=part.output_tokens[:, kept],
        )
        asked = ~np.isnan(part.outcomes).all(axis=1)
        part = part.only(np.flatnonzero(asked))
        say(f"{family}: {len(left_out)} models left out, {len(part.texts)} prompts taught")
        classifier = OnnxClassifier(training.train(part, 0, say))
        rows = np.flatnonzero(~taught & np.isin(corpus.sources, ASKED))
        loads = loads_of(classifier, [corpus.prompt(int(row)) for row in rows])
        yield Unseen(family, rows, loads, left_out, dict(classifier.manifest.abilities))
