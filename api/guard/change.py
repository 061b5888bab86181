"""Changes of the guard's rules of an organisation and of a team, each with its audit entry."""

from collections.abc import Mapping, Sequence
from typing import Any

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.store import AccountStore
from accounts.tables import WHOLE_ORGANISATION
from api.web.changing import changing, looking
from guard.guard_config import GuardRule
from guard.inspector import BadRules, checked_rules, read_rules, stored
from proxy.errors import BadRequest


async def set_rules(
    log: AuditLog,
    actor: Actor,
    organisation_id: str,
    rules: Sequence[Mapping[str, Any]],
    *,
    team_id: str = WHOLE_ORGANISATION,
    reason: str = "",
) -> tuple[GuardRule, ...]:
    """Replace the rules that an organisation, or one of its teams, adds to those above it; none takes them away. The caller has checked
    that the team is the organisation's. Servers follow within `accounts.fresh_s`. Raises BadRequest.
    """
    try:
        found = checked_rules(rules)
    except BadRules as error:
        raise BadRequest(str(error), param="rules") from error
    action = "guard.set" if found else "guard.removed"
    async with changing(log, actor, action, organisation_id, team_id=team_id, reason=reason) as change:
        store = AccountStore(change.within)
        before = await store.guard_of(organisation_id, team_id)
        await store.set_guard(organisation_id, team_id, stored(found))
        change.tell(
            "guard", team_id or organisation_id, audit_record(read_rules(before)) or None, audit_record(found) or None
        )
    return found


async def rules_of(
    store: AccountStore, organisation_id: str, team_id: str = WHOLE_ORGANISATION
) -> tuple[GuardRule, ...]:
    """Return the rules that an organisation, or one of its teams, adds."""
    async with looking():
        return read_rules(await store.guard_of(organisation_id, team_id))


def audit_record(rules: Sequence[GuardRule]) -> dict[str, Any]:
    """Return rules as their audit entry stores them: of words only how many, as a list may be a secret itself."""
    return {
        rule.name: {**rule.model_dump(exclude_defaults=True, exclude={"name", "words"})}
        | ({} if rule.words is None else {"words": len(rule.words)})
        for rule in rules
    }
