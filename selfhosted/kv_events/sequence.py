"""Whether anything of an engine's events was missed. Pure."""

from typing import Literal

Seen = Literal["first", "next", "known", "gap", "restart"]
"""`first`: of a connection; what came before it is not known. `next`: nothing was missed. `known`: a replay told it
already. `gap`: those in between were missed. `restart`: it counts from the beginning again, so it is another engine."""


class Sequence:
    """Where the live messages are, and up to where everything was taken over, replays included."""

    __slots__ = ("_live", "wanted")

    def __init__(self) -> None:
        self._live: int | None = None
        self.wanted = 0
        """The first that was not taken over yet."""

    def see(self, number: int) -> Seen:
        """A live message. Whoever acts on it calls `taken` afterwards."""
        live, self._live = self._live, number + 1
        if live is None:
            return "first" if number > self.wanted else "next" if number == self.wanted else "restart"
        if number < live:
            return "restart"
        if number < self.wanted:
            return "known"
        return "next" if number == self.wanted else "gap"

    def taken(self, number: int) -> None:
        """Everything up to this one is taken over."""
        self.wanted = number + 1

    def restarted(self) -> None:
        """What comes next may be another engine's."""
        self._live = None
        self.wanted = 0
