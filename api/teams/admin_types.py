"""Body and reply types of the admin API's teams and policies."""

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from accounts.caller import CacheUse, Escalation, Learning
from accounts.store import TeamRecord
from api.policy.change import ModelName
from api.web.api_types import Name, Reason, RequestBody
from api.web.changing import REASON_CHARS

_MAX_MODELS = 1_000


class PutTeam(RequestBody, frozen=True):
    """A team to create or change. Omitted fields stay; a new team's name is its id, its weight 1."""

    name: Name | UnsetType = UNSET
    weight: (
        Annotated[
            float,
            msgspec.Meta(
                gt=0, le=1_000, description="Its share of a model that is short, beside the other teams' weights."
            ),
        ]
        | UnsetType
    ) = UNSET
    reason: Reason = ""


class BlockTeam(RequestBody, frozen=True):
    """Why, for the audit log."""

    reason: Reason = ""


class FlushCache(RequestBody, frozen=True):
    """Why, for the audit log."""

    reason: Reason = ""


class TeamOut(msgspec.Struct, frozen=True, kw_only=True):
    """A team."""

    id: str
    organisation_id: str
    name: str
    weight: float
    created_at: datetime
    blocked_at: datetime | None
    policy: "PolicyOut"
    object: str = "team"


class PutPolicy(RequestBody, frozen=True):
    """A team's new policy. Omitted settings stay."""

    reason: Annotated[
        str, msgspec.Meta(min_length=3, max_length=REASON_CHARS, description="Why; the audit log keeps it.")
    ]
    quality_floor: (
        Annotated[
            float,
            msgspec.Meta(
                gt=0,
                le=1,
                description="The share to keep of the best answers that the baseline model's money buys; null takes the gateway's.",
            ),
        ]
        | UnsetType
        | None
    ) = UNSET
    allowed_models: (
        Annotated[
            list[ModelName],
            msgspec.Meta(max_length=_MAX_MODELS, description="The only models that it may use; null: all."),
        ]
        | UnsetType
        | None
    ) = UNSET
    escalation: (
        Annotated[
            Escalation,
            msgspec.Meta(
                description="Whether a weak answer is asked again: never, of whole replies, or all; with `agreement` two cheap models are asked as well before a dear one."
            ),
        ]
        | UnsetType
    ) = UNSET
    learning: (
        Annotated[
            Learning,
            msgspec.Meta(
                description="What may be kept to learn from: nothing, numbers, or prompts too. Less deletes the rest."
            ),
        ]
        | UnsetType
    ) = UNSET
    shadow_share: (
        Annotated[
            float, msgspec.Meta(ge=0, le=1, description="The share of requests that the baseline model answers too.")
        ]
        | UnsetType
    ) = UNSET
    spill_over: (
        Annotated[
            bool,
            msgspec.Meta(description="Whether it may overflow to a paid provider when our own would keep it waiting."),
        ]
        | UnsetType
    ) = UNSET
    continue_streams: (
        Annotated[
            bool,
            msgspec.Meta(description="Whether another replica goes on with a streamed text whose replica died."),
        ]
        | UnsetType
    ) = UNSET
    cache: (
        Annotated[
            CacheUse,
            msgspec.Meta(
                description="Whether its answers at `temperature: 0`, and its vectors, are kept and given again; `default`: as the configuration says."
            ),
        ]
        | UnsetType
    ) = UNSET
    cache_ttl_s: (
        Annotated[
            int, msgspec.Meta(ge=1, description="Seconds for which they are kept, at most the gateway's; null: those.")
        ]
        | UnsetType
        | None
    ) = UNSET


class PolicyOut(msgspec.Struct, frozen=True, kw_only=True):
    """A team's policy."""

    quality_floor: float | None
    allowed_models: list[str] | None
    escalation: str
    learning: str
    shadow_share: float
    spill_over: bool
    continue_streams: bool
    cache: str
    cache_ttl_s: int | None
    object: str = "team.policy"


def policy_out(team: TeamRecord) -> PolicyOut:
    """Return a team's policy as the API returns it."""
    settings = team.settings
    return PolicyOut(
        quality_floor=settings.quality_floor,
        allowed_models=None if team.allowed_models is None else sorted(team.allowed_models),
        escalation=settings.escalation,
        learning=settings.learning,
        shadow_share=settings.shadow_share,
        spill_over=settings.spill_over,
        continue_streams=settings.continue_streams,
        cache=settings.cache,
        cache_ttl_s=settings.cache_ttl_s,
    )


def team_out(team: TeamRecord) -> TeamOut:
    """Return a team as the API returns it."""
    return TeamOut(
        id=team.team_id,
        organisation_id=team.organisation_id,
        name=team.name,
        weight=team.settings.weight,
        created_at=team.created_at,
        blocked_at=team.blocked_at,
        policy=policy_out(team),
    )
