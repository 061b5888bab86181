"""The first day's steps, which tick themselves: from the first administrator to savings that can be compared."""

from typing import Final

import msgspec

from dashboards.ui.formats import plural
from dashboards.web.view import PageRequest
from proxy.plan.route_plan import evidence_for_auto

_MOST_NAMES: Final = 5


class Step(msgspec.Struct, frozen=True):
    """One step: whether it is done, and what to do where it is not."""

    label: str
    is_done: bool
    how: str
    href: str = ""
    command: str = ""


async def first_steps(view: PageRequest, team_ids: list[str], requests: int) -> tuple[Step, ...]:
    """Return the steps of the viewer's organisation, for those who can take them; none when all are done, and for others.

    `requests` is how many were asked in the days that the page shows.
    """
    if not view.may("organisation.change"):
        return ()
    gateway, owner = view.gateway, view.principal.organisation_id
    rules = gateway.rules()
    ready = [target for target in rules.catalog.targets.values() if gateway.ready(target)]
    has_key = await gateway.identity.accounts.has_key(owner)
    people = await gateway.identity.people.of_organisation(owner, limit=2)
    evidence = evidence_for_auto(rules.policy, rules.catalog)
    unknown = [target_id for target_id, each in evidence.items() if each == "none"]
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
            "It is known how good the models are",
            is_done=not unknown,
            how=f"Nothing is known of {plural(len(unknown), 'model')} that the gateway may choose: {', '.join(unknown[:_MOST_NAMES])}. "
            "Some minutes of questions place one, or ability in the configuration file says which known model it is.",
            href="/dashboard/operations/measurements" if unknown and view.may("operations.read") else "",
            command=f"weighbridge classifier measure {unknown[0]}" if unknown else "",
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
