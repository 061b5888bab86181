"""Targets that a hard budget cannot rely on, because one of their answers was more than was held for it."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

_LOG: Final = logging.getLogger(__name__)
_SET_ASIDE_S: Final = 86_400.0
"""An engine is mended by its operators, of which nothing is told here: a day later it is asked again."""
_MOST: Final = 1_000
"""Targets remembered; names below a wildcard are as many as callers think of."""


class Overruns:
    """The overruns of the last day in this process.

    Requests under a hard budget pass such a target over (`unbounded`); all others still go there.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._found: dict[str, tuple[float, str]] = {}
        """The end of being set aside, in seconds on the clock, and what was found, by target."""

    def record(self, target_id: str, found: str) -> None:
        """Set the target aside for hard budgets; `found` is how it went beyond its bound, in words."""
        if target_id not in self._found:
            _LOG.warning(
                "target %s is set aside for hard budgets for a day: it %s. What it told is booked.", target_id, found
            )
            if len(self._found) >= _MOST:
                del self._found[next(iter(self._found))]
        self._found[target_id] = (self._clock() + _SET_ASIDE_S, found)

    def current(self) -> Mapping[str, str]:
        """Return what was found, by target, of those that are set aside now."""
        if not self._found:
            return _NONE
        now = self._clock()
        for target_id in [each for each, (until, _) in self._found.items() if until <= now]:
            del self._found[target_id]
        return {target_id: found for target_id, (_, found) in self._found.items()}


_NONE: Final[Mapping[str, str]] = {}
