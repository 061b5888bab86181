"""Read scope of figures: one team, or a whole organisation."""

import msgspec


class ReadScope(msgspec.Struct, frozen=True, kw_only=True):
    """A team's figures, or with `team_id` None the whole organisation's. Every reader puts it into its WHERE clause."""

    organisation_id: str
    team_id: str | None
