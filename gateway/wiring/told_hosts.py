"""What one host learns of targets, told to those of other hosts through Redis, where there is one."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from proxy.shared.redis.scripts import script
from proxy.shared.redis.shared_state import ScriptRunner, SharedStateUnavailable

EVERY_S: Final = 2.0
"""As often as budgets are read: a host asks such a target that much longer."""
MOST: Final = 1_000
_TELL: Final = script("tell_hosts")
_LONGEST: Final = 300
"""Characters of each word that are kept of other hosts' words."""


class Learnt(NamedTuple):
    """One thing in words, and when it ends, in seconds on this host's clock."""

    until: float
    words: str


class Knowledge(Protocol):
    """What a process knows of one kind, by names that mean the same on all hosts."""

    def known(self) -> Mapping[str, Learnt]:
        """Return what is known now."""
        ...

    def learn(self, told: Mapping[str, Learnt]) -> None:
        """Learn what other hosts know and this process did not; what cannot be meant is left out."""
        ...


class ToldHosts:
    """The exchange of one process with those of other hosts. Nothing waits for it, and it may be lost: then each host finds out by itself."""

    def __init__(
        self, link: ScriptRunner, key: str, knowledge: Knowledge, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`key` is that of the kind in Redis; `clock` is that of the `knowledge`."""
        self._link = link
        self._key = key
        self._knowledge = knowledge
        self._clock = clock
        self._shared: frozenset[str] = frozenset()
        """Names that Redis had last; one that it lost is told again."""

    async def exchange(self) -> None:
        """Tell what Redis does not have, and learn what it has."""
        known, now = self._knowledge.known(), self._clock()
        news = [
            argument
            for name, learnt in known.items()
            if name not in self._shared
            for argument in (name, int(learnt.until - now) + 1, learnt.words)
        ]
        try:
            told = await self._link.call(_TELL, (f"{self._link.prefix}{self._key}",), (MOST, *news))
        except SharedStateUnavailable:
            return
        shared = dict(_read(told, now))
        self._shared = frozenset(shared)
        self._knowledge.learn({name: learnt for name, learnt in shared.items() if name not in known})


def _read(told: Any, now: float) -> Iterator[tuple[str, Learnt]]:
    """Yield what is in Redis' answer. Anybody who reaches Redis may write there, so what cannot be read is left out."""
    for name, left, words in zip(told[::3], told[1::3], told[2::3], strict=True):
        with contextlib.suppress(UnicodeDecodeError, ValueError):
            yield name.decode(), Learnt(now + int(left), words.decode()[:_LONGEST])
