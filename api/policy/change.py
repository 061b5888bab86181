"""Changes of a team's policy, each with its audit entry: quality floor, models, spill-over, escalation, and learning."""

import asyncio
from collections.abc import Container
from typing import Annotated, Any, Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy.exc import SQLAlchemyError

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.caller import CacheUse, Escalation, Learning, TeamSettings
from accounts.errors import BadSetting
from accounts.store import AccountStore, TeamRecord, checked_settings
from api.web.changing import changing, checked_reason
from proxy.errors import BadRequest, ChangesUnavailable

LEAST_REASON_CHARS: Final = 3
_FORGET_S: Final = 10.0
_MAX_MODELS: Final = 1_000
_MODEL_CHARS: Final = 200
_SETTINGS: Final = (
    "quality_floor",
    "escalation",
    "learning",
    "shadow_share",
    "spill_over",
    "continue_streams",
    "cache",
    "cache_ttl_s",
)

ModelName = Annotated[str, msgspec.Meta(min_length=1, max_length=_MODEL_CHARS)]


class PolicyChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new policy. Omitted settings stay."""

    quality_floor: float | UnsetType | None = UNSET
    allowed_models: Annotated[list[ModelName], msgspec.Meta(max_length=_MAX_MODELS)] | UnsetType | None = UNSET
    escalation: Escalation | UnsetType = UNSET
    learning: Learning | UnsetType = UNSET
    shadow_share: float | UnsetType = UNSET
    spill_over: bool | UnsetType = UNSET
    continue_streams: bool | UnsetType = UNSET
    cache: CacheUse | UnsetType = UNSET
    cache_ttl_s: int | UnsetType | None = UNSET


class LearningDeletion(Protocol):
    """Deletion of a team's learning data; LearningStore implements it."""

    async def forget_team(self, team_id: str) -> int: ...

    async def forget_prompts(self, team_id: str) -> int: ...


def policy_of(team: TeamRecord) -> dict[str, Any]:
    """Return a team's current policy, for forms, replies and audit entries."""
    models = None if team.allowed_models is None else sorted(team.allowed_models)
    settings = msgspec.structs.asdict(team.settings)
    return {"allowed_models": models, **{name: settings[name] for name in _SETTINGS}}


def proposed(team: TeamRecord, choice: PolicyChoice, models: Container[str] | None = None) -> TeamRecord:
    """Return the team with the choice applied, without writing it. Raises BadRequest, which names the field.

    `models` are the existing ones. An unknown name is refused, because it would allow nothing while its author believes
    that it does.
    """
    given = {name: value for name in _SETTINGS if (value := getattr(choice, name)) is not UNSET}
    settings = team.settings
    for name, value in given.items():
        settings = _with_field(settings, name, value)
    # Settings that depend on each other are validated once all are applied.
    _validate(settings, "shadow_share" if "shadow_share" in given else "learning")
    allowed = team.allowed_models
    if not isinstance(choice.allowed_models, UnsetType):
        allowed = None if choice.allowed_models is None else frozenset(choice.allowed_models)
        _check_models((allowed or frozenset()) - (team.allowed_models or frozenset()), models)
    return msgspec.structs.replace(team, settings=settings, allowed_models=allowed)


async def set_policy(
    log: AuditLog,
    actor: Actor,
    team: TeamRecord,
    choice: PolicyChoice,
    *,
    reason: str,
    forget: LearningDeletion | None,
    models: Container[str] | None = None,
) -> TeamRecord:
    """Apply a choice. Servers follow within `accounts.fresh_s`; learning data that may no longer be kept is deleted at
    once. Raises BadRequest.
    """
    if len(checked_reason(reason)) < LEAST_REASON_CHARS:
        raise BadRequest("Say in a few words why the policy changes; the audit log keeps it.", param="reason")
    owner = team.organisation_id
    async with changing(log, actor, "team.policy_changed", owner, team_id=team.team_id, reason=reason) as change:
        store = AccountStore(change.within)
        before = await store.team_of(owner, team.team_id)
        after = proposed(before, choice, models)
        fields: dict[str, Any] = {name: value for name in _SETTINGS if (value := getattr(choice, name)) is not UNSET}
        await store.update_team(team.team_id, organisation_id=owner, allowed_models=choice.allowed_models, **fields)
        change.tell("team", team.team_id, policy_of(before), policy_of(after))
    if forget is not None:
        # On every call, so that repeating it completes an interrupted deletion.
        await _delete_learning(forget, after, choice)
    return after


async def _delete_learning(kept: LearningDeletion, team: TeamRecord, choice: PolicyChoice) -> None:
    try:
        async with asyncio.timeout(_FORGET_S):
            if choice.learning == "off":
                await kept.forget_team(team.team_id)
            elif choice.learning == "numbers":
                await kept.forget_prompts(team.team_id)
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        raise ChangesUnavailable(
            "The policy is changed. What may not be kept any more is not all deleted yet: the gateway goes on with it "
            "within minutes, and applying the same policy again does so at once."
        ) from error


def _with_field(settings: TeamSettings, name: str, value: Any) -> TeamSettings:
    """Return the settings with one field changed, after that field was validated by itself."""
    alone = TeamSettings(learning="prompts") if name == "shadow_share" else TeamSettings()
    _validate(msgspec.structs.replace(alone, **{name: value}), name)
    return msgspec.structs.replace(settings, **{name: value})


def _validate(settings: TeamSettings, param: str) -> None:
    try:
        checked_settings(settings)
    except BadSetting as error:
        raise BadRequest(f"`{param}` is not valid: {error}.", param=param) from error


def _check_models(new: frozenset[str], models: Container[str] | None) -> None:
    unknown = sorted(name for name in new if name not in models) if models is not None else []
    if unknown:
        raise BadRequest(
            f"There is no model `{unknown[0][:80]}` in the configuration; GET /v1/models lists them.",
            param="allowed_models",
        )
