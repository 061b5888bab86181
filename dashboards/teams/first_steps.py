"""The first day's steps, which tick themselves: from the first administrator to savings that can be compared."""

import msgspec

from dashboards.ui.formats import plural
from dashboards.web.view import PageRequest


class Step(msgspec.Struct, frozen=True):
    """One step: whether it is done, and what to do where it is not."""

    label: str
    is_done: bool
    how: str
    href: str = ""
    command: str = ""


async def first_steps(view: PageRequest, team_ids: list[str], requests: int) -> tuple[Step, ...]:
    """The steps of the viewer's organisation, for those who can take them; none when all are done, and for others.

    `requests` is how many were asked in the days that the page shows.
    """
    if not view.may("organisation.change"):
        return ()
    gateway, owner = view.gateway, view.principal.organisation_id
    rules = gateway.rules()
    ready = [target for target in rules.catalog.targets.values() if gateway.ready(target)]
    has_key = await gateway.accounts.has_key(owner)
    people = await gateway.people.of_organisation(owner, limit=2)
    team = f"/dashboard/teams/{team_ids[0]}" if team_ids else ""
    steps = (
        Step("An administrator is signed in", is_done=True, how="That is you."),
        Step(
            "A model can be called",
            is_done=bool(ready),
            how=f"{plural(len(ready), 'model')} of {len(rules.catalog.targets)}: a model stands under providers.models in the configuration file.",
            command="weighbridge config check",
        ),
        Step(
            "A team", is_done=bool(team_ids), how="Teams have their own keys, budgets, policy and members.", href="#new"
        ),
        Step(
            "A key",
            is_done=has_key,
            how="Programs send it; it is shown once.",
            href=f"{team}/keys/new" if team else "",
        ),
        Step(
            "The first request",
            is_done=requests > 0,
            how="The page of a new key has a curl line and a few lines of Python to paste.",
            href=f"{team}/keys" if team else "",
        ),
        Step(
            "A baseline model",
            is_done=rules.policy.reference is not None,
            how="Savings are told against it: cost.reference_target in the configuration file.",
        ),
        Step(
            "Somebody else is invited",
            is_done=len(people) > 1,
            how="Here, or on the gateway's machine.",
            href="/dashboard/people",
            command="weighbridge people invite",
        ),
    )
    return () if all(step.is_done for step in steps) else steps
