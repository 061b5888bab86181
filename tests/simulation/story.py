"""What happened in a seed, line by line in simulated time, and a digest of it."""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from tests.simulation.machine import Machine


class Story:
    """The lines of one seed."""

    def __init__(self, machine: Machine, listen: Callable[[str], object] | None = None) -> None:
        self._machine = machine
        self._listen = listen
        self._sum = blake2b(digest_size=16)
        self._begun_at = machine.now
        self.broken: list[str] = []
        """The invariants that did not hold."""

    def tell(self, who: str, what: str, /, **facts: Any) -> None:
        """Add a line."""
        told = " ".join(f"{name}={value}" for name, value in facts.items())
        line = f"{self._machine.now - self._begun_at:12.6f} {who:<12} {what} {told}".rstrip()
        self._sum.update(line.encode())
        if self._listen is not None:
            self._listen(line)

    def violate(self, invariant: str, /, **facts: Any) -> None:
        """Add an invariant that does not hold."""
        told = " ".join(f"{name}={value}" for name, value in facts.items())
        self.broken.append(f"{invariant}: {told}")
        self.tell("INVARIANT", invariant, **facts)

    @property
    def digest(self) -> str:
        return self._sum.hexdigest()
