"""The domain model: the probability that a prompt is like those whose outcomes are known, so the network can be trusted.

The network knows exam questions, sums, puzzles in code and tool calls. Of everyday prompts it knows nothing, however
many of their words it has seen; there the complexity leads. A request with tools that is no harder than one call is what
it learned from; a harder one is an agent's job, and is not.
"""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from classifier.features import STRUCTURE
from classifier.training.network import Rows, quantised, weighed

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

WORDS_STRENGTH: Final = 10.0
GIST_STRENGTH: Final = 0.1
SHARPNESS: Final = 3.0
"""Factor of the logit. Half-trusted loads order prompts worse than either kind alone: 1 costs tool calls .05 of APGR."""
ONE_CALL: Final = 0.43
AN_AGENTS_JOB: Final = 0.73
"""Complexities between which a request with tools ceases to be like the tool calls that were learned from."""
MOST_OF_A_SOURCE: Final = 1_500
OF_AGENTS: Final = 0.015
"""Share that agents' jobs have among prompts of another kind, however many were written: the more, the less are calls trusted that were learned
from. Twice as much costs their two pairs .012 and .004 of APGR, four times as much about .013 each.
"""
_TOOLS_AT: Final = STRUCTURE.index("log_tools")
_TOOLS_SCALE: Final = 2.0
_COMPLEXITY_SCALE: Final = 4.0


class Sides(msgspec.Struct, frozen=True):
    """Prompts as the model takes them."""

    rows: Rows
    standardised: Floats
    complexity: Floats

    @property
    def tools(self) -> Floats:
        """(prompts,): 1 where tools are on offer."""
        return np.asarray(self.rows.facts[:, _TOOLS_AT] > 0, np.float64)

    def inputs(self) -> Floats:
        """Return (prompts, gist + 2)."""
        tools = self.tools
        found: Floats = np.c_[self.standardised, _TOOLS_SCALE * tools, _COMPLEXITY_SCALE * tools * self.complexity]
        return found

    def __getitem__(self, rows: Integers) -> "Sides":
        return Sides(self.rows[rows], self.standardised[rows], self.complexity[rows])


class Domain(msgspec.Struct, frozen=True):
    """Two logistic regressions, on hashed terms and on gist and tools, whose logits are averaged."""

    words: Floats
    """(buckets,)"""
    gist: Floats
    tools: float
    tools_by_complexity: float
    bias: float

    def trust(self, of: Sides, idf: Floats) -> Floats:
        """Return (prompts,): the probability of being in the domain; with tools, at least what the complexity allows."""
        by_tools = of.tools * (self.tools + self.tools_by_complexity * of.complexity)
        logits = weighed(of.rows.counts, idf) @ self.words + of.standardised @ self.gist + by_tools + self.bias
        allowed = of.tools * np.minimum(1, (AN_AGENTS_JOB - of.complexity) / (AN_AGENTS_JOB - ONE_CALL))
        return np.asarray(np.maximum(1 / (1 + np.exp(-np.clip(logits, -30, 30))), allowed))


def fit(inside: Sides, sources: NDArray[np.str_], outside: Sides, idf: Floats) -> Domain:
    """Train it on prompts with outcomes, where every source counts the same, and as much on prompts of another kind."""
    chosen = _of_each_source(sources)
    inside, sources = inside[chosen], sources[chosen]
    _, which, sizes = np.unique(sources, return_inverse=True, return_counts=True)
    others = _with_few_agents(outside.tools)
    weights = np.r_[others.sum() / (len(sizes) * sizes[which]), others]
    told = np.r_[np.ones(len(sources)), np.zeros(len(outside.complexity))]
    terms = weighed(sparse.vstack([inside.rows.counts, outside.rows.counts], format="csr"), idf)
    by_words = LogisticRegression(C=WORDS_STRENGTH).fit(terms, told, sample_weight=weights)
    inputs = np.concatenate([inside.inputs(), outside.inputs()])
    by_gist = LogisticRegression(C=GIST_STRENGTH).fit(inputs, told, sample_weight=weights)
    half = SHARPNESS / 2
    gist = half * by_gist.coef_[0]
    return Domain(
        words=quantised(half * by_words.coef_.T)[:, 0],
        gist=gist[:-2],
        tools=float(gist[-2] * _TOOLS_SCALE),
        tools_by_complexity=float(gist[-1] * _COMPLEXITY_SCALE),
        bias=float(half * (by_words.intercept_[0] + by_gist.intercept_[0])),
    )


def _with_few_agents(tools: Floats) -> Floats:
    """Return (prompts,): weights of prompts of another kind, by whether tools are on offer: 1, and less where there are
    more of these than OF_AGENTS.
    """
    of_agents = OF_AGENTS * (1 - tools).sum() / (1 - OF_AGENTS)
    found: Floats = np.where(tools > 0, min(1.0, of_agents / max(1.0, tools.sum())), 1.0)
    return found


def _of_each_source(sources: NDArray[np.str_]) -> Integers:
    draw = np.random.default_rng(0)
    each = [np.flatnonzero(sources == source) for source in np.unique(sources)]
    return np.sort(np.concatenate([draw.permutation(rows)[:MOST_OF_A_SOURCE] for rows in each]))
