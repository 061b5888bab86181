"""What is said of the state that processes share, without the client that reaches it: importing this costs nothing."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol

from proxy.redis.scripts import Script

FailureKind = Literal["open", "late", "lost", "slow", "busy", "error", "dropped"]
"""The breaker is open; no reply in time; the connection broke, or Redis has forgotten us; a reply came slowly; too much
waits to be sent; Redis answered with an error; a message that nobody waits for could not be sent."""
Argument = str | bytes | int | float
"""Floats are written so that the same double is read."""


class SharedStateUnavailable(Exception):
    """Redis did not answer this call. Never told to a caller: each process goes on by itself."""

    def __init__(self, kind: FailureKind) -> None:
        super().__init__(kind)
        self.kind = kind


class ScriptRunner(Protocol):
    """Something that scripts can be run through, in the name of one holder."""

    @property
    def holder(self) -> str: ...

    @property
    def prefix(self) -> str:
        """What every key begins with."""
        ...

    async def call(
        self,
        script: Script,
        keys: Sequence[str | bytes],
        args: Sequence[Argument],
        *,
        unwanted: Callable[[Any], None] | None = None,
    ) -> Any:
        """The reply. Raises SharedStateUnavailable within the time-out.

        A caller that is cancelled never hears what came of it; then `unwanted` is called with the reply, to give back
        what was taken.
        """
        ...

    def tell(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Argument]) -> bool:
        """Sent without waiting for the reply. False: it was not taken. Never waits and never raises."""
        ...


class LinkObserver:
    """Is told what is counted of a link; this one counts nothing."""

    def observe_redis_call(self, seconds: float) -> None: ...

    def count_redis_failure(self, kind: FailureKind) -> None: ...

    def set_redis_up(self, *, up: bool) -> None: ...


Recovered = Callable[[ScriptRunner], Awaitable[None]]


class Link(ScriptRunner, Protocol):
    """A way to Redis that may be lost and found; see RedisLink."""

    @property
    def healthy(self) -> bool: ...

    def on_lost(self, callback: Callable[[], None]) -> None: ...

    def on_recovered(self, callback: Recovered) -> None: ...

    def on_usable(self, callback: Callable[[], None]) -> None: ...
