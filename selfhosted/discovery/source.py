"""What every way of finding replicas has in common."""

from typing import Final, Protocol

import msgspec

from selfhosted.replica import Source as SourceName

LOOK_S: Final = 5.0
"""How long one look may take."""
MOST_REPLICAS: Final = 1_000
"""Of one pool."""


class SourceFailed(Exception):
    """A source could not tell who is there, so what it told before counts. The message says why."""


class DiscoveredReplica(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A replica, as one source tells it."""

    name: str
    url: str
    draining: bool = False


class SourceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one look told."""

    replicas: tuple[DiscoveredReplica, ...] = ()
    unusable: tuple[str, ...] = ()
    """What was told and cannot be used, in words."""


class Source(Protocol):
    """Somebody who knows replicas of one pool."""

    @property
    def name(self) -> SourceName: ...

    @property
    def every_s(self) -> float:
        """How often it is asked."""
        ...

    async def fetch(self) -> SourceResult:
        """Who is there now. Raises SourceFailed."""
        ...
