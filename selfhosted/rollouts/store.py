"""The SQL of versions and rollouts. Given `Change.within`, a step and its audit entry are one transaction."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import Row, Select, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.tables import ID_CHARS
from selfhosted.rollouts.versions import (
    ModelVersion,
    Rollout,
    RolloutConflict,
    Rule,
    VersionExists,
    VersionUnknown,
    checked,
)
from selfhosted.tables import ModelVersionRow, RolloutRow

MOST_VERSIONS: Final = 1_000
"""The most versions of one model."""
_MOST_READ: Final = 10_000
_REASON_CHARS: Final = 1_000
_OWN_COLUMNS: Final = ("model", "version", "added_us", "added_by")
_VERSION_COLUMNS: Final = [getattr(ModelVersionRow, name) for name in (*_OWN_COLUMNS, "body")]
_ROLLOUT_COLUMNS: Final = [getattr(RolloutRow, name) for name in Rollout.__struct_fields__]


class RolloutStore:
    """The only writer of `model_version` and `rollout`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def add(self, version: ModelVersion) -> None:
        """Register a version. Raises BadVersion, VersionExists, and RolloutConflict when the model has too many."""
        body = {name: value for name, value in _fields(checked(version)).items() if name not in _OWN_COLUMNS and value}
        row = self._insert(ModelVersionRow).values(
            model=version.model,
            version=version.version,
            added_us=version.added_us,
            added_by=version.added_by[:ID_CHARS],
            body=msgspec.json.encode(body).decode(),
        )
        count = select(func.count()).select_from(ModelVersionRow).where(col(ModelVersionRow.model) == version.model)
        async with self._engine.begin() as connection:
            if not (await connection.execute(row.on_conflict_do_nothing())).rowcount:
                raise VersionExists(
                    f"{version.model} has a version {version.version}, and versions never change: take another name"
                )
            if int(await connection.scalar(count) or 0) > MOST_VERSIONS:
                raise RolloutConflict(f"{version.model} has {MOST_VERSIONS} versions, and takes no more")

    async def versions(self, model: str | None = None) -> tuple[ModelVersion, ...]:
        """Return the versions of a model, or of all, by model and the newest first."""
        order = (col(ModelVersionRow.model), col(ModelVersionRow.added_us).desc(), col(ModelVersionRow.version).desc())
        query = select(*_VERSION_COLUMNS).order_by(*order).limit(_MOST_READ)
        if model is not None:
            query = query.where(col(ModelVersionRow.model) == model)
        async with self._engine.connect() as connection:
            return tuple(map(_version, await connection.execute(query)))

    async def version(self, model: str, version: str) -> ModelVersion:
        """Return one version. Raises VersionUnknown."""
        query = select(*_VERSION_COLUMNS).where(
            col(ModelVersionRow.model) == model, col(ModelVersionRow.version) == version
        )
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).first()
        if row is None:
            raise VersionUnknown(f"{model} has no version {version[:64]}; `weighbridge models add` registers one")
        return _version(row)

    async def rollouts(self, pools: Collection[str] | None = None) -> tuple[Rollout, ...]:
        """Return all rollouts, or those of some pools, by model."""
        query = rollouts_of(pools)
        async with self._engine.connect() as connection:
            return tuple(rollout_of(row) for row in (await connection.execute(query)).mappings())

    async def rollout(self, model: str, pool: str) -> Rollout:
        """Return the model's rollout; one where nothing was decided when there is none yet."""
        query = select(*_ROLLOUT_COLUMNS).where(col(RolloutRow.model) == model)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).mappings().first()
        return Rollout(model=model, pool=pool) if row is None else rollout_of(row)

    async def save(self, before: Rollout, after: Rollout) -> None:
        """Take a step from `before` to `after`. Raises RolloutConflict when somebody took another one meanwhile."""
        values = {
            **_fields(after),
            "rule": msgspec.json.encode(after.rule).decode(),
            "reason": after.reason[:_REASON_CHARS],
            "changed_by": after.changed_by[:ID_CHARS],
        }
        step = update(RolloutRow).where(
            col(RolloutRow.model) == before.model, col(RolloutRow.since_us) == before.since_us
        )
        async with self._engine.begin() as connection:
            if before.since_us:
                done = (await connection.execute(step.values(**values))).rowcount
            else:
                row = self._insert(RolloutRow).values(**values).on_conflict_do_nothing()
                done = (await connection.execute(row)).rowcount
            if not done:
                raise RolloutConflict(f"the rollout of {before.model} was changed meanwhile; look at it again")


def rollouts_of(pools: Collection[str] | None = None) -> Select[Any]:
    """Return the query of all rollouts, or of those of some pools, by model."""
    query = select(*_ROLLOUT_COLUMNS).order_by(col(RolloutRow.model)).limit(_MOST_READ)
    return query if pools is None else query.where(col(RolloutRow.pool).in_(pools))


def rollout_of(row: Mapping[Any, Any]) -> Rollout:
    """Return the rollout of a row that `rollouts_of` selected."""
    return Rollout(**{**row, "rule": msgspec.json.decode(row["rule"], type=Rule)})


def _version(row: Row[Any]) -> ModelVersion:
    values: tuple[Any, ...] = tuple(row)
    fields = {**msgspec.json.decode(values[-1]), **dict(zip(_OWN_COLUMNS, values[:-1], strict=True))}
    return msgspec.convert(fields, ModelVersion)


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(value)
