"""Alerts in the database. The organisation stands in every query."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from api.webhooks.addresses import BadCallbackUrl
from api.webhooks.sealed_addresses import SealedAddresses
from api.webhooks.tables import WebhookMessage
from dashboards.alerts.alert import Alert
from dashboards.alerts.tables import AlertRule

MOST: Final = 200
"""Most alerts of an organisation,"""
MOST_OF_TEAM: Final = 50
"""and of one team, which leaves room to others."""
_MOST_OF_ALL: Final = 10_000
_NAMES: Final = Alert.__struct_fields__


async def read_alerts(engine: AsyncEngine, organisation_id: str, team_id: str | None = None) -> list[Alert]:
    """Return an organisation's alerts, or those of one team."""
    where = [col(AlertRule.organisation_id) == organisation_id]
    if team_id is not None:
        where.append(col(AlertRule.team_id) == team_id)
    return await _read(engine, where, MOST)


async def all_alerts(engine: AsyncEngine) -> list[Alert]:
    """Return every organisation's alerts, for the round that looks at them."""
    return await _read(engine, (), _MOST_OF_ALL)


async def add_alert(connection: AsyncConnection, alert: Alert) -> bool:
    """Add an alert; False where the organisation, or its team, has as many as it may."""
    mine = col(AlertRule.organisation_id) == alert.organisation_id
    of_team = select(func.count()).select_from(AlertRule).where(mine, col(AlertRule.team_id) == alert.team_id)
    if alert.team_id and (await connection.scalar(of_team) or 0) >= MOST_OF_TEAM:
        return False
    if (await connection.scalar(select(func.count()).select_from(AlertRule).where(mine)) or 0) >= MOST:
        return False
    await connection.execute(insert(AlertRule).values(**{name: getattr(alert, name) for name in _NAMES}))
    return True


async def remove_alert(connection: AsyncConnection, organisation_id: str, team_id: str, alert_id: str) -> Alert | None:
    """Remove an alert of a team, or with an empty `team_id` of the organisation; None where there is none of that id."""
    where = (
        col(AlertRule.organisation_id) == organisation_id,
        col(AlertRule.team_id) == team_id,
        col(AlertRule.alert_id) == alert_id,
    )
    row = (await connection.execute(select(*_columns()).where(*where))).mappings().first()
    if row is None:
        return None
    await connection.execute(delete(AlertRule).where(*where))
    return Alert(**row)


async def seal_addresses(engine: AsyncEngine, sealed: SealedAddresses) -> int:
    """Seal addresses that are kept in clear, or under an earlier pepper, in alerts and in what the outbox has of them; return their
    number, at most a few hundred.
    """
    done = 0
    tables = (
        (AlertRule, col(AlertRule.alert_id), "address", col(AlertRule.address) != ""),
        (WebhookMessage, col(WebhookMessage.message_id), "url", _OF_ALERTS),
    )
    for table, key, name, of_alerts in tables:
        kept, team_id = col(getattr(table, name)), col(table.team_id)
        others = (
            select(key, team_id, kept)
            .where(of_alerts, ~kept.startswith(sealed.prefix, autoescape=True))
            .limit(_AT_ONCE)
        )
        async with engine.begin() as connection:
            for place, team, address in (await connection.execute(others)).all():
                try:
                    plain = sealed.opened(team, address)
                except BadCallbackUrl:
                    # Nobody can open it again; its page says so.
                    continue
                changed = update(table).where(key == place, kept == address)
                done += (await connection.execute(changed.values({name: sealed.sealed(team, plain)}))).rowcount
    return done


_OF_ALERTS: Final = and_(
    col(WebhookMessage.url).is_not(None),
    col(WebhookMessage.team_id).is_not(None),
    or_(*(col(WebhookMessage.message_id).startswith(kind) for kind in ("alert/", "alert-test/", "incident/"))),
)
"""The outbox's messages of alerts: callers' own callbacks stand in their batches."""
_AT_ONCE: Final = 200


def _columns() -> list[Any]:
    return [getattr(AlertRule, name) for name in _NAMES]


async def _read(engine: AsyncEngine, where: Sequence[ColumnElement[bool]], most: int) -> list[Alert]:
    query = select(*_columns()).where(*where).order_by(col(AlertRule.created_us), col(AlertRule.alert_id)).limit(most)
    async with engine.connect() as connection:
        return [Alert(**row) for row in (await connection.execute(query)).mappings()]
