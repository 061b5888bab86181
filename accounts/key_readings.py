"""On which day each key was last used to read or to change: such requests are in no roll-up, as they cost nothing."""

from collections.abc import Callable
from typing import Final

from sqlalchemy import or_, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.tables import ApiKey

_DAY_US: Final = 86_400_000_000
_AT_ONCE: Final = 500
"""Keys of one statement."""


class KeyReadings:
    """The keys seen by this process, kept in memory until `save`: a key costs one row's update a day."""

    def __init__(self, engine: AsyncEngine, clock_us: Callable[[], int]) -> None:
        self._engine = engine
        self._clock_us = clock_us
        self._day_us = 0
        self._seen: set[str] = set()
        self._unsaved: list[str] = []

    def note(self, key_id: str) -> None:
        """Note that a key is used now."""
        now_us = self._clock_us()
        if not self._day_us <= now_us < self._day_us + _DAY_US:
            # What is still unsaved of the day before was used within the last seconds of it. A clock that was ahead is put back.
            self._day_us = now_us - now_us % _DAY_US
            self._seen.clear()
        if key_id not in self._seen:
            self._seen.add(key_id)
            self._unsaved.append(key_id)

    async def save(self) -> None:
        """Write the day of the keys that were noted. Raises SQLAlchemyError, OSError; they are written the next time then."""
        while self._unsaved:
            some, day_us = self._unsaved[:_AT_ONCE], self._day_us
            older = or_(col(ApiKey.read_day_us).is_(None), col(ApiKey.read_day_us) < day_us)
            async with self._engine.begin() as connection:
                await connection.execute(
                    update(ApiKey).where(col(ApiKey.key_id).in_(some), older).values(read_day_us=day_us)
                )
            del self._unsaved[: len(some)]
