"""Who asks, and what they may read: their session or key decides, and nothing that a model writes can widen it."""

from collections.abc import Mapping
from typing import Final

import msgspec

from accounts.access import Principal, may
from api.web.changing import looking
from api.web.gateway import Gateway
from cost.calendar import Calendar
from cost.calendars import calendar_of
from cost.dimensions import UsageFilters
from cost.reports.scope import ReadScope

_MOST_TEAMS: Final = 100
"""Teams that are read together; of more, one has to be named."""


class OutOfScope(Exception):
    """A tool was asked for what the asker may not read, or what does not exist: both in the same words."""


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """A person or key that asks, with the names of the teams that it may read, by id."""

    gateway: Gateway
    principal: Principal
    teams: Mapping[str, str]
    calendar: Calendar
    """The organisation's, which cuts days."""
    reads_all: bool
    """True if it reads its whole organisation."""

    @property
    def organisation_id(self) -> str:
        """The organisation that every look-up is within."""
        return self.principal.organisation_id

    def chosen(self, team: str) -> tuple[str, ...]:
        """Return the ids of the teams of a look-up: the one that is named by id or name, or all. Raises OutOfScope."""
        if not team:
            return tuple(self.teams)
        if team in self.teams:
            return (team,)
        wanted = team.strip().casefold()
        named = tuple(each for each, name in self.teams.items() if name.casefold() == wanted)
        if len(named) != 1:
            raise OutOfScope(f"There is no team {team[:80]!r} among those that may be read here; look at `teams`.")
        return named

    def scope(self, team: str) -> tuple[ReadScope, UsageFilters]:
        """Return the scope and the filters of a look-up. Raises OutOfScope."""
        ids = self.chosen(team)
        if self.reads_all and not team:
            return ReadScope(organisation_id=self.organisation_id, team_id=None), UsageFilters()
        if len(ids) == 1:
            return ReadScope(organisation_id=self.organisation_id, team_id=ids[0]), UsageFilters()
        if not ids or len(ids) > _MOST_TEAMS:
            raise OutOfScope("Name one team.")
        return ReadScope(organisation_id=self.organisation_id, team_id=None), UsageFilters(team=ids)

    def one(self, team: str) -> str:
        """Return the one team of a page, or of a look-up that is of one; '' for several."""
        ids = self.chosen(team)
        return ids[0] if len(ids) == 1 and (team or not self.reads_all) else ""


async def asker_of(gateway: Gateway, principal: Principal) -> Asker:
    """Return the asker that a principal is. Raises ChangesUnavailable while the database is away."""
    reads_all = may(principal, "team.read")
    async with looking():
        accounts = gateway.identity.accounts
        teams = (
            await accounts.team_names(principal.organisation_id)
            if reads_all
            else await accounts.names_of(principal.organisation_id, principal.teams)
        )
        calendar = await calendar_of(gateway.database, principal.organisation_id)
    return Asker(gateway=gateway, principal=principal, teams=teams, calendar=calendar, reads_all=reads_all)
