"""Changes of the guard's rules of an organisation and of a team, each with its audit entry."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.store import AccountStore
from accounts.tables import WHOLE_ORGANISATION
from api.web.changing import changing, looking, sentence
from guard.guard_config import MOST_RULES, GuardRule
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
    return await _change(log, actor, action, organisation_id, team_id, lambda _before: found, reason)


async def add_rule(
    log: AuditLog,
    actor: Actor,
    organisation_id: str,
    rule: Mapping[str, Any],
    *,
    team_id: str = WHOLE_ORGANISATION,
    reason: str = "",
) -> GuardRule:
    """Add one rule to those of an organisation, or of one of its teams. Raises BadRequest; its `param` is the key that is wrong."""
    try:
        (new,) = checked_rules([rule])
    except BadRules as error:
        raise BadRequest(sentence(error.told), param=error.key or "kind") from error

    def added(before: tuple[GuardRule, ...]) -> tuple[GuardRule, ...]:
        if any(each.name == new.name for each in before):
            raise BadRequest(
                f"There is a rule `{new.name}` already; remove it first, or choose another name.", param="name"
            )
        if len(before) >= MOST_RULES:
            raise BadRequest(f"There are {MOST_RULES} rules already; remove one first.", param="name")
        return (*before, new)

    await _change(log, actor, "guard.set", organisation_id, team_id, added, reason)
    return new


async def remove_rule(
    log: AuditLog, actor: Actor, organisation_id: str, name: str, *, team_id: str = WHOLE_ORGANISATION, reason: str = ""
) -> None:
    """Remove one of the rules that an organisation, or one of its teams, added. One that is not there is gone already."""
    await _change(
        log,
        actor,
        "guard.removed",
        organisation_id,
        team_id,
        lambda before: tuple(each for each in before if each.name != name),
        reason,
    )


async def _change(
    log: AuditLog,
    actor: Actor,
    action: str,
    organisation_id: str,
    team_id: str,
    changed: Callable[[tuple[GuardRule, ...]], tuple[GuardRule, ...]],
    reason: str,
) -> tuple[GuardRule, ...]:
    async with changing(log, actor, action, organisation_id, team_id=team_id, reason=reason) as change:
        store = AccountStore(change.within)
        before = read_rules(await store.guard_of(organisation_id, team_id, to_change=True))
        found = changed(before)
        await store.set_guard(organisation_id, team_id, stored(found))
        change.tell("guard", team_id or organisation_id, audit_record(before) or None, audit_record(found) or None)
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
