"""Prompts and outcomes from two Parquet files, checked row by row, as a corpus for training.

Everything wrong with the files is reported at once and by row, so that no result is silently a little off.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from classifier.features import Features, extract, shape_of
from classifier.prediction import Prompt
from classifier.training.splits import Hashes, Questions, hashes_of, normalised, questions, stem
from settings.decoding import DECODE_ERRORS

__all__ = ["BadData", "Corpus", "Floats", "Integers", "Problem", "load", "normalised", "stem"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

PROMPTS_FILE: Final = "prompts.parquet"
OUTCOMES_FILE: Final = "outcomes.parquet"
NEEDED: Final = {
    PROMPTS_FILE: ("source", "prompt_id", "prompt", "category"),
    OUTCOMES_FILE: ("source", "prompt_id", "model", "score"),
}
CHARS_PER_TOKEN: Final = 4.0

BROKEN: Final = frozenset({("bfcl_v1", "gpt-4o-2024-08-06"), ("bfcl_v1", "mistral-large-2407")})
"""Runs whose reply format was evidently not parsed: they score 0.26, and 0.85 in function-calling mode."""
_MAX_FACT: Final = 1e9

_MAX_NAMED_ROWS: Final = 10
_MAX_TEXT: Final = 60
_SPLIT_COLUMN: Final = "split"


class Problem(msgspec.Struct, frozen=True):
    """One kind of fault, with the rows that have it. Rows count from 1."""

    what: str
    rows: list[str]

    def __str__(self) -> str:
        if not self.rows:
            return self.what
        named = "".join(f"\n    {row}" for row in self.rows[:_MAX_NAMED_ROWS])
        more = f"\n    and {len(self.rows) - _MAX_NAMED_ROWS} more" if len(self.rows) > _MAX_NAMED_ROWS else ""
        return f"{self.what}:{named}{more}"


class BadData(Exception):
    """The data cannot be used; the message names every fault and its rows."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(map(str, self.problems)))


class Corpus(msgspec.Struct, frozen=True):
    """Every prompt with its features, and each model's score on it (NaN where it was not asked)."""

    texts: list[str]
    prompt_ids: list[str]
    sources: NDArray[np.str_]
    categories: NDArray[np.str_]
    groups: Integers
    """The number of each prompt's question; copies, and other wordings of its choices, share it."""
    stems: Hashes
    whole: Hashes
    features: list[Features]
    shapes: Integers
    models: list[str]
    outcomes: Floats
    """(prompts, models), NaN where a model was not asked."""
    output_tokens: Floats
    """(prompts, models), estimated from the answer's characters; NaN where its length is unknown."""
    tools: Integers
    data_sha256: str

    @property
    def scores(self) -> dict[str, Floats]:
        """(prompts,) scores by model."""
        return {model: self.outcomes[:, at] for at, model in enumerate(self.models)}

    @property
    def questions(self) -> Questions:
        """The part of the corpus that splitting needs."""
        return Questions(self.sources, self.categories, self.groups, self.stems, self.whole)

    def gain(self, weak: str, strong: str) -> Floats:
        """Return (prompts,): the strong model's score less the weak one's; NaN where either was not asked."""
        at = self.models.index
        gain: Floats = self.outcomes[:, at(strong)] - self.outcomes[:, at(weak)]
        return gain

    def prompt(self, row: int) -> Prompt:
        """Return a row as the classifier gets it from a request."""
        return Prompt(text=self.texts[row], tools=int(self.tools[row]))

    def only(self, rows: Integers) -> "Corpus":
        """Return the same corpus with these rows alone."""
        return Corpus(
            texts=[self.texts[row] for row in rows],
            prompt_ids=[self.prompt_ids[row] for row in rows],
            sources=self.sources[rows],
            categories=self.categories[rows],
            groups=self.groups[rows],
            stems=self.stems[rows],
            whole=self.whole[rows],
            features=[self.features[row] for row in rows],
            shapes=self.shapes[rows],
            models=self.models,
            outcomes=self.outcomes[rows],
            output_tokens=self.output_tokens[rows],
            tools=self.tools[rows],
            data_sha256=self.data_sha256,
        )


class _Prompts(msgspec.Struct, frozen=True):
    sources: list[str]
    prompt_ids: list[str]
    texts: list[str]
    categories: list[str]
    row_of: dict[tuple[str, str], int]


class _Outcomes(msgspec.Struct, frozen=True):
    models: list[str]
    scores: Floats
    output_tokens: Floats
    tools: Integers


class _Problems:
    """A collection of faults by kind, so that all are reported at once."""

    def __init__(self) -> None:
        self._rows: dict[str, list[str]] = {}

    def add(self, what: str, row: str) -> None:
        self._rows.setdefault(what, []).append(row)

    def raise_any(self) -> None:
        if self._rows:
            raise BadData([Problem(what, rows) for what, rows in self._rows.items()])


def load(folder: Path) -> Corpus:
    """Read both files. Raises BadData with everything that is wrong in them."""
    tables = _tables(folder)
    problems = _Problems()
    prompts = _prompts(tables[PROMPTS_FILE], problems)
    outcomes = _outcomes(tables[OUTCOMES_FILE], prompts, problems)
    problems.raise_any()
    _check_two_classes(outcomes.scores)
    stems, whole = hashes_of(prompts.texts)
    told = zip(prompts.texts, outcomes.tools.tolist(), strict=True)
    features = [extract(Prompt(text=text, tools=tools)) for text, tools in told]
    return Corpus(
        texts=prompts.texts,
        prompt_ids=prompts.prompt_ids,
        sources=np.array(prompts.sources, np.str_),
        categories=np.array(prompts.categories, np.str_),
        groups=questions(stems, whole),
        stems=stems,
        whole=whole,
        features=features,
        shapes=np.array([shape_of(found) for found in features]),
        models=outcomes.models,
        outcomes=outcomes.scores,
        output_tokens=outcomes.output_tokens,
        tools=outcomes.tools,
        data_sha256=_digest(folder),
    )


def _tables(folder: Path) -> dict[str, Any]:
    """Return both files as tables with the needed columns and with rows. Raises BadData."""
    found, problems = {}, []
    for name, needed in NEEDED.items():
        table, what = _table(folder / name, needed)
        found[name] = table
        if what:
            problems.append(Problem(f"{folder / name}: {what}", []))
    if problems:
        raise BadData(problems)
    return found


def _table(path: Path, needed: Iterable[str]) -> tuple[Any, str]:
    if not path.is_file():
        return None, f"there is no such file; a data folder holds {' and '.join(NEEDED)}"
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        return None, f"cannot be read as Parquet ({type(error).__name__})"
    missing = [column for column in needed if column not in table.column_names]
    if missing:
        return None, (
            f"missing columns: {', '.join(missing)}; expected {', '.join(needed)}, "
            f"found {', '.join(table.column_names) or 'none'}"
        )
    return table, "" if table.num_rows else "has no rows"


def _column(table: Any, name: str) -> list[Any]:
    """Return a column's values; all None when there is no such column."""
    values: list[Any] = table.column(name).to_pylist() if name in table.column_names else [None] * table.num_rows
    return values


def _text_or_none(value: object) -> str | None:
    """Return a source, id or model as text; None when it is empty."""
    return str(value) if value is not None and str(value).strip() else None


def _row_name(number: int, *parts: object) -> str:
    told = " / ".join("(nothing)" if part is None else str(part)[:_MAX_TEXT] for part in parts)
    return f"row {number}: {told}"


def _prompts(table: Any, problems: _Problems) -> _Prompts:
    found = _Prompts([], [], [], [], {})
    splits: dict[str, tuple[object, int]] = {}
    columns = (_column(table, name) for name in (*NEEDED[PROMPTS_FILE], _SPLIT_COLUMN))
    for number, (given_source, given_id, given_text, category, side) in enumerate(zip(*columns, strict=True), 1):
        source, prompt_id = _text_or_none(given_source), _text_or_none(given_id)
        where = _row_name(number, given_source, given_id)
        if source is None or prompt_id is None:
            problems.add(f"{PROMPTS_FILE}: no source or no prompt_id", where)
            continue
        if (source, prompt_id) in found.row_of:
            first = found.row_of[source, prompt_id] + 1
            problems.add(f"{PROMPTS_FILE}: the same (source, prompt_id) twice", f"{where}, first in row {first}")
            continue
        # A row that is wrong keeps its place, so that its outcomes are not called orphans as well.
        found.row_of[source, prompt_id] = number - 1
        if not isinstance(given_text, str):
            problems.add(f"{PROMPTS_FILE}: the prompt is no text", where)
        text = str(given_text)
        if side is not None:
            other, first = splits.setdefault(normalised(text), (side, number))
            if other != side:
                what = f"{PROMPTS_FILE}: the same prompt stands in two splits"
                problems.add(what, f"{where} in {side}, the same as row {first} in {other}")
        found.sources.append(source)
        found.prompt_ids.append(prompt_id)
        found.texts.append(text)
        found.categories.append(_text_or_none(category) or "")
    return found


def _outcomes(table: Any, prompts: _Prompts, problems: _Problems) -> _Outcomes:
    names = sorted({name for value in _column(table, "model") if (name := _text_or_none(value))})
    at_model = {name: at for at, name in enumerate(names)}
    rows = 1 + max(prompts.row_of.values(), default=-1)
    scores, tokens = (np.full((rows, len(names)), np.nan) for _ in range(2))
    tools = np.zeros(rows, np.int64)
    seen: dict[tuple[int, int], int] = {}
    for number, (source, prompt_id, model, score, extra) in enumerate(_outcome_rows(table), 1):
        at = prompts.row_of.get((str(source), str(prompt_id)))
        where = _row_name(number, source, prompt_id, model)
        what = _fault_of(at, model, score)
        if what or at is None:
            problems.add(f"{OUTCOMES_FILE}: {what}", f"{where}: {score!r:.40}" if at is not None else where)
            continue
        cell = (at, at_model[str(model)])
        first = seen.setdefault(cell, number)
        if first != number:
            problems.add(f"{OUTCOMES_FILE}: the same outcome twice", f"{where}, first in row {first}")
        facts = _facts(extra)
        tools[at] = max(tools[at], int(facts.get("n_tools", 0)))
        if (source, model) not in BROKEN:
            scores[cell] = score
            tokens[cell] = facts.get("out_chars", math.nan) / CHARS_PER_TOKEN
    return _Outcomes(names, scores, tokens, tools)


def _outcome_rows(table: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(_column(table, name) for name in (*NEEDED[OUTCOMES_FILE], "extra")), strict=True)


def _fault_of(at: int | None, model: object, score: object) -> str:
    if at is None:
        return "an outcome without a prompt"
    if _text_or_none(model) is None:
        return "no model"
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        return "the score is not a number"
    return "" if 0 <= score <= 1 else "the score is outside [0, 1]"


def _facts(extra: object) -> dict[str, float]:
    """Return the numbers in `extra` that are not negative; none when it cannot be decoded, as it is optional."""
    if not isinstance(extra, str | bytes):
        return {}
    try:
        found = msgspec.json.decode(extra)
    except DECODE_ERRORS:
        return {}
    if not isinstance(found, dict):
        return {}
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if 0 <= value <= _MAX_FACT}


def _check_two_classes(scores: Floats) -> None:
    known = scores[~np.isnan(scores)]
    if len(np.unique(known)) < 2:
        what = f"{OUTCOMES_FILE}: one class only"
        only = f"every score of rows 1 to {len(known)} is {known[0]:g}" if len(known) else "no outcome can be used"
        raise BadData([Problem(f"{what}: {only}, so nothing can be learned or judged", [])])


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in ("prompts.parquet", "outcomes.parquet"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()
