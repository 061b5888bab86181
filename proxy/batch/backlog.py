"""The backlog of batches as demand with a deadline: the tokens a second that are missing to be in time. Pure but for
its keeper.

Own engines are sized so that idle time alone would do the work in half of the time left (`scheduler.EASY`). Batches
without a deadline ask for nothing: they take idle time.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from proxy.batch.scheduler import EASY

_LEAST_LEFT_S: Final = 300.0
"""The least time left, in seconds, that is reckoned with: no engine is there earlier."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of a batch that waits for an answer."""

    model: str | None
    """The model that all lines name; None where they differ."""
    tokens: int
    """The estimated tokens that wait for an answer here."""
    left_s: float | None
    """Seconds until it is due; None without a deadline."""


def lacking(due: Iterable[Due], tokens_per_s: float | None) -> dict[str | None, float]:
    """Return by model the tokens a second that are needed beyond the speed at which batches are answered now."""
    needed: dict[str | None, float] = {}
    tokens: dict[str | None, int] = {}
    for each in sorted((each for each in due if each.left_s is not None), key=lambda each: each.left_s or 0.0):
        tokens[each.model] = tokens.get(each.model, 0) + each.tokens
        rate = tokens[each.model] / (EASY * max(_LEAST_LEFT_S, each.left_s or 0.0))
        needed[each.model] = max(needed.get(each.model, 0.0), rate)
    whole = sum(needed.values())
    if not whole:
        return {}
    # Which model the speed belongs to is not measured: each is taken to get its part of it.
    short = max(0.0, 1.0 - (tokens_per_s or 0.0) / whole)
    return {model: rate * short for model, rate in needed.items()}


class Backlog:
    """The demand that the runner of this process found last."""

    def __init__(self) -> None:
        self._lacking: Mapping[str | None, float] = {}

    def note(self, found: Mapping[str | None, float]) -> None:
        """Store the result of `lacking`."""
        self._lacking = found

    def tokens_per_s(self, targets: Collection[str], known: Collection[str], pools: int) -> float:
        """Return the tokens a second that a pool with these targets lacks.

        The demand that names none of the `known` targets, such as `auto`, is divided between all
        pools.
        """
        named = sum(rate for model, rate in self._lacking.items() if model in targets)
        others = sum(rate for model, rate in self._lacking.items() if model is None or model not in known)
        return named + others / max(1, pools)
