"""What the admin API takes and gives: each thing has one kind for what is asked for and one for what is told."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from accounts.access import OrganisationRole, TeamRole
from accounts.caller import Escalation, Learning, Role
from accounts.people.person import Member, Person
from accounts.store import KeyRecord, TeamRecord
from cost.reports.keys import KeyUse
from cost.times import iso
from proxy.changes.policy import ModelName
from proxy.changes.refusals import REASON_CHARS
from proxy.gate.limits.limit import Limits
from proxy.gate.limits.rules import MOST, Rule

_NAME_CHARS = 200
_MAX_OVERLAP_S = 30 * 86_400
_MAX_MODELS = 1_000

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=_NAME_CHARS, description="A name for people.")]
Reason = Annotated[
    str, msgspec.Meta(max_length=REASON_CHARS, description="Why; it stands in the audit log beside the change.")
]
Item = TypeVar("Item")


class _Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body: what it does not know is refused, so that a misspelt field is not taken for a wish that was granted."""


class Listed(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """A whole list."""

    data: list[Item]
    object: str = "list"


class PutTeam(_Asked, frozen=True):
    """A team as it is to be. What is left out stays; a new team is called by its id and has the weight 1."""

    name: Name | UnsetType = UNSET
    weight: (
        Annotated[
            float,
            msgspec.Meta(
                gt=0, le=1_000, description="Its share of a target that is short, beside the other teams' weights."
            ),
        ]
        | UnsetType
    ) = UNSET
    reason: Reason = ""


class TeamOut(msgspec.Struct, frozen=True, kw_only=True):
    """A team."""

    id: str
    organisation_id: str
    name: str
    weight: float
    created_at: datetime
    policy: "PolicyOut"
    object: str = "team"


class PutPolicy(_Asked, frozen=True):
    """A team's policy as it is to be. What is left out stays."""

    reason: Annotated[
        str, msgspec.Meta(min_length=3, max_length=REASON_CHARS, description="Why; the audit log keeps it.")
    ]
    quality_floor: (
        Annotated[
            float,
            msgspec.Meta(
                gt=0, le=1, description="The share of the reference's quality to keep; null takes the gateway's."
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
            msgspec.Meta(description="Whether a weak answer is asked again: never, of whole replies, or all."),
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
        Annotated[float, msgspec.Meta(ge=0, le=1, description="The share of requests that the reference answers too.")]
        | UnsetType
    ) = UNSET
    spill_over: (
        Annotated[
            bool, msgspec.Meta(description="Whether it may use a paid target when our own would keep it waiting.")
        ]
        | UnsetType
    ) = UNSET


class PolicyOut(msgspec.Struct, frozen=True, kw_only=True):
    """A team's policy."""

    quality_floor: float | None
    allowed_models: list[str] | None
    escalation: str
    learning: str
    shadow_share: float
    spill_over: bool
    object: str = "team.policy"


class PutMember(_Asked, frozen=True):
    """Somebody's place in a team."""

    role: TeamRole
    reason: Reason = ""


class MemberOut(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's place in a team. `source` says who gave it: somebody here, or a group of the OpenID provider."""

    email: str
    name: str
    team_id: str
    role: str
    source: str
    disabled: bool
    object: str = "team.member"


class PutPerson(_Asked, frozen=True):
    """Somebody of the organisation. What is left out stays; who is new is called by the address and has no role."""

    name: Name | UnsetType = UNSET
    role: (
        Annotated[
            OrganisationRole,
            msgspec.Meta(description="What they are to the whole organisation; empty: only what their teams let them."),
        ]
        | UnsetType
    ) = UNSET
    disabled: bool | UnsetType = UNSET
    reason: Reason = ""


class PersonOut(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody of the organisation."""

    email: str
    name: str
    role: str
    source: str
    disabled: bool
    teams: dict[str, str]
    """Their role in each of their teams."""
    created_at: datetime
    signed_in_at: datetime | None
    link: str | UnsetType = UNSET
    """Told once, when they are new: with it they choose their password."""
    object: str = "person"


class PutKey(_Asked, frozen=True):
    """A key as it is to be. Left out, `expires_at` is null: the key has no end."""

    role: Annotated[
        Role,
        msgspec.Meta(description="member calls models; finance reads everything; admin changes everything. For good."),
    ] = "member"
    expires_at: (
        Annotated[datetime, msgspec.Meta(tz=True, description="When it stops working, with its time zone.")] | None
    ) = None


class RotateKey(_Asked, frozen=True):
    """How long the old key works beside the new one."""

    overlap_s: Annotated[
        int,
        msgspec.Meta(ge=0, le=_MAX_OVERLAP_S, description="Seconds; with 0 the old key is revoked at once."),
    ]


class KeyOut(msgspec.Struct, frozen=True, kw_only=True):
    """A key. The key itself is told once, in the reply that made it."""

    id: str
    team_id: str
    name: str
    role: str
    state: Literal["working", "expired", "revoked"]
    last4: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_on: str | UnsetType | None = UNSET
    """The UTC day of its last request within 90 days."""
    requests_30d: int | UnsetType = UNSET
    key: str | UnsetType = UNSET
    object: str = "key"


class BudgetOut(msgspec.Struct, frozen=True, kw_only=True):
    """A budget and how it stands, with exact amounts."""

    id: str
    scope: str
    scope_id: str
    period: str
    kind: str
    limit_usd: Decimal
    on_exhausted: str
    webhook: str | None
    spent_usd: Decimal | None
    held_usd: Decimal | None
    share: Decimal | None
    state: str
    period_start: str
    resets_at: str
    object: str = "budget"


Rate = Annotated[
    int, msgspec.Meta(ge=0, le=MOST["tokens_per_minute"], description="0: no limit; null: the configuration's.")
]
Burst = Annotated[int, msgspec.Meta(ge=1, le=MOST["token_burst"], description="null: a minute's worth.")]


class PutLimit(_Asked, frozen=True):
    """What may be used in a minute and at once. What is left out is the configuration's."""

    requests_per_minute: Rate | None = None
    request_burst: Burst | None = None
    tokens_per_minute: Rate | None = None
    token_burst: Burst | None = None
    concurrency: Rate | None = None
    reason: Reason = ""

    def limits(self) -> Limits:
        """As it is kept."""
        return Limits(**{name: getattr(self, name) for name in Limits.__struct_fields__})


class LimitOut(msgspec.Struct, frozen=True, kw_only=True):
    """What was set for one place. null is the configuration's, 0 no limit."""

    scope: str
    scope_id: str
    model: str | None
    requests_per_minute: int | None
    request_burst: int | None
    tokens_per_minute: int | None
    token_burst: int | None
    concurrency: int | None
    updated_at: str
    object: str = "limit"


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """It is gone."""

    id: str
    object: str
    deleted: bool = True


def policy_out(team: TeamRecord) -> PolicyOut:
    """A team's policy."""
    settings = team.settings
    return PolicyOut(
        quality_floor=settings.quality_floor,
        allowed_models=None if team.allowed_models is None else sorted(team.allowed_models),
        escalation=settings.escalation,
        learning=settings.learning,
        shadow_share=settings.shadow_share,
        spill_over=settings.spill_over,
    )


def team_out(team: TeamRecord) -> TeamOut:
    """A team."""
    return TeamOut(
        id=team.team_id,
        organisation_id=team.organisation_id,
        name=team.name,
        weight=team.settings.weight,
        created_at=team.created_at,
        policy=policy_out(team),
    )


def member_out(member: Member) -> MemberOut:
    """A member."""
    return MemberOut(
        email=member.person.email,
        name=member.person.name,
        team_id=member.team_id,
        role=member.role,
        source=member.source,
        disabled=member.person.disabled_at is not None,
    )


def person_out(person: Person, teams: dict[str, str], link: str | UnsetType = UNSET) -> PersonOut:
    """A person."""
    return PersonOut(
        email=person.email,
        name=person.name,
        role=person.role,
        source=person.source,
        disabled=person.disabled_at is not None,
        teams=teams,
        created_at=person.created_at,
        signed_in_at=person.signed_in_at,
        link=link,
    )


def key_out(key: KeyRecord, now: datetime, *, plaintext: str | UnsetType = UNSET) -> KeyOut:
    """A key by itself."""
    return KeyOut(
        id=key.key_id,
        team_id=key.team_id,
        name=key.name,
        role=key.role,
        state="working" if key.works_at(now) else "expired" if key.revoked_at is None else "revoked",
        last4=key.last4,
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        key=plaintext,
    )


def used_key_out(key: KeyRecord, now: datetime, use: KeyUse | None) -> KeyOut:
    """A key with what it was used for lately."""
    return msgspec.structs.replace(
        key_out(key, now),
        last_used_on=None if use is None else iso(use.last_day_us)[:10],
        requests_30d=0 if use is None else use.requests,
    )


def limit_out(rule: Rule) -> LimitOut:
    """A limit."""
    place = rule.place
    return LimitOut(
        scope=place.scope,
        scope_id=place.model if place.scope == "model" else place.scope_id,
        model=None if place.scope == "model" else place.model or None,
        **msgspec.structs.asdict(rule.limits),
        updated_at=iso(rule.updated_us),
    )
