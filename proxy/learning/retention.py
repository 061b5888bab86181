"""Retention of learning data: deletes rows that are too old, or no longer allowed by their team."""

from typing import Final

from accounts.store import AccountStore
from classifier.learning.store import LearningStore

_US_A_DAY: Final = 86_400_000_000


async def forget_what_may_not_stay(
    learning: LearningStore, accounts: AccountStore, *, keep_days: int, now_us: int
) -> None:
    """Delete rows older than `keep_days`, texts of teams that allow only numbers, and all data of teams that allow
    none. A team that changes its setting is cleaned up at once; this finds rows that a server wrote in the moment
    between.
    """
    await learning.forget(now_us - keep_days * _US_A_DAY)
    teams = {team.team_id: team.settings.learning for team in await accounts.list_teams()}
    for team_id in await learning.teams_with_prompts():
        if teams.get(team_id) != "prompts":
            await learning.forget_prompts(team_id)
    for team_id, allowed in teams.items():
        if allowed == "off":
            await learning.forget_team(team_id)
