"""The round that looks at the whole gateway and keeps the history of its incidents."""

from collections.abc import Callable, Mapping
from typing import Any

from api.operations.snapshot import look
from api.web.gateway import Gateway
from cost.times import wall_us


class IncidentRound:
    """A look at the gateway. The control plane of every host takes it; what several see is one incident."""

    def __init__(
        self,
        gateway: Gateway,
        tell: Callable[[Mapping[str, Any]], None],
        now_us: Callable[[], int] = wall_us,
    ) -> None:
        """`tell` is told the snapshot, for metrics."""
        self._gateway = gateway
        self._tell = tell
        self._now_us = now_us

    async def look(self) -> None:
        """Run one round. One that is stopping only tells metrics."""
        now_us = self._now_us()
        told, found = await look(self._gateway, now_us)
        self._tell(told)
        if told["process"]["draining"]:
            # What goes away because somebody stops this host is nobody's incident; what others suffer, other hosts see.
            return
        await self._gateway.views.operations.history.note(found, self._gateway.boot_id, now_us)

    async def forget(self) -> None:
        """Delete what is too old to be kept."""
        await self._gateway.views.operations.history.store.forget(self._now_us())
