"""Whose figures somebody may read."""

import msgspec


class ReadScope(msgspec.Struct, frozen=True, kw_only=True):
    """One team's figures, or with `team_id` None the whole organisation's. Every reader puts it into its WHERE clause."""

    organisation_id: str
    team_id: str | None
