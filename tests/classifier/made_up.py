"""A made-up corpus of three kinds of prompts, and what is trained on it: for tests that need a model, not the model."""

import random
from pathlib import Path
from typing import Any, Final

from classifier.training.data import Corpus, load
from classifier.training.tier_set import Tiered, learned_from
from tests.classifier.outcomes import write

LLAMA: Final = "llama-3-70b-instruct"
LLAMA_31: Final = "llama-3.1-70b-instruct"
HAIKU: Final = "claude-3-haiku-20240307"
GPT_4O: Final = "gpt-4o-2024-05-13"
SONNET: Final = "claude-3-5-sonnet-20240620"
WEAK: Final = (LLAMA, LLAMA_31, HAIKU)
STRONG: Final = (GPT_4O, SONNET)
MODELS: Final = (*WEAK, *STRONG)

WORDS: Final = {
    "chat": ("gate", "road", "truck", "driver", "morning", "ticket", "yard", "coffee", "letter", "garden"),
    "exam": ("treaty", "river", "mineral", "organ", "emperor", "voltage", "planet", "verse", "cell", "metal"),
    "calls": ("book", "slot", "invoice", "weather", "currency", "route", "search", "calendar", "mail", "order"),
}
TRICKY: Final = ("tensor", "lemma", "quorum", "manifold")
"""Words of prompts that only strong models cope with."""


def prompt_text(draw: random.Random, source: str, number: int, *, hard: bool) -> str:
    words = [draw.choice(WORDS[source]) for _ in range(draw.randint(6, 24))]
    if hard:
        words.insert(draw.randrange(len(words)), draw.choice(TRICKY))
    text = f"Case {number} {' '.join(words)}?"
    return f"{text}\nA. one\nB. two\nC. three\nD. four" if source == "exam" else text


def rows(prompts: int = 600, seed: int = 5) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Haiku was never asked the exam; Sonnet answers at twice the usual length."""
    draw, told, outcomes = random.Random(seed), [], []
    for number in range(prompts):
        source, hard = list(WORDS)[number % 3], draw.random() < 0.4
        text = prompt_text(draw, source, number, hard=hard)
        same = {"source": source, "prompt_id": str(number)}
        told.append({**same, "prompt": text, "category": f"c{number // 3 % 6}"})
        for model in MODELS:
            right = (not hard or model in STRONG) != (draw.random() < 0.06)
            extra = f'{{"n_tools": {2 * (source == "calls")}, "out_chars": {(4 + 4 * (model == SONNET)) * len(text)}}}'
            if (source, model) != ("exam", HAIKU):
                outcomes.append({**same, "model": model, "score": float(right), "extra": extra})
    return told, outcomes


def corpus(folder: Path, prompts: int = 600, sources: tuple[str, ...] = tuple(WORDS)) -> Corpus:
    told, outcomes = rows(prompts)
    return load(write(folder, *([row for row in part if row["source"] in sources] for part in (told, outcomes))))


def tiered(first: int = 0) -> list[Tiered]:
    """Every twelfth prompt of the tier set, counted from `first`: not made up, but few."""
    return learned_from()[first::12]
