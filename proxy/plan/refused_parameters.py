"""Parameters that targets refused by their names, beside those that the table of quirks knows of.

A name is remembered, never a value, and only one of which it is known what becomes of a request without it. So what one
caller's request taught takes nothing from others but a parameter that the model would have refused them, too.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from providers.quirks import read_table

_LOG: Final = logging.getLogger(__name__)
_REMEMBERED_S: Final = 86_400.0
"""Providers change what they take, and tell nobody."""
_MOST: Final = 1_000
"""Pairs remembered; names below a wildcard are as many as callers think of."""
_NONE_EFFORT: Final = "none"
_NONE: Final[Mapping[str, frozenset[str]]] = {}


class Refused(msgspec.Struct, frozen=True):
    """A target's refusal of one parameter, until a time in seconds on the host's clock."""

    target_id: str
    name: str
    until: float
    at_none: bool = False
    """True if the request asked the model not to reason: then it takes the parameter at no effort."""

    @property
    def everywhere(self) -> bool:
        """True if it holds at each reasoning effort."""
        return self.at_none or self.name not in read_table().by_effort


class RefusedParameters:
    """The refusals of the last day in this process, and those that the host's other processes told of."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is the same in all processes of the host, as the monotonic one is."""
        self._clock = clock
        self._found: dict[tuple[str, str], Refused] = {}
        self._by_target: Mapping[str, frozenset[str]] = _NONE
        self._at_none: Mapping[str, frozenset[str]] = _NONE
        self._next_end = 0.0
        self.tell: Callable[[Refused], None] = lambda _refused: None
        """Called with each refusal that was met here first."""

    def record(self, target_id: str, name: str, effort: str = "") -> None:
        """Remember that the target refused the parameter by its name, from a request with this reasoning effort."""
        if name in self.current(effort).get(target_id, frozenset()):
            return
        refused = Refused(target_id, name, self._clock() + _REMEMBERED_S, at_none=effort == _NONE_EFFORT)
        self.learn([refused])
        _LOG.warning(
            "target %s refuses the parameter %s: requests are sent there without it for a day, or elsewhere where it "
            "decides what is answered. A row of providers/data/quirks.toml would say so from the start.",
            target_id,
            name,
        )
        self.tell(refused)

    def learn(self, told: Iterable[Refused]) -> None:
        """Remember what other processes met."""
        for each in told:
            key = each.target_id, each.name
            if key not in self._found and len(self._found) >= _MOST:
                del self._found[next(iter(self._found))]
            known = self._found.get(key)
            # One that was met at no effort stays that, however often it is met at others.
            stays = known is not None and known.at_none and not each.at_none
            self._found[key] = msgspec.structs.replace(each, at_none=True) if stays else each
        self._sort()

    @property
    def known(self) -> tuple[Refused, ...]:
        """Those that are remembered now."""
        self.current()
        return tuple(self._found.values())

    def current(self, effort: str = "") -> Mapping[str, frozenset[str]]:
        """Return the refused parameters by target, of a request with this reasoning effort."""
        if self._found and self._clock() >= self._next_end:
            self._sort()
        return self._at_none if effort == _NONE_EFFORT else self._by_target

    def _sort(self) -> None:
        now = self._clock()
        self._found = {key: each for key, each in self._found.items() if each.until > now}
        self._next_end = min((each.until for each in self._found.values()), default=0.0)
        self._by_target = _by_target(self._found.values())
        self._at_none = _by_target(each for each in self._found.values() if each.everywhere)


def _by_target(refused: Iterable[Refused]) -> Mapping[str, frozenset[str]]:
    names: dict[str, set[str]] = {}
    for each in refused:
        names.setdefault(each.target_id, set()).add(each.name)
    return {target_id: frozenset(found) for target_id, found in names.items()} or _NONE
