"""Rows of models that nobody has outcomes of, from the scores that others published of them.

1. *Columns*: a benchmark each, in one edition; and, of models with outcomes, their mean in each source. A score is taken as its
   logit. A model at one of its reasoning efforts is a line of its own.
2. *Standing*: every line's few numbers, from the scores that it has, by factor analysis with missing entries (EM; Rubin and
   Thayer 1982), with a noise of its own for each column. A model's efforts are told apart by what efforts change in general.
3. *Means*: what a model's standing says of its mean in each source, with a variance.
4. *Row*: the most probable row whose mean chance over each source's prompts meets those, by a ridge from standing to rows.

Nothing but the row depends on the network; it is fitted anew with each training.
"""

import csv
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from classifier.known_models import EFFORTS, Listed, known_models, listed
from classifier.tuning import Ability

Floats = NDArray[np.float64]

SCORES_FILE: Final = "model_scores.parquet"
NEW_OUTCOMES_FILE: Final = "outcomes_new.parquet"
FACTORS: Final = 2
RELEASED: Final = "released"
"""The column of the day of release: what is newer is better, all else unknown."""
WIDER: Final = 1.3
"""Factor by which an interval is widened to hold nine of ten models that were left out."""
EXTRAPOLATED: Final = 1.5
"""The same beyond all models with outcomes; judgement, for there is nothing to measure it by."""
LEAST_REACH: Final = 0.06
"""The mean error of the mean of a model that was left out, in round figures."""
PLACED_BY: Final = {
    "mmlu_pro": ("mmlu_pro",),
    "gsm8k": ("zeroeval_gsm8k",),
    "crux": ("zeroeval_crux",),
    "math_l5": ("zeroeval_math_l5",),
    "numersense": ("zeroeval_numersense",),
    "bfcl": ("bfcl_v1",),
}
"""Sources whose mean a standing tells."""
BENCHMARKS: Final = frozenset(
    """
    MMLU-Pro MMLU MMLU-Redux GPQA-diamond MATH MATH-500 LiveCodeBench AIME-2024 AIME-2025 HumanEval HumanEval+ GSM8K DROP HLE
    IFEval SimpleQA ZebraLogic MGSM Aider-polyglot Aider-edit Arena-Hard-v2
    """.split()  # noqa: SIM905 - as a table it is read at one glance
)
BFCL: Final = frozenset(
    {"BFCL-v4 Overall", "BFCL-v4 Live", "BFCL-v4 Non-Live AST", "BFCL-v4 Multi Turn", "BFCL-v4 Irrelevance Detection"}
)
SHIPPED: Final = ("MMLU-Pro", "GPQA-diamond", "MATH-500", "AIME-2025", "BFCL-v4 Overall")
"""Benchmarks of which the scores are shipped beside the rows."""
TABLE_FILE: Final = "published_scores.csv"
FEWEST_LINES: Final = 8
"""Least lines of a column."""
_ROUNDS: Final = 100
_LEAST_NOISE: Final = 0.02
_NOISE_PRIOR: Final = (0.1, 4.0)
"""A column's noise before anything was seen of it, and the number of lines that this counts as."""
_LOADING_PRIOR: Final = 1.0
_STRENGTH_PRIOR: Final = 0.3
_ADDITIVE_ROUNDS: Final = 200
_SHARE: Final = 0.02
_SIBLINGS: Final = (0.25, 0.1)
"""Standard deviations of what tells a model's efforts apart beyond what efforts change in general, where a standing has 1: of
what all columns have in common, and of each other factor.
"""
_STEPS: Final = (0.0, 0.2, 0.55, 0.8, 1.0, 1.1, 1.15)
"""Position of each of EFFORTS between no thinking and high."""
_NINETY: Final = 1.645
_FEWEST_OUTCOMES: Final = 100
_PER_SOURCE: Final = 400
_NEWTON: Final = 40
_OWN_SPREAD: Final = 0.05
"""Shrinkage of the rows' residual covariance towards its own diagonal (.02 to .7 were tried by leaving families out)."""
_TIMES: Final = 100.0
"""Factor of the rows' residual covariance, so that the means lead (chosen by leaving families out)."""


class Line(msgspec.Struct, frozen=True):
    """A model at one of its efforts."""

    model: str
    effort: str

    @property
    def key(self) -> str:
        """As the manifest names a row."""
        return f"{self.model}@{self.effort}" if self.effort else self.model


class Board(msgspec.Struct, frozen=True):
    """Lines by columns: logits of scores, NaN where there is none."""

    lines: list[Line]
    columns: list[str]
    values: Floats

    def without(self, lines: Collection[int], columns: Collection[str]) -> "Board":
        """Return the board without these lines' entries in these columns."""
        values = self.values.copy()
        cut = [at for at, name in enumerate(self.columns) if name in columns]
        values[np.ix_(sorted(lines), cut)] = np.nan
        return Board(self.lines, self.columns, values)


def line_of(model: str) -> tuple[str, Listed | None]:
    """Return the name under which a model's scores are gathered."""
    found = listed(model.removesuffix("-fc").split("@")[0])
    return (found[0].name, found[0]) if found is not None else (model, None)


def board_of(folder: Path, means: Mapping[str, Mapping[str, float]]) -> Board:
    """Return all published scores that are used, and the means of models with outcomes, by model and source."""
    entries: dict[tuple[Line, str], list[float]] = {}

    def note(line: Line, column: str, score: float) -> None:
        share = min(1 - _SHARE, max(_SHARE, score))
        entries.setdefault((line, column), []).append(float(np.log(share / (1 - share))))

    for row in pq.read_table(folder / SCORES_FILE).to_pylist():
        column = _column(row)
        if column:
            note(_scored_line(row), column, row["score"])
    for model, by_source in means.items():
        for source, mean in by_source.items():
            note(outcome_line(model), f"source {source}", mean)
    for line, source, mean in _new_means(folder):
        note(line, f"source {source}", mean)
    lines = sorted({line for line, _ in entries}, key=lambda line: line.key)
    for line in lines:
        if (found := listed(line.model)) is not None:
            year, month, _ = map(int, found[0].released.split("-"))
            entries[line, RELEASED] = [year - 2024 + (month - 6) / 12]
    columns = sorted({column for _, column in entries})
    values = np.full((len(lines), len(columns)), np.nan)
    for (line, column), told in entries.items():
        values[lines.index(line), columns.index(column)] = np.mean(told)
    enough = np.flatnonzero(
        [
            (~np.isnan(values[:, at])).sum() >= FEWEST_LINES or name.startswith("source")
            for at, name in enumerate(columns)
        ]
    )
    return Board(lines, [columns[at] for at in enough], values[:, enough])


def write_table(folder: Path, out: Path) -> None:
    """Write the scores of known models on SHIPPED benchmarks, with their sources, of those sources whose licence allows it."""
    rows = []
    for row in pq.read_table(folder / SCORES_FILE).to_pylist():
        line = _scored_line(row)
        if row["benchmark"] in SHIPPED and listed(line.model) and not row["licence"].startswith("no licence"):
            # A file of another repository is cited by that repository; the address it was copied from is in there.
            source = row["source"].split(" <- ")[0].split(":")[0]
            rows.append((line.model, line.effort, row["benchmark"], f"{row['score']:.3f}", source, row["licence"]))
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("model", "effort", "benchmark", "score", "source", "licence"))
        writer.writerows(sorted(set(rows)))


def outcome_line(model: str) -> Line:
    """Return the line of a model in the table of outcomes."""
    name, found = line_of(model)
    return Line(name, found.at("") if found is not None else "")


def _column(row: Mapping[str, Any]) -> str:
    name = row["benchmark"]
    if name == "GSM8K" and "ZeroEval" in row["source"]:
        # These are the very answers of which outcomes are known.
        return ""
    if name in BENCHMARKS or name.startswith(("BigCodeBench-hard", "SWE-bench", "tau2-bench")):
        return str(name)
    if name in BFCL:
        return f"{name} prompt" if "prompt" in row["mode"] else str(name)
    if name.startswith("LiveBench"):
        return f"{name} {row['variant'].split(';')[0].removeprefix('release ')}"
    return ""


def _scored_line(row: Mapping[str, Any]) -> Line:
    name, found = line_of(row["model"])
    told = row["thinking"]
    if found is None:
        return Line(name, "" if told == "unstated" else told)
    if told in EFFORTS:
        return Line(name, found.at(told))
    if told == "off":
        return Line(name, found.at("none"))
    if told == "on" or str(row["source_kind"]).startswith("vendor"):
        # Who sells a model tells what it does at its best.
        return Line(name, found.at("high"))
    return Line(name, found.at(""))


def _new_means(folder: Path) -> list[tuple[Line, str, float]]:
    """Return the means of newer outcomes on the prompts of PLACED_BY's sources."""
    if not (folder / NEW_OUTCOMES_FILE).is_file():
        return []
    place = {member: name for name, members in PLACED_BY.items() for member in members}
    told: dict[tuple[Line, str], list[float]] = {}
    for row in pq.read_table(folder / NEW_OUTCOMES_FILE, columns=["source", "model", "score"]).to_pylist():
        if row["source"] in place:
            told.setdefault((outcome_line(row["model"]), place[row["source"]]), []).append(row["score"])
    return [(line, source, float(np.mean(scores))) for (line, source), scores in told.items()]


class Standings(msgspec.Struct, frozen=True):
    """The factor model of a board, and every line's standing."""

    board: Board
    centre: Floats
    loadings: Floats
    """(columns, factors)"""
    noise: Floats
    """(columns,): variances."""
    means: Floats
    """(lines, factors)"""
    spreads: Floats
    """(lines, factors, factors): covariances."""

    def told(self, line: int, column: int) -> tuple[float, float]:
        """Return the logit, and its variance, that a standing says of a column."""
        loading = self.loadings[column]
        variance = float(loading @ self.spreads[line] @ loading) + self.noise[column]
        return float(self.centre[column] + loading @ self.means[line]), float(variance)


def standings(board: Board, *, factors: int = FACTORS) -> Standings:
    """Return every line's standing, by its scores and those of its siblings."""
    known = ~np.isnan(board.values)
    weights = known.astype(np.float64)
    values = np.where(known, board.values, 0.0)
    lines, columns = values.shape
    centre, means = _additive(weights, values, factors)
    loadings = 0.05 * np.random.default_rng(0).normal(size=(columns, factors))
    loadings[:, 0] += 1.0
    noise = np.full(columns, 0.3)
    spreads = np.zeros((lines, factors, factors))
    level, weight = _NOISE_PRIOR
    # A column without many lines rises with what all have in common, and its own level is free.
    prior = np.diag([1e-3, *np.full(factors, _LOADING_PRIOR)])
    for _ in range(_ROUNDS):
        weighed = weights / noise
        precision = np.eye(factors) + np.einsum("lc,cf,cg->lfg", weighed, loadings, loadings, optimize=True)
        spreads = np.linalg.inv(precision)
        means = np.einsum("lfg,lg->lf", spreads, (weighed * (values - centre)) @ loadings)
        inputs = np.c_[np.ones(lines), means]
        second = np.einsum("lc,lf,lg->cfg", weights, inputs, inputs, optimize=True)
        second[:, 1:, 1:] += np.einsum("lc,lfg->cfg", weights, spreads, optimize=True)
        first = (weights * values).T @ inputs
        first[:, 1] += _LOADING_PRIOR
        found = np.linalg.solve(second + prior, first[:, :, None])[:, :, 0]
        centre, loadings = found[:, 0], found[:, 1:]
        error = (weights * (values - inputs @ found.T) ** 2).sum(axis=0)
        error += np.einsum("lc,cf,lfg,cg->c", weights, loadings, spreads, loadings, optimize=True)
        noise = np.maximum((error + weight * level) / (weights.sum(axis=0) + weight), _LEAST_NOISE)
    values = values - centre
    return _with_siblings(Standings(board, centre, loadings, noise, means, spreads), known, values)


def _additive(weights: Floats, values: Floats, factors: int) -> tuple[Floats, Floats]:
    """Return the levels of columns and strengths of lines that add up, to begin with: new benchmarks are harder and
    have been put to better models alone, so a column's mean says nothing of its level.
    """
    easiness, strength = np.zeros(values.shape[1]), np.zeros(len(values))
    for _ in range(_ADDITIVE_ROUNDS):
        easiness = (weights * (values - strength[:, None])).sum(axis=0) / np.maximum(weights.sum(axis=0), 1)
        strength = (weights * (values - easiness)).sum(axis=1) / (weights.sum(axis=1) + _STRENGTH_PRIOR)
    means = np.zeros((len(values), factors))
    means[:, 0] = strength
    return easiness, means


def _with_siblings(found: Standings, known: NDArray[np.bool_], values: Floats) -> Standings:
    """Return standings in which a model's efforts share what is known of the model, and differ by what efforts change.

    A higher effort never stands below a lower one: where scores say so, it is their noise.
    """
    lines, factors = found.board.lines, found.means.shape[1]
    by_model: dict[str, list[int]] = {}
    for at, line in enumerate(lines):
        by_model.setdefault(line.model, []).append(at)
    means, spreads = found.means.copy(), found.spreads.copy()
    step = np.array([_STEPS[EFFORTS.index(line.effort)] if line.effort in EFFORTS else 0.0 for line in lines])
    apart = np.diag(np.square([_SIBLINGS[min(1, at)] for at in range(factors)]))
    change = _change_by_effort(found, by_model, step, apart)
    sources = [at for at, name in enumerate(found.board.columns) if name.startswith("source")]
    rising = found.loadings[sources or slice(None)].mean(axis=0)
    for own in by_model.values():
        if len(own) == 1:
            continue
        own.sort(key=lambda at: step[at])
        # What the model is has a spread of 1; what each effort adds to it has a small one. What efforts change comes first.
        prior = np.kron(np.ones((len(own), len(own))), np.eye(factors)) + np.kron(np.eye(len(own)), apart)
        precision = np.linalg.inv(prior)
        pull = precision @ np.concatenate([change * (step[at] - step[own].mean()) for at in own])
        for number, at in enumerate(own):
            part = slice(number * factors, (number + 1) * factors)
            weighed = np.where(known[at], 1 / found.noise, 0.0)
            precision[part, part] += (found.loadings * weighed[:, None]).T @ found.loadings
            pull[part] += found.loadings.T @ (weighed * values[at])
        spread = np.linalg.inv(precision)
        mean = (spread @ pull).reshape(len(own), factors)
        sure = np.array(
            [1 / np.trace(spread[at * factors :, at * factors :][:factors, :factors]) for at in range(len(own))]
        )
        means[own] = _rising(mean, sure, rising)
        for number, at in enumerate(own):
            part = slice(number * factors, (number + 1) * factors)
            spreads[at] = spread[part, part]
    return msgspec.structs.replace(found, means=means, spreads=spreads)


def _rising(means: Floats, weights: Floats, along: Floats) -> Floats:
    """Return the nearest standings that do not fall along a direction: neighbours that do are put together (isotonic regression)."""
    blocks: list[tuple[Floats, float, int]] = []
    for mean, weight in zip(means, weights.tolist(), strict=True):
        block = (mean, weight, 1)
        while blocks and along @ blocks[-1][0] > along @ block[0]:
            before = blocks.pop()
            whole = before[1] + block[1]
            block = ((before[0] * before[1] + block[0] * block[1]) / whole, whole, before[2] + block[2])
        blocks.append(block)
    return np.concatenate([np.repeat(mean[None, :], count, axis=0) for mean, _, count in blocks])


def _change_by_effort(found: Standings, by_model: Mapping[str, Sequence[int]], step: Floats, apart: Floats) -> Floats:
    """Return the change of a standing from no thinking to high: least squares over pairs of efforts of one model."""
    factors = found.means.shape[1]
    above, below = np.eye(factors) * 0.5, np.zeros(factors)
    for own in by_model.values():
        for one in own:
            for other in own:
                steps = step[one] - step[other]
                if steps > 0:
                    weight = np.linalg.inv(found.spreads[one] + found.spreads[other] + 2 * apart)
                    above += steps**2 * weight
                    below += steps * weight @ (found.means[one] - found.means[other])
    return np.asarray(np.linalg.solve(above, below))


def with_lines(board: Board, wanted: Sequence[Line]) -> Board:
    """Return the board with a line, empty but for the day of release, for each wanted one that has none."""
    there = set(board.lines)
    new = [line for line in wanted if line not in there]
    if not new:
        return board
    values = np.full((len(new), len(board.columns)), np.nan)
    if RELEASED in board.columns:
        for at, line in enumerate(new):
            if (found := listed(line.model)) is not None:
                year, month, _ = map(int, found[0].released.split("-"))
                values[at, board.columns.index(RELEASED)] = year - 2024 + (month - 6) / 12
    return Board([*board.lines, *new], board.columns, np.concatenate([board.values, values]))


class Grounds(msgspec.Struct, frozen=True):
    """The data that rows are fitted with: loads of each source's prompts, and the rows of models with outcomes."""

    loads: dict[str, Floats]
    """Loads of prompts by source, as PLACED_BY names the sources."""
    rows: dict[str, Floats]
    """(1 + loads,): bias and weights, by line's key."""


def grounds_of(loads: Floats, sources: NDArray[np.str_], abilities: Mapping[str, Ability]) -> Grounds:
    """Return a few hundred prompts' loads of every source, and the rows by their lines."""
    rng = np.random.default_rng(0)
    by_source = {}
    for name, members in PLACED_BY.items():
        own = np.flatnonzero(np.isin(sources, members))
        if len(own):
            by_source[name] = loads[np.sort(rng.choice(own, min(_PER_SOURCE, len(own)), replace=False))]
    rows: dict[str, list[Floats]] = {}
    for model, ability in abilities.items():
        if ability.basis == "outcomes":
            rows.setdefault(outcome_line(model).key, []).append(np.r_[ability.bias, ability.weights])
    return Grounds(by_source, {key: np.mean(told, axis=0) for key, told in rows.items()})


class Placed(msgspec.Struct, frozen=True):
    """A row made of published scores."""

    values: Floats
    covariance: Floats
    means: dict[str, float]
    """Mean chance by source."""


class Placing:
    """The way from a standing to a row."""

    def __init__(self, found: Standings, grounds: Grounds, *, times: float = _TIMES) -> None:
        self.found, self.grounds = found, grounds
        self._at = {line.key: at for at, line in enumerate(found.board.lines)}
        own = [key for key in grounds.rows if key in self._at]
        standing = np.array([found.means[self._at[key]] for key in own])
        rows = np.array([grounds.rows[key] for key in own])
        inputs = np.c_[np.ones(len(own)), standing]
        ridge = np.diag([1e-6, *[2.0] * standing.shape[1]])
        self._ridge = np.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ rows)
        left = rows - inputs @ self._ridge
        cover = left.T @ left / max(1, len(own) - inputs.shape[1])
        cover = (1 - _OWN_SPREAD) * cover + _OWN_SPREAD * np.diag(np.diag(cover)) + 1e-3 * np.eye(len(cover))
        self._cover = times * cover

    def __contains__(self, key: str) -> bool:
        return key in self._at

    def means(self, key: str) -> dict[str, tuple[float, float]]:
        """Return the logit, and its variance, that a standing says of the mean of each source."""
        at = self._at[key]
        columns = self.found.board.columns
        return {
            name: self.found.told(at, columns.index(f"source {name}"))
            for name in self.grounds.loads
            if f"source {name}" in columns
        }

    def placed(self, key: str) -> Placed:
        """Return the most probable row of a line."""
        at = self._at[key]
        start = np.r_[1.0, self.found.means[at]] @ self._ridge
        return _most_probable(start, self._cover, self.grounds.loads, self.means(key))


def _most_probable(
    start: Floats, cover: Floats, loads: Mapping[str, Floats], wanted: Mapping[str, tuple[float, float]]
) -> Placed:
    """Return the row that is near the ridge's and whose means meet the wanted ones, by Gauss and Newton's method."""
    precision = np.linalg.inv(cover)
    row = start.copy()
    curvature = precision

    def parts(point: Floats) -> tuple[list[float], list[Floats], dict[str, float]]:
        gaps, slopes, means = [], [], {}
        for name, (logit, variance) in wanted.items():
            inputs = np.c_[np.ones(len(loads[name])), loads[name]]
            chance = _logistic(inputs @ point)
            mean = float(np.clip(chance.mean(), 1e-4, 1 - 1e-4))
            means[name] = mean
            slope = (chance * (1 - chance)) @ inputs / len(chance) / (mean * (1 - mean))
            gaps.append((float(np.log(mean / (1 - mean))) - logit) / np.sqrt(variance))
            slopes.append(slope / np.sqrt(variance))
        return gaps, slopes, means

    def loss(point: Floats) -> float:
        gaps, _, _ = parts(point)
        away = point - start
        return float(np.sum(np.square(gaps)) + away @ precision @ away)

    present = loss(row)
    for _ in range(_NEWTON):
        gaps, slopes, _ = parts(row)
        matrix = np.array(slopes).reshape(len(gaps), len(row))
        curvature = matrix.T @ matrix + precision
        step = np.linalg.solve(curvature, matrix.T @ np.array(gaps) + precision @ (row - start))
        for _ in range(12):
            if loss(row - step) <= present:
                break
            step = step / 2
        else:
            break
        row = row - step
        reached = loss(row)
        if present - reached < 1e-9:
            break
        present = reached
    _, _, means = parts(row)
    return Placed(row, np.linalg.inv(curvature), means)


def wanted_lines() -> list[Line]:
    """Return every known model without outcomes, at each of its efforts."""
    return [
        Line(model.name, effort) for model in known_models() if not model.outcomes for effort in model.efforts or ("",)
    ]


class Published(msgspec.Struct, frozen=True):
    """The rows placed by published scores, by key."""

    abilities: dict[str, Ability]
    means: dict[str, dict[str, float]]
    """Mean chance by source."""


def source_means(models: Sequence[str], outcomes: Floats, sources: NDArray[np.str_]) -> dict[str, dict[str, float]]:
    """Return each model's mean score in every source of PLACED_BY that it was asked."""
    found: dict[str, dict[str, float]] = {}
    for at, model in enumerate(models):
        for name, members in PLACED_BY.items():
            told = outcomes[np.isin(sources, members), at]
            told = told[~np.isnan(told)]
            if len(told) >= _FEWEST_OUTCOMES:
                found.setdefault(model, {})[name] = float(told.mean())
    return found


def published(board: Board, grounds: Grounds, lengths: Mapping[str, float]) -> Published:
    """Return a row for every known model without outcomes that has a published score, at each of its efforts.

    `lengths` are the rows' log_length, by key.
    """
    scored = {
        line.model
        for line, values in zip(board.lines, board.values, strict=True)
        if any(not np.isnan(value) for name, value in zip(board.columns, values, strict=True) if name != RELEASED)
    }
    wanted = [line for line in wanted_lines() if line.model in scored]
    placing = Placing(standings(with_lines(board, wanted)), grounds)
    best = max(_level(placing.means(key)) for key in grounds.rows if key in placing)
    abilities, means = {}, {}
    for line in wanted:
        row, told = placing.placed(line.key), placing.means(line.key)
        beyond = _level(told) > best
        abilities[line.key] = Ability(
            weights=[round(value, 5) for value in row.values[1:].tolist()],
            bias=round(float(row.values[0]), 5),
            log_length=round(lengths.get(line.key, 0.0), 4),
            basis="published",
            reach=round(reach_of(row, told, grounds.loads, beyond=beyond), 3),
            extrapolated=beyond,
        )
        means[line.key] = {name: round(mean, 4) for name, mean in row.means.items()}
    return Published(abilities, means)


def reach_of(
    row: Placed, means: Mapping[str, tuple[float, float]], loads: Mapping[str, Floats], *, beyond: bool
) -> float:
    """Return half of the 90 % interval of P(adequate), its longer half, on average over every source's prompts.

    Where nearly every chance is near 1 a mean says nothing of how far off it is on the prompts that decide, so there is a least.
    """
    halves = []
    for name, (_, variance) in means.items():
        logits = row.values[0] + loads[name] @ row.values[1:]
        away = _NINETY * WIDER * np.sqrt(variance)
        below, above = _logistic(logits) - _logistic(logits - away), _logistic(logits + away) - _logistic(logits)
        halves.append(float(np.maximum(below, above).mean()))
    return max(LEAST_REACH, float(np.mean(halves))) * (EXTRAPOLATED if beyond else 1.0)


def _level(means: Mapping[str, tuple[float, float]]) -> float:
    return float(np.mean([logit for logit, _ in means.values()]))


def _logistic(logits: Any) -> Any:
    return 1 / (1 + np.exp(-np.clip(logits, -30, 30)))
