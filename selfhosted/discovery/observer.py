"""The results of discovery that are reported for metrics."""

from typing import Literal

from selfhosted.replica import Source as SourceName

Result = Literal["ok", "empty", "failed"]
Conflict = Literal["name", "address"]


class DiscoveryObserver:
    """Receives the results of discovery; this base class ignores them."""

    def discovery_looked(self, pool: str, source: SourceName, result: Result) -> None: ...

    def discovery_conflict(self, pool: str, kind: Conflict) -> None: ...
