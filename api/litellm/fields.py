"""What LiteLLM's clients say of an object and nothing here has a use for, kept so that they read back what they wrote."""

import json
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.secret_shapes import mask_text
from accounts.store import utc_now
from api.litellm.tables import LitellmFields
from proxy.errors import BadRequest

Kind = Literal["key", "team", "user"]
MOST_CHARS: Final = 16_384
"""Characters of one object's fields, as JSON."""
MAX_DEPTH: Final = 8


class FieldStore:
    """The reader and only writer of the table `litellm_fields`. Values that look like secrets are masked."""

    def __init__(self, engine: AsyncEngine, clock: Callable[[], datetime] = utc_now) -> None:
        self._engine = engine
        self._clock = clock

    async def of(self, kind: Kind, organisation_id: str, ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the fields of these objects, of those that have any."""
        query = select(col(LitellmFields.object_id), col(LitellmFields.fields)).where(
            col(LitellmFields.kind) == kind,
            col(LitellmFields.organisation_id) == organisation_id,
            col(LitellmFields.object_id).in_(sorted(ids)),
        )
        async with self._engine.connect() as connection:
            return {object_id: json.loads(fields) for object_id, fields in await connection.execute(query)}

    async def put(self, kind: Kind, organisation_id: str, object_id: str, fields: Mapping[str, Any]) -> None:
        """Replace an object's fields; none takes them away. Raises BadRequest for more than are kept."""
        text = json.dumps(_masked(fields), sort_keys=True)
        if len(text) > MOST_CHARS:
            raise BadRequest(f"Metadata and the like are at most {MOST_CHARS} characters of JSON.", param="metadata")
        mine = (col(LitellmFields.kind) == kind, col(LitellmFields.object_id) == object_id)
        async with self._engine.begin() as connection:
            await connection.execute(delete(LitellmFields).where(*mine))
            if fields:
                row = {"kind": kind, "object_id": object_id, "organisation_id": organisation_id, "fields": text}
                await connection.execute(insert(LitellmFields).values(**row, updated_at=self._clock()))


def _masked(value: Any, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise BadRequest(f"Metadata is nested at most {MAX_DEPTH} times.", param="metadata")
    if isinstance(value, Mapping):
        return {mask_text(str(name)): _masked(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(inner, depth + 1) for inner in value]
    return value if value is None or isinstance(value, bool | int | float) else mask_text(str(value))
