"""The webhook outbox: a message is a row before it is sent, so that neither a crash nor an outage loses it."""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec
from sqlalchemy import ColumnElement, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from api.webhooks.tables import WebhookMessage
from cost.budgets.periods import LONGEST_DAYS
from cost.times import DAY_US, wall_us

_log = logging.getLogger("weighbridge.webhooks")

MAX_BODY_BYTES: Final = 20_000
"""Upper bound of a body: Standard Webhooks asks for less than 20 kB."""
MAX_WAITING: Final = 10_000
KEEP_FINISHED: Final = 50_000
_KEEP_FINISHED_US: Final = (LONGEST_DAYS + 7) * DAY_US
"""Retention of finished messages: the longest budget period and a week, so that no warning of one repeats."""
_KEEP_WAITING_US: Final = 7 * DAY_US
"""Retention of waiting messages; longer than all attempts take, so older ones have a destination that is no longer
configured.
"""
_MAX_ID: Final = 200
_MAX_TYPE: Final = 64
GONE: Final = 410


class MessageTooLarge(ValueError):
    """A message's body is 20 kB or larger."""


class DueMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to send now. `next_try_us` is its version: a claim fails where the row has another value."""

    message_id: str
    destination: str
    body: bytes
    tries: int
    next_try_us: int
    url: str | None = None
    """The address of a callback."""
    team_id: str | None = None
    """The team whose secret signs a callback."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of one message. Without a next try and a delivery it was given up."""

    message_id: str
    type: str
    created_us: int
    tries: int
    next_try_us: int | None
    delivered_us: int | None
    last_status: int | None


class DestinationState(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one destination's messages by state."""

    waiting: int = 0
    delivered: int = 0
    given_up: int = 0
    disabled: bool = False
    last_status: int | None = None


_DUE: Final = (
    select(*(col(getattr(WebhookMessage, name)) for name in DueMessage.__struct_fields__))
    .where(
        col(WebhookMessage.destination) == bindparam("destination"),
        col(WebhookMessage.next_try_us) <= bindparam("now_us"),
    )
    .order_by(col(WebhookMessage.next_try_us), col(WebhookMessage.message_id))
    .limit(bindparam("most"))
)
"""Made once: it is asked every second."""


class Outbox:
    """The store of messages until they are delivered or given up. Only `api.webhooks.sender` sends them."""

    def __init__(
        self,
        engine: AsyncEngine,
        now_us: Callable[[], int] = wall_us,
        *,
        max_waiting: int = MAX_WAITING,
        keep_finished: int = KEEP_FINISHED,
    ) -> None:
        self._engine = engine
        self._now_us = now_us
        self._max_waiting = max_waiting
        self._keep_finished = keep_finished

    async def put(
        self,
        message_id: str,
        destination: str,
        type: str,  # noqa: A002 - the standard's word
        body: Mapping[str, Any],
        *,
        url: str | None = None,
        team_id: str | None = None,
    ) -> bool:
        """Store a message; False where its id is known or the outbox is full. `body` becomes the envelope's `data`.

        The id names the subject (`budget/b_1/2026-11/80`), so that it is sent once whichever process stores it.
        """
        async with self._engine.begin() as connection:
            return await self.put_in(connection, message_id, destination, type, body, url=url, team_id=team_id)

    async def put_in(
        self,
        connection: AsyncConnection,
        message_id: str,
        destination: str,
        type: str,  # noqa: A002 - the standard's word
        body: Mapping[str, Any],
        *,
        url: str | None = None,
        team_id: str | None = None,
    ) -> bool:
        """Store a message as `put` does, within the caller's transaction. A callback has its own `url`, and the team
        whose secret signs it.
        """
        now_us = self._now_us()
        row = _row(message_id, destination, type, body, now_us) | {"url": url, "team_id": team_id}
        waiting = await connection.scalar(select(func.count()).where(col(WebhookMessage.next_try_us).is_not(None)))
        if (waiting or 0) >= self._max_waiting:
            # A refusal must not take the caller's own transaction with it.
            _log.error("webhook outbox is full (%d messages wait); dropped %s", waiting, row["message_id"])
            return False
        return await _insert(connection, row)

    async def hold(
        self,
        message_id: str,
        destination: str,
        type: str,  # noqa: A002 - the standard's word
        body: Mapping[str, Any],
        lease_us: int,
    ) -> DueMessage:
        """Store a message with a new id, claimed for `lease_us` at once. Raises ValueError for a known id."""
        now_us = self._now_us()
        row = _row(message_id, destination, type, body, now_us) | {"tries": 1, "next_try_us": now_us + lease_us}
        async with self._engine.begin() as connection:
            if not await _insert(connection, row):
                raise ValueError(f"there is a message {row['message_id']} already")
        return _due(row)

    async def due(self, destination: str, limit: int) -> list[DueMessage]:
        """Return the messages whose next attempt is due, the longest overdue first."""
        asked = {"destination": destination, "now_us": self._now_us(), "most": limit}
        async with self._engine.connect() as connection:
            rows = (await connection.execute(_DUE, asked)).mappings()
            return [_due(dict(row)) for row in rows]

    async def claim(self, message: DueMessage, lease_us: int) -> DueMessage | None:
        """Return the message leased to this process, with one more attempt; None when another process was first."""
        until_us = self._now_us() + lease_us
        claimed = msgspec.structs.replace(message, tries=message.tries + 1, next_try_us=until_us)
        taken = await self._update(_unchanged(message), tries=claimed.tries, next_try_us=until_us)
        return claimed if taken else None

    async def delivered(self, message: DueMessage, status: int) -> None:
        """Record a delivery."""
        await self._update(
            col(WebhookMessage.message_id) == message.message_id,
            next_try_us=None,
            delivered_us=self._now_us(),
            last_status=status,
        )

    async def failed(self, message: DueMessage, status: int, next_try_us: int | None) -> None:
        """Schedule the next attempt, or none. Ignored where another process has claimed the message after our lease."""
        await self._update(_unchanged(message), next_try_us=next_try_us, last_status=status)

    async def delivery(self, message_id: str) -> Delivery | None:
        """Return a message's delivery; None for one that was never put, or is forgotten."""
        columns = (col(getattr(WebhookMessage, name)) for name in Delivery.__struct_fields__)
        query = select(*columns).where(col(WebhookMessage.message_id) == wire_id_of(message_id))
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else Delivery(**row)

    async def resend(self, message_id: str) -> bool:
        """Have a message sent once more, whatever became of it; False for an unknown one."""
        mine = col(WebhookMessage.message_id) == wire_id_of(message_id)
        return await self._update(mine, next_try_us=self._now_us(), tries=0, delivered_us=None) == 1

    async def give_up(self, destination: str) -> int:
        """Give up all waiting messages of a destination; returns their number."""
        return await self._update(
            and_(col(WebhookMessage.destination) == destination, col(WebhookMessage.next_try_us).is_not(None)),
            next_try_us=None,
        )

    async def disabled(self, destination: str) -> bool:
        """Return True if the destination replied 410 Gone and has accepted no newer message since (`weighbridge webhooks
        test`).
        """
        ours = col(WebhookMessage.destination) == destination
        created = func.max(col(WebhookMessage.created_us))
        gone = select(created).where(ours, col(WebhookMessage.last_status) == GONE).scalar_subquery()
        taken = select(created).where(ours, col(WebhookMessage.delivered_us).is_not(None)).scalar_subquery()
        async with self._engine.connect() as connection:
            gone_us, taken_us = (await connection.execute(select(gone, taken))).one()
        return gone_us is not None and (taken_us is None or taken_us < gone_us)

    async def state(self, destination: str) -> DestinationState:
        """Count a destination's stored messages by state."""
        is_waiting, was_taken = (
            col(WebhookMessage.next_try_us).is_not(None),
            col(WebhookMessage.delivered_us).is_not(None),
        )
        ours = col(WebhookMessage.destination) == destination
        counts = select(func.count().filter(is_waiting), func.count().filter(was_taken), func.count()).where(ours)
        newest = (
            select(col(WebhookMessage.last_status))
            .where(ours, col(WebhookMessage.last_status).is_not(None))
            .order_by(col(WebhookMessage.created_us).desc())
            .limit(1)
        )
        async with self._engine.connect() as connection:
            waiting, delivered, all_of_them = (await connection.execute(counts)).one()
            last_status = await connection.scalar(newest)
        return DestinationState(
            waiting=waiting,
            delivered=delivered,
            given_up=all_of_them - waiting - delivered,
            disabled=await self.disabled(destination),
            last_status=last_status,
        )

    async def forget(self) -> int:
        """Delete expired messages and surplus finished ones; returns their number."""
        now_us = self._now_us()
        is_waiting = col(WebhookMessage.next_try_us).is_not(None)
        created = col(WebhookMessage.created_us)
        beyond = (
            select(created)
            .where(~is_waiting)
            .order_by(created.desc())
            .offset(self._keep_finished)
            .limit(1)
            .scalar_subquery()
        )
        old = or_(
            and_(is_waiting, created < now_us - _KEEP_WAITING_US),
            and_(~is_waiting, or_(created < now_us - _KEEP_FINISHED_US, created <= beyond)),
        )
        async with self._engine.begin() as connection:
            return max(0, (await connection.execute(delete(WebhookMessage).where(old))).rowcount)

    async def _update(self, where: ColumnElement[bool], **values: int | None) -> int:
        async with self._engine.begin() as connection:
            return max(0, (await connection.execute(update(WebhookMessage).where(where).values(**values))).rowcount)


def _row(
    message_id: str,
    destination: str,
    type: str,  # noqa: A002 - the standard's word
    body: Mapping[str, Any],
    at_us: int,
) -> dict[str, Any]:
    wire_id = wire_id_of(message_id)
    if not 0 < len(wire_id) <= _MAX_ID or not 0 < len(type) <= _MAX_TYPE:
        raise ValueError(f"a message's id has 1 to {_MAX_ID} characters, its type 1 to {_MAX_TYPE}")
    return {
        "message_id": wire_id,
        "destination": destination,
        "type": type,
        "body": envelope(wire_id, type, at_us, body).decode(),
        "created_us": at_us,
        "tries": 0,
        "next_try_us": at_us,
        "delivered_us": None,
        "last_status": None,
        "url": None,
        "team_id": None,
    }


async def _insert(connection: AsyncConnection, row: Mapping[str, Any]) -> bool:
    insert = sqlite_insert if connection.dialect.name == "sqlite" else postgresql_insert
    written = await connection.execute(insert(WebhookMessage).values(**row).on_conflict_do_nothing())
    return written.rowcount == 1


def _due(row: Mapping[str, Any]) -> DueMessage:
    fields = {name: row[name] for name in DueMessage.__struct_fields__}
    return DueMessage(**{**fields, "body": row["body"].encode()})


def wire_id_of(message_id: str) -> str:
    """Return the id for headers: ASCII, without dots, which separate the signed parts."""
    return quote(message_id, safe="/:@+=,").replace(".", "%2E")


def envelope(wire_id: str, type: str, at_us: int, data: Mapping[str, Any]) -> bytes:  # noqa: A002 - the standard's word
    """Return the body: fields of OpenAI's events (id, object, created_at) and of Standard Webhooks (timestamp). Raises
    MessageTooLarge.
    """
    encoded = msgspec.json.encode(
        {
            "id": wire_id,
            "object": "event",
            "type": type,
            "created_at": at_us // 1_000_000,
            "timestamp": datetime.fromtimestamp(at_us // 1_000_000, UTC).isoformat().replace("+00:00", "Z"),
            "data": data,
        }
    )
    if len(encoded) >= MAX_BODY_BYTES:
        raise MessageTooLarge(f"{wire_id}: a message must be smaller than {MAX_BODY_BYTES} bytes, not {len(encoded)}")
    return encoded


def _unchanged(message: DueMessage) -> ColumnElement[bool]:
    return and_(
        col(WebhookMessage.message_id) == message.message_id,
        col(WebhookMessage.next_try_us) == message.next_try_us,
    )
