"""Makes the bundled calibration set: `python -m classifier.training.calibration_set DATA` (prompts, outcomes and gold).

A sample of the sources whose answers a program can check, spread evenly over fields and difficulty, in an order of
which every beginning is balanced. The same data give the same bytes.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from classifier.answer_forms import value_of
from classifier.measuring.questions import SET_FILE, CalibrationSet, Kind, Question, encoded
from classifier.training.tool_questions import tool_questions

COUNTS: Final[Mapping[str, int]] = {
    "mmlu_pro": 560,
    "zeroeval_crux": 220,
    "zeroeval_gsm8k": 200,
    "zeroeval_math_l5": 160,
    "zeroeval_numersense": 60,
}
LICENCES: Final[dict[str, str]] = {
    "mmlu_pro": "TIGER-AI-Lab/MMLU-Pro, Apache-2.0, data MIT",
    "zeroeval_crux": "yuchenlin/ZeroEval, Apache-2.0 (CRUXEval: MIT)",
    "zeroeval_gsm8k": "yuchenlin/ZeroEval, Apache-2.0 (GSM8K: MIT)",
    "zeroeval_math_l5": "yuchenlin/ZeroEval, Apache-2.0 (MATH: MIT)",
    "zeroeval_numersense": "yuchenlin/ZeroEval, Apache-2.0",
    "tool_calls": "written for Weighbridge, Apache-2.0",
}
_LEVELS: Final = 5
_MAX_CHARS: Final = 2_500
_SEED: Final = 25
_RIGHT: Final = 0.5
_GOLDEN: Final = 0.6180339887


def calibration_questions(data: Path) -> CalibrationSet:
    """Return the set, in the order in which it is asked."""
    from pyarrow import parquet  # noqa: PLC0415 - only who makes the set needs it

    prompts = {row["prompt_id"]: row for row in parquet.read_table(data / "prompts.parquet").to_pylist()}
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for row in parquet.read_table(data / "outcomes.parquet").to_pylist():
        scores[row["prompt_id"]][row["model"]] = row["score"]
    gold = parquet.read_table(data / "gold.parquet").to_pylist()
    models = sorted({model for row in gold for model in scores[row["prompt_id"]]})
    by_source: dict[str, list[Question]] = defaultdict(list)
    for row in gold:
        told = scores[row["prompt_id"]]
        text = prompts[row["prompt_id"]]["prompt"]
        if row["source"] in COUNTS and len(text) <= _MAX_CHARS:
            by_source[row["source"]].append(_question(row, text, prompts[row["prompt_id"]], told, models))
    rng = np.random.default_rng(_SEED)
    chosen = {source: _spread(_unique(by_source[source]), count, rng) for source, count in COUNTS.items()}
    chosen["tool_calls"] = list(tool_questions())
    return CalibrationSet(models=models, questions=tuple(_merged(chosen.values())))


def _question(
    row: Mapping[str, Any], text: str, prompt: Mapping[str, Any], told: Mapping[str, float], models: Sequence[str]
) -> Question:
    kind: Kind = row["kind"]
    answer = row["gold"].strip()
    if kind == "number":
        answer = answer.lstrip("# ").replace(",", "")
        if value_of(answer) is None:
            raise ValueError(f"{row['prompt_id']}: {answer!r} is no number")
    return Question(
        question_id=row["prompt_id"],
        source=row["source"],
        category=prompt["category"],
        kind=kind,
        text=text,
        gold=answer,
        outcomes="".join("-" if model not in told else str(int(told[model] >= _RIGHT)) for model in models),
    )


def _unique(questions: Iterable[Question]) -> list[Question]:
    return sorted({each.text: each for each in questions}.values(), key=lambda each: each.question_id)


def _ease(question: Question) -> float:
    right, wrong = question.outcomes.count("1"), question.outcomes.count("0")
    return right / max(1, right + wrong)


def _spread(questions: Sequence[Question], count: int, rng: np.random.Generator) -> list[Question]:
    """Return `count` questions: each field and level of difficulty has its share of every beginning.

    What no known model gets right is in it too: the rows of known models were fitted to such prompts as well, and without
    them a measured model would look better than those.
    """
    by_field: dict[str, list[Question]] = defaultdict(list)
    for each in questions:
        by_field[each.category].append(each)
    cells = [cell for _, rows in sorted(by_field.items()) for cell in _levels(rows, rng) if cell]
    # Steps of the golden ratio spread the cells' first questions evenly, whatever the number of cells.
    placed = [
        ((at + number * _GOLDEN % 1) / len(cell), number, question)
        for number, cell in enumerate(cells)
        for at, question in enumerate(cell)
    ]
    return [question for _, _, question in sorted(placed, key=lambda each: each[:2])][:count]


def _levels(questions: Sequence[Question], rng: np.random.Generator) -> list[list[Question]]:
    """Return equal parts by ease, each shuffled."""
    ordered = sorted(questions, key=lambda each: (_ease(each), each.question_id))
    parts = [list(part) for part in np.array_split(np.arange(len(ordered)), _LEVELS)]
    return [[ordered[at] for at in rng.permutation(part)] for part in parts]


def _merged(sources: Iterable[Sequence[Question]]) -> list[Question]:
    """Return all sources, each as evenly spread over the order as it can be."""
    placed = [((at + 0.5) / len(rows), rows[at].source, rows[at]) for rows in sources for at in range(len(rows))]
    return [question for _, _, question in sorted(placed, key=lambda each: each[:2])]


def main() -> None:
    """Write the file into the package."""
    target = Path(__file__).parents[1] / "measuring" / SET_FILE
    made = calibration_questions(Path(sys.argv[1]))
    content = encoded(made, LICENCES)
    target.write_bytes(content)
    print(f"{len(made.questions)} questions, {len(made.models)} known models, {len(content)} bytes: {target}")


if __name__ == "__main__":
    main()
