"""Made-up prompts with outcomes in the layout of the real files, for tests of training and evaluation."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from classifier.training.evaluate import GPT_4O, HAIKU, LLAMA, MIXTRAL, SONNET

WEAK = (LLAMA, MIXTRAL, HAIKU)
MODELS = (*WEAK, GPT_4O, SONNET)
SOURCES = ("zeroeval_crux", "bfcl_v1", "chat_of_ours")
WORDS = ("gate", "road", "scale", "truck", "driver", "morning", "crate", "ticket", "yard", "weight")


def rows(prompts: int = 360, seed: int = 5) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A third of the prompts of each source have a word that only strong models cope with."""
    draw, told, outcomes = random.Random(seed), [], []
    for number in range(prompts):
        source, prompt_id, hard = SOURCES[number % 3], f"id{number}", draw.random() < 0.35
        words = [draw.choice(WORDS) for _ in range(draw.randint(4, 30))]
        text = f"Case {number} {' '.join(words)}{' quorum' if hard else ''}?"
        told.append({"source": source, "prompt_id": prompt_id, "prompt": text, "category": f"c{number // 3 % 6}"})
        for model in MODELS:
            right = (not hard or model not in WEAK) != (draw.random() < 0.08)
            extra = f'{{"out_chars": {4 * len(text)}, "n_tools": {int(source == "bfcl_v1")}}}'
            outcomes.append(
                {"source": source, "prompt_id": prompt_id, "model": model, "score": float(right), "extra": extra}
            )
    return told, outcomes


def write(folder: Path, prompts: list[dict[str, Any]], outcomes: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(prompts), folder / "prompts.parquet")
    pq.write_table(pa.Table.from_pylist(outcomes), folder / "outcomes.parquet")
    return folder
