"""Targets that a hard budget cannot rely on, because one of their answers was more than was held for it."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

_LOG: Final = logging.getLogger(__name__)
_SET_ASIDE_S: Final = 86_400.0
"""An engine is mended by its operators, of which nothing is told here: a day later it is asked again."""
MOST_OVERRUNS: Final = 1_000
"""Targets remembered; names below a wildcard are as many as callers think of."""


class Overrun(msgspec.Struct, frozen=True):
    """How a target went beyond its bound, in words, and the end of its being set aside, in seconds on the host's clock."""

    until: float
    found: str


class Overruns:
    """The overruns of the last day in this process, and those that the host's other processes told of.

    Requests under a hard budget pass such a target over (`unbounded`); all others still go there.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is the same in all processes of the host, as the monotonic one is."""
        self._clock = clock
        self._found: dict[str, Overrun] = {}
        self.tell: Callable[[str, Overrun], None] = lambda _target_id, _overrun: None
        """Called with each target that is set aside here; one that is set aside already is not told again."""

    def record(self, target_id: str, found: str) -> None:
        """Set the target aside for hard budgets; `found` is how it went beyond its bound, in words."""
        overrun = Overrun(self._clock() + _SET_ASIDE_S, found)
        is_new = target_id not in self._found
        self._keep(target_id, overrun)
        if is_new:
            _LOG.warning(
                "target %s is set aside for hard budgets for a day: it %s. What it told is booked.", target_id, found
            )
            self.tell(target_id, overrun)

    def learn(self, told: Mapping[str, Overrun]) -> None:
        """Set aside what other processes found."""
        for target_id, overrun in told.items():
            if target_id not in self._found:
                self._keep(target_id, overrun)

    @property
    def known(self) -> dict[str, Overrun]:
        """Those that are set aside now, by target."""
        now = self._clock()
        for target_id in [each for each, overrun in self._found.items() if overrun.until <= now]:
            del self._found[target_id]
        return dict(self._found)

    def current(self) -> Mapping[str, str]:
        """Return what was found, by target, of those that are set aside now."""
        if not self._found:
            return _NONE
        return {target_id: overrun.found for target_id, overrun in self.known.items()}

    def _keep(self, target_id: str, overrun: Overrun) -> None:
        if target_id not in self._found and len(self._found) >= MOST_OVERRUNS:
            del self._found[next(iter(self._found))]
        self._found[target_id] = overrun


_NONE: Final[Mapping[str, str]] = {}
