"""Callbacks: messages to addresses that callers gave, signed with a secret of their team.

A team's secret is not stored. It follows from the gateway's pepper, the team and a version; rotating it counts the version
up. For a day after that messages are signed with the one before, too, and while a pepper is replaced with both of them.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.keys import Pepper
from api.webhooks.addresses import CallbackAddresses
from api.webhooks.outbox import Outbox
from api.webhooks.sealed_addresses import SealedAddresses
from api.webhooks.tables import CallbackSecret
from cost.times import DAY_US, wall_us

DESTINATION: Final = "callback"
"""The destination of every message that has an address of its own."""
_MOST_KEYS: Final = 4


class SecretState(msgspec.Struct, frozen=True, kw_only=True):
    """The version of a team's current secret. `rotated_us` is 0 for the first."""

    version: int = 1
    rotated_us: int = 0


class CallbackDesk(NamedTuple):
    """The parts of callbacks that routes use."""

    addresses: CallbackAddresses
    secrets: "CallbackSecrets"
    outbox: Outbox
    sealed: SealedAddresses


class CallbackSecrets:
    """The signing secrets of teams."""

    def __init__(self, engine: AsyncEngine, peppers: Sequence[Pepper], now_us: Callable[[], int] = wall_us) -> None:
        self._engine = engine
        self._peppers = peppers
        self._now_us = now_us

    async def state(self, team_id: str) -> SecretState:
        """Return a team's current secret, by its version."""
        query = select(col(CallbackSecret.version), col(CallbackSecret.rotated_us)).where(
            col(CallbackSecret.team_id) == team_id
        )
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).mappings().first()
        return SecretState() if row is None else SecretState(**row)

    def shown(self, team_id: str, state: SecretState) -> str:
        """Return the secret as receivers want it, `whsec_…`."""
        return "whsec_" + base64.b64encode(_key(self._peppers[0], team_id, state.version)).decode()

    async def keys(self, team_id: str) -> tuple[bytes, ...]:
        """Return the keys to sign with, the current one first."""
        state = await self.state(team_id)
        versions = [state.version]
        if state.version > 1 and self._now_us() - state.rotated_us < DAY_US:
            versions.append(state.version - 1)
        found = [_key(pepper, team_id, version) for version in versions for pepper in self._peppers]
        return tuple(found[:_MOST_KEYS])

    def within(self, engine: AsyncEngine) -> "CallbackSecrets":
        """Return the same, inside of somebody's transaction."""
        return CallbackSecrets(engine, self._peppers, self._now_us)

    async def rotate(self, team_id: str) -> SecretState:
        """Make the next secret the current one."""
        first = {"team_id": team_id, "version": 1, "rotated_us": 0}
        rotated = (
            update(CallbackSecret)
            .where(col(CallbackSecret.team_id) == team_id)
            .values(version=col(CallbackSecret.version) + 1, rotated_us=self._now_us())
            .returning(col(CallbackSecret.version), col(CallbackSecret.rotated_us))
        )
        insert = sqlite_insert if self._engine.dialect.name == "sqlite" else postgresql_insert
        async with self._engine.begin() as connection:
            await connection.execute(insert(CallbackSecret).values(**first).on_conflict_do_nothing())
            return SecretState(**(await connection.execute(rotated)).mappings().one())


def _key(pepper: Pepper, team_id: str, version: int) -> bytes:
    return hmac.digest(pepper.secret, f"callback secret:{team_id}:{version}".encode(), hashlib.sha256)
