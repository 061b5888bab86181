"""Scopes of commands that read the books. Unknown names are errors, as they would otherwise give nothing but zeros."""

from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.errors import UnknownTeam
from accounts.store import DEFAULT_ORGANISATION, AccountStore
from cost.reports.scope import ReadScope


async def scope_of(engine: AsyncEngine, organisation_id: str | None, team_id: str | None) -> ReadScope:
    """Resolve the organisation and team: a team's organisation is looked up; without either the default one is taken.
    Raises UnknownTeam or UnknownOrganisation.
    """
    accounts = AccountStore(engine)
    if team_id is not None:
        owner = (await accounts.get_team(team_id)).organisation_id
        if organisation_id not in {None, owner}:
            raise UnknownTeam(f"organisation {organisation_id!r} has no team {team_id!r}")
        return ReadScope(organisation_id=owner, team_id=team_id)
    chosen = DEFAULT_ORGANISATION if organisation_id is None else organisation_id
    await accounts.check_organisation(chosen)
    return ReadScope(organisation_id=chosen, team_id=None)
