"""Whose books a command is asked about, on both databases."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.errors import UnknownOrganisation, UnknownTeam
from accounts.store import AccountStore
from cost.reports.scope import ReadScope
from gateway.commands.scopes import scope_of


async def test_a_teams_organisation_is_known_and_what_is_misspelt_is_told(engine: AsyncEngine) -> None:
    """Nobody reads zeros for a name that does not exist, nor another organisation's team."""
    accounts = AccountStore(engine)
    await accounts.create_organisation("acme")
    await accounts.create_team("team_x", organisation_id="acme")
    of_acme = ReadScope(organisation_id="acme", team_id="team_x")
    assert await scope_of(engine, None, "team_x") == await scope_of(engine, "acme", "team_x") == of_acme
    assert await scope_of(engine, None, None) == ReadScope(organisation_id="default", team_id=None)
    assert await scope_of(engine, "acme", None) == ReadScope(organisation_id="acme", team_id=None)
    assert [each.organisation_id for each in await accounts.list_organisations()] == ["acme"]
    for organisation_id, team_id in ((None, "team_y"), ("default", "team_x")):
        with pytest.raises(UnknownTeam):
            await scope_of(engine, organisation_id, team_id)
    with pytest.raises(UnknownOrganisation):
        await scope_of(engine, "rival", None)
