"""An answer that somebody is asked about: its events wait until what they say is judged, and leave as they are or not at all."""

from typing import Final

from guard.gathered import Gathered
from providers.wire import Event
from proxy.admit.asked_answers import AskedOfAnswers
from proxy.relay.guarded_answer import GuardedAnswer
from proxy.relay.guarded_pieces import GuardedPieces

_MOST_EVENTS: Final = 4_096
"""Events that wait at most. Pieces of texts are none: they wait as one text."""


class HeldAnswer:
    """The events of one answer that wait for a verdict."""

    def __init__(self, guard: GuardedAnswer, gathered: Gathered, asks: AskedOfAnswers) -> None:
        """`gathered` is what `guard` gathers."""
        self._guard = guard
        self._gathered = gathered
        self._asks = asks
        self._waiting: list[Event] = []
        self._bytes = b""

    async def let_out(self, told: list[Event], *, final: bool) -> list[Event]:
        """Take the events that follow, of which none does where it is `final`, and return those that may go out now. Raises
        GuardUnavailable.
        """
        gathered, guard = self._gathered, self._guard
        silent = 0 if self._waiting or final else guard.silent
        self._waiting += told[silent:]
        if gathered.unasked_chars and not (final or gathered.is_due or len(self._waiting) >= _MOST_EVENTS):
            return told[:silent]
        waiting, self._waiting = self._waiting, []
        if await self._blocks():
            return [*told[:silent], *guard.filtered()]
        guard.all_went_out()
        return [*told[:silent], *waiting]

    async def whole(self, event: Event) -> Event:
        """Return a whole answer as its caller may have it. Raises GuardUnavailable."""
        return self._guard.filtered_whole(event) if await self._blocks() else event

    async def bytes_of(self, pieces: GuardedPieces, told: bytes, *, final: bool) -> bytes:
        """Take what follows of an answer in pieces, and return what may go out now. Raises GuardUnavailable."""
        self._bytes += told
        if self._gathered.unasked_chars and not (final or self._gathered.is_due):
            return b""
        waiting, self._bytes = self._bytes, b""
        return pieces.ended() if await self._blocks() else waiting

    async def _blocks(self) -> bool:
        if not self._gathered.unasked_chars:
            return False
        verdict = await self._asks.judge(self._gathered.taken())
        self._guard.add_findings(verdict.findings)
        return verdict.blocked
