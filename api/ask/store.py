"""The setting of Ask and its counts in the database. The organisation stands in every query."""

from typing import Any, Final

import msgspec
from sqlalchemy import Table, delete, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.access import Principal
from api.ask.tables import AskCount, AskSettingRow
from cost.times import HOUR_US

_counts: Final[Table] = AskCount.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.


class AskSetting(msgspec.Struct, frozen=True, kw_only=True):
    """An organisation's Ask: the team and key that its model calls are booked to, and each person's questions an hour."""

    organisation_id: str
    team_id: str
    key_id: str
    questions_an_hour: int


_NAMES: Final = AskSetting.__struct_fields__


async def read_setting(engine: AsyncEngine, organisation_id: str) -> AskSetting | None:
    """Return the organisation's setting; None while Ask is off."""
    query = select(*(getattr(AskSettingRow, name) for name in _NAMES)).where(
        col(AskSettingRow.organisation_id) == organisation_id
    )
    async with engine.connect() as connection:
        row = (await connection.execute(query)).mappings().first()
    return None if row is None else AskSetting(**row)


async def write_setting(engine: AsyncEngine, setting: AskSetting, now_us: int) -> None:
    """Set an organisation's setting, in place of the one that it has."""
    async with engine.begin() as connection:
        mine = col(AskSettingRow.organisation_id) == setting.organisation_id
        await connection.execute(delete(AskSettingRow).where(mine))
        await connection.execute(insert(AskSettingRow).values(**msgspec.structs.asdict(setting), set_us=now_us))


async def remove_setting(engine: AsyncEngine, organisation_id: str) -> None:
    """Switch Ask off for an organisation."""
    async with engine.begin() as connection:
        await connection.execute(delete(AskSettingRow).where(col(AskSettingRow.organisation_id) == organisation_id))


async def count_question(engine: AsyncEngine, principal: Principal, now_us: int) -> int:
    """Count a question, and return how many this person or key has asked in this hour with it. Earlier hours are deleted."""
    who, hour_us = f"{principal.kind}/{principal.principal_id}"[:80], now_us - now_us % HOUR_US
    kind: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert
    values = {"organisation_id": principal.organisation_id, "principal": who, "hour_us": hour_us}
    counted = (
        kind(_counts)
        .values(**values, questions=1)
        .on_conflict_do_update(index_elements=list(values), set_={"questions": _counts.c.questions + 1})
        .returning(_counts.c.questions)
    )
    over = (_counts.c.organisation_id == principal.organisation_id, _counts.c.hour_us < hour_us)
    async with engine.begin() as connection:
        asked = int((await connection.execute(counted)).scalar_one())
        if asked == 1:
            await connection.execute(delete(_counts).where(*over))
    return asked
