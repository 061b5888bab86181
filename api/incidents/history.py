"""The history of incidents as one control plane keeps it, in step with the database and other hosts."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from api.incidents.kept import Change, KeptIncident, Seen, changes
from api.incidents.store import IncidentStore

_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)
_MOST_LEFT: Final = 200


class History:
    """The incidents that are open, as they were read last, and those that could not be saved yet."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.store: Final = IncidentStore(engine)
        self.current: tuple[KeptIncident, ...] = ()
        """Those that are open, or were until just now."""
        self._is_read = False
        self._left: dict[str, tuple[Seen, int]] = {}

    @property
    def open(self) -> list[KeptIncident]:
        """Those that are open."""
        return [each for each in self.current if each.is_open]

    async def read(self, now_us: int) -> None:
        """Read what is open, where that was never done; what cannot be read is tried again."""
        if self._is_read:
            return
        try:
            self.current = tuple(await self.store.current(now_us))
            self._is_read = True
        except _FAILS:
            return

    async def note(self, found: Sequence[Seen], boot_id: str, now_us: int) -> None:
        """Save what is wrong now, and close what is over. While the database is away it is remembered, also where that is what is
        wrong.
        """
        try:
            kept = await self.store.current(now_us)
            changed = [*changes(found, kept, boot_id, now_us), *self._left_behind(found, kept, boot_id)]
            await self.store.save(changed)
            self.current = tuple(await self.store.current(now_us))
        except _FAILS:
            self._left.update({each.place: (each, now_us) for each in found[:_MOST_LEFT]})
            return
        self._is_read = True
        self._left.clear()

    def _left_behind(self, found: Sequence[Seen], kept: Sequence[KeptIncident], boot_id: str) -> list[Change]:
        """Return what was wrong while nothing could be saved, and is not any more."""
        now = {place for each in found for place in each.places}
        return [
            change
            for seen, seen_us in self._left.values()
            if now.isdisjoint(seen.places)
            for change in changes([seen], [one for one in kept if one.is_open], boot_id, seen_us)
            if not now.intersection(change.kept.places)
        ]
