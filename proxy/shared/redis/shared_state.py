"""Types of state shared through Redis, without its client, so that importing them is cheap."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol

from proxy.shared.redis.scripts import Script

FailureKind = Literal["open", "late", "lost", "slow", "busy", "error", "dropped"]
"""The kind of a failure: `open`, the breaker is open; `late`, no reply in time; `lost`, the connection broke or Redis
forgot this process; `slow`, a slow reply; `busy`, too much waits to be sent; `error`, an error reply; `dropped`, a
message without reply could not be sent.
"""
Argument = str | bytes | int | float
"""A script argument; floats are written so that the same double is read back."""


class SharedStateUnavailable(Exception):
    """Raised when Redis did not answer a call. Never reaches callers, as each process then decides by itself."""

    def __init__(self, kind: FailureKind) -> None:
        super().__init__(kind)
        self.kind = kind


class ScriptRunner(Protocol):
    """An interface to run scripts in the name of one holder."""

    @property
    def holder(self) -> str: ...

    @property
    def prefix(self) -> str:
        """The prefix of every key."""
        ...

    async def call(
        self,
        script: Script,
        keys: Sequence[str | bytes],
        args: Sequence[Argument],
        *,
        unwanted: Callable[[Any], None] | None = None,
    ) -> Any:
        """Run a script and return its reply. Raises SharedStateUnavailable within the time-out.

        When the caller is cancelled, `unwanted` is called with the late reply, to give back its claim.
        """
        ...

    def tell(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Argument]) -> bool:
        """Send a script call without waiting for its reply. Return False when it was not accepted. Never blocks or
        raises.
        """
        ...


class LinkObserver:
    """A receiver of a link's counts; this base class ignores them."""

    def observe_redis_call(self, seconds: float) -> None: ...

    def count_redis_failure(self, kind: FailureKind) -> None: ...

    def set_redis_up(self, *, up: bool) -> None: ...

    def count_primary_change(self) -> None:
        """Count that calls go to another primary than before."""


Recovered = Callable[[ScriptRunner], Awaitable[None]]


class Link(ScriptRunner, Protocol):
    """A link to Redis that may be lost and recovered; see RedisLink."""

    @property
    def healthy(self) -> bool: ...

    def on_lost(self, callback: Callable[[], None]) -> None: ...

    def on_recovered(self, callback: Recovered) -> None: ...

    def on_usable(self, callback: Callable[[], None]) -> None: ...
