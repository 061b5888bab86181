"""Who is calling, as every later stage knows it."""

import msgspec


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a valid key. `allowed_models` is None when the team may use every model."""

    key_id: str
    key_name: str
    team_id: str
    organisation_id: str
    allowed_models: frozenset[str] | None = None
