"""Tracking of event sequence numbers, to detect missed messages. Pure."""

from typing import Literal

Seen = Literal["first", "next", "known", "gap", "restart"]
"""Classification of a message. `first`: of a connection; what came before it is unknown. `next`: nothing was missed.
`known`: a replay has delivered it already. `gap`: messages in between were missed. `restart`: numbering began anew, so
it is another engine."""


class Sequence:
    """The position of the live stream, and the end of what was applied, replays included."""

    __slots__ = ("_live", "wanted")

    def __init__(self) -> None:
        self._live: int | None = None
        self.wanted = 0
        """The first number that has not been applied yet."""

    def see(self, number: int) -> Seen:
        """Classify a live message. The caller calls `taken` once it has applied it."""
        live, self._live = self._live, number + 1
        if live is None:
            return "first" if number > self.wanted else "next" if number == self.wanted else "restart"
        if number < live:
            return "restart"
        if number < self.wanted:
            return "known"
        return "next" if number == self.wanted else "gap"

    def taken(self, number: int) -> None:
        """Mark everything up to this number as applied."""
        self.wanted = number + 1

    def restarted(self) -> None:
        """Reset both positions: the next message may be another engine's."""
        self._live = None
        self.wanted = 0
