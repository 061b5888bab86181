"""What LiteLLM's rows come to here, before anything is written: pure functions over rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import Any, Final

import msgspec

from accounts.caller import Role
from accounts.store import DEFAULT_ORGANISATION
from accounts.tables import ID_CHARS
from api.litellm.durations import FOR_GOOD, renewal_of
from cost.budgets.budget import MAX_LIMIT_NANOUSD, Budget, Kind
from cost.prices import NANO_PER_USD
from cost.scopes import Scope
from gateway.from_litellm.ids import id_of, name_of
from gateway.from_litellm.models import Models
from gateway.from_litellm.tables import Row, Theirs, json_in, mapping_in
from proxy.admit.limits.limit import Limits
from proxy.admit.limits.rules import MOST, Place, Rule

PERSONAL: Final = "user-"
"""Beginning of the team that has one user's keys without a team: LiteLLM bounds those by the user's own budget."""
NOBODYS: Final = "litellm-keys"
"""The team of keys that have neither team nor user."""
_PAGES: Final = "litellm-dashboard"
"""LiteLLM's name for the sessions of its own pages."""
_ALL: Final = frozenset({"all-team-models", "all-proxy-models", "*", "all_team_models"})
_NONE: Final = frozenset({"no-default-models"})
_KEPT_FIELDS: Final = ("metadata", "user_id", "key_alias", "team_alias", "created_by", "tags")
_ROLES: Final[Mapping[str, str]] = {"proxy_admin": "admin", "proxy_admin_viewer": "finance", "org_admin": "admin"}


class Cap(msgspec.Struct, frozen=True, kw_only=True):
    """A budget to be set, and what LiteLLM has spent of it already."""

    budget: Budget
    spent_nanousd: int | None
    """None where LiteLLM's count is of more than this."""
    words: str = ""


class KeyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A key of LiteLLM's, as it is to be here. Its id is known once it is there."""

    token: str
    name: str
    last4: str
    expires_at: datetime | None
    models: list[str] | None
    blocked: bool
    limits: list[tuple[str, Limits]]
    """Limits by model; empty for all models together."""
    row: Row
    fields: dict[str, Any]
    losses: list[str]
    role: Role = "member"


class TeamPlan(msgspec.Struct, kw_only=True):
    """A team of LiteLLM's with its keys, as they are to be here."""

    team_id: str
    organisation_id: str
    name: str
    models: list[str] | None
    blocked: bool = False
    row: Row = {}
    limits: list[tuple[str, Limits]] = []
    """Limits by model; empty for all models together."""
    keys: list[KeyPlan] = []
    members: list[tuple[str, str]] = []
    """Mail address and role of each member."""
    fields: dict[str, Any] = {}
    losses: list[str] = []


class PersonPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A user of LiteLLM's who has a mail address."""

    email: str
    name: str
    role: str
    organisation_id: str


class Plan(msgspec.Struct, kw_only=True):
    """All of it."""

    organisations: dict[str, str] = {}
    """Name by id."""
    organisation_rows: dict[str, Row] = {}
    teams: list[TeamPlan] = []
    people: list[PersonPlan] = []
    sessions: int = 0
    """Keys of LiteLLM's pages, which are left behind."""
    expired: int = 0
    without_email: int = 0
    organisation_of_team: dict[str, str] = {}
    """Our team by LiteLLM's id."""


def planned(theirs: Theirs, models: Models, now: datetime) -> Plan:
    """Return what is to be here."""
    return _Planner(theirs, models, now).plan()


class _Planner:
    def __init__(self, theirs: Theirs, models: Models, now: datetime) -> None:
        self._theirs = theirs
        self._models = models
        self._now = now
        self._users = {str(row["user_id"]): row for row in theirs["users"]}
        self._groups = {
            str(row["access_group_id"]): texts(row.get("access_model_names")) for row in theirs["access_groups"]
        }
        self._plan = Plan()

    def plan(self) -> Plan:
        plan = self._plan
        for row in sorted(self._theirs["organisations"], key=lambda row: str(row["organization_id"])):
            organisation_id = id_of(str(row["organization_id"]))
            plan.organisations[organisation_id] = name_of(row.get("organization_alias"), organisation_id)
            plan.organisation_rows[organisation_id] = self._with_tier(row)
        teams = {
            str(row["team_id"]): self._team(row)
            for row in sorted(self._theirs["teams"], key=lambda row: str(row["team_id"]))
        }
        self._keys(teams)
        plan.teams = list(teams.values())
        plan.organisation_of_team = {theirs: team.team_id for theirs, team in teams.items()}
        self._people(teams)
        return plan

    def _organisation(self, theirs: Any) -> str:
        found = id_of(str(theirs)) if theirs else DEFAULT_ORGANISATION
        return found if found in self._plan.organisations else DEFAULT_ORGANISATION

    def _team(self, row: Row) -> TeamPlan:
        team_id, owner = id_of(str(row["team_id"])), self._organisation(row.get("organization_id"))
        own, groups = texts(row.get("models")), texts(row.get("access_group_ids"))
        within = texts(self._plan.organisation_rows.get(owner, {}).get("models"))
        metadata = mapping_in(row.get("metadata"))
        return TeamPlan(
            team_id=team_id,
            organisation_id=owner,
            name=name_of(row.get("team_alias"), row["team_id"], team_id),
            models=self._allowed(own, groups) if own or groups else self._allowed(within),
            blocked=bool(row.get("blocked")),
            row=row,
            limits=list(limits_of(row, metadata)),
            fields=_kept(row),
            losses=list(_losses(row, metadata)),
        )

    def _keys(self, teams: dict[str, TeamPlan]) -> None:
        for row in sorted(self._theirs["keys"], key=lambda row: str(row["token"])):
            if row.get("team_id") == _PAGES or str(row.get("key_alias") or "").startswith("litellm-dashboard"):
                self._plan.sessions += 1
                continue
            ends = moment(row.get("expires"))
            if ends is not None and ends <= self._now:
                self._plan.expired += 1
                continue
            self._team_of_key(row, teams).keys.append(self._key(row, ends))

    def _team_of_key(self, row: Row, teams: dict[str, TeamPlan]) -> TeamPlan:
        named = str(row.get("team_id") or "")
        if named in teams:
            return teams[named]
        user = self._users.get(str(row.get("user_id") or ""))
        if user is None:
            place, team_id, name, bounds = "", NOBODYS, "Keys without a team", {}
        else:
            place = f"{PERSONAL}{user['user_id']}"
            team_id = id_of(str(user["user_id"]), PERSONAL)
            name = name_of(user.get("user_alias"), user.get("user_email"), team_id)
            bounds = dict(user)
        found = teams.get(place)
        if found is None:
            owner = self._organisation(row.get("organization_id") or bounds.get("organization_id"))
            models = self._allowed(texts(bounds.get("models")))
            found = teams[place] = TeamPlan(
                team_id=team_id,
                organisation_id=owner,
                name=name,
                models=models,
                row=bounds,
                limits=list(limits_of(bounds, {})),
            )
            email = str(bounds.get("user_email") or "")
            found.members = [(email, "admin")] if email else []
        return found

    def _key(self, row: Row, ends: datetime | None) -> KeyPlan:
        metadata = mapping_in(row.get("metadata"))
        shown = str(row.get("key_name") or "")
        last4 = shown[-4:] if "..." in shown else ""
        bounds = self._with_tier(row)
        return KeyPlan(
            token=str(row["token"]),
            name=name_of(row.get("key_alias"), f"key {last4}" if last4 else "", "imported"),
            last4=last4,
            expires_at=ends,
            models=self._allowed(texts(row.get("models")), texts(row.get("access_group_ids"))),
            blocked=bool(row.get("blocked")),
            limits=list(limits_of(bounds, metadata)),
            row=bounds,
            fields=_kept(row),
            losses=list(_losses(row, metadata)),
        )

    def _with_tier(self, row: Row) -> Row:
        """Return a row with the limits of the budget that it names, where it has none itself."""
        budget = self._budget(row.get("budget_id"))
        names = (
            "max_budget",
            "budget_duration",
            "budget_reset_at",
            "tpm_limit",
            "rpm_limit",
            "max_parallel_requests",
            "soft_budget",
        )
        return {
            **row,
            **{name: budget.get(name) for name in names if row.get(name) is None and budget.get(name) is not None},
        }

    def _budget(self, budget_id: Any) -> Row:
        return next((row for row in self._theirs["budgets"] if budget_id and row.get("budget_id") == budget_id), {})

    def _allowed(self, names: Iterable[str], groups: Sequence[str] = ()) -> list[str] | None:
        """Return our models for LiteLLM's names and those of its access groups; None for all."""
        wanted = [*names, *(name for each in groups for name in self._groups.get(each, ()))]
        if not (wanted or groups) or any(name in _ALL for name in wanted):
            return None
        found: dict[str, None] = {}
        for name in wanted:
            if name in _NONE:
                continue
            for each in self._models.groups.get(name, [name]):
                behind = self._models.names.get(each)
                alias = self._models.aliases.get(each)
                if behind is None and alias is not None:
                    behind = [alias] if isinstance(alias, str) else list(alias) if isinstance(alias, list) else None
                found.update(dict.fromkeys(behind or [each]))
        return sorted(found)

    def _people(self, teams: dict[str, TeamPlan]) -> None:
        emails = {user_id: str(row.get("user_email") or "").strip().lower() for user_id, row in self._users.items()}
        owners: dict[str, str] = {}
        roles: dict[str, str] = {}
        for row in self._theirs["organisation_members"]:
            user_id = str(row.get("user_id"))
            owners.setdefault(user_id, self._organisation(row.get("organization_id")))
            roles.setdefault(user_id, _ROLES.get(str(row.get("user_role")), ""))
        for theirs, team in teams.items():
            if not theirs.startswith(PERSONAL):
                team.members = [
                    (emails.get(user_id) or email, role)
                    for user_id, email, role in _members(team.row)
                    if emails.get(user_id) or email
                ]
                for user_id, _, _ in _members(team.row):
                    owners.setdefault(user_id, team.organisation_id)
        for user_id, row in sorted(self._users.items()):
            if not emails[user_id]:
                self._plan.without_email += 1
                continue
            self._plan.people.append(
                PersonPlan(
                    email=emails[user_id],
                    name=name_of(row.get("user_alias"), emails[user_id].partition("@")[0]),
                    role=roles.get(user_id) or _ROLES.get(str(row.get("user_role")), ""),
                    organisation_id=owners.get(user_id, self._organisation(row.get("organization_id"))),
                )
            )


def _members(row: Row) -> Iterator[tuple[str, str, str]]:
    """Yield user, mail address and role of a team's members."""
    listed = json_in(row.get("members_with_roles"))
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            role = "admin" if each.get("role") == "admin" else "member"
            yield str(each.get("user_id") or ""), str(each.get("user_email") or "").strip().lower(), role


def caps(
    row: Row, scope: Scope, scope_id: str, organisation_id: str, now: datetime, *, counted: bool = True
) -> Iterator[Cap]:
    """Yield the budgets that a row says: the hard one and the one that warns. `counted`: its `spend` is of this scope alone."""
    spent = _spent(row, now) if counted else None
    kinds: tuple[tuple[str, Kind], ...] = (("max_budget", "hard"), ("soft_budget", "soft"))
    for column, kind in kinds:
        cap = cap_of(row.get(column), row.get("budget_duration"), spent, scope, scope_id, organisation_id, kind)
        if cap is not None:
            yield cap


def cap_of(
    limit: Any,
    duration: Any,
    spent_nanousd: int | None,
    scope: Scope,
    scope_id: str,
    organisation_id: str,
    kind: Kind = "hard",
) -> Cap | None:
    """Return one budget; None where there is no limit. A time that is none makes it one for good."""
    limit_nanousd = nanousd_in(limit)
    if limit_nanousd is None or limit_nanousd < 0:
        return None
    renewal, words = renewal_of(None if duration is None else str(duration)), ""
    if renewal is None:
        renewal, words = FOR_GOOD, f"{str(duration)[:20]} is no time: it never renews"
    elif not renewal.is_same:
        words = f"{duration} is a {renewal.period} here, with that part of the limit"
    amount = int((Decimal(limit_nanousd) * renewal.share).to_integral_value())
    return Cap(
        budget=Budget(
            budget_id=_budget_id(scope, scope_id, renewal.period, kind),
            organisation_id=organisation_id,
            scope=scope,
            scope_id=scope_id,
            period=renewal.period,
            kind=kind,
            limit_nanousd=min(amount, MAX_LIMIT_NANOUSD),
        ),
        spent_nanousd=spent_nanousd,
        words=words,
    )


def _budget_id(*parts: str) -> str:
    return f"litellm-{blake2b(chr(0).join(parts).encode(), digest_size=8).hexdigest()}"


def _spent(row: Row, now: datetime) -> int:
    """Return what LiteLLM has counted in the time that runs; 0 where that has ended and nobody has reset it yet."""
    resets = moment(row.get("budget_reset_at"))
    if resets is not None and resets <= now:
        return 0
    return nanousd_in(row.get("spend")) or 0


def limits_of(row: Row, metadata: Mapping[str, Any]) -> Iterator[tuple[str, Limits]]:
    """Yield the limits of a row by model; empty for all models together."""
    whole = Limits(
        requests_per_minute=_rate(row.get("rpm_limit"), "requests_per_minute"),
        tokens_per_minute=_rate(row.get("tpm_limit"), "tokens_per_minute"),
        concurrency=_rate(row.get("max_parallel_requests"), "concurrency"),
    )
    if whole != Limits():
        yield "", whole
    requests, tokens = mapping_in(metadata.get("model_rpm_limit")), mapping_in(metadata.get("model_tpm_limit"))
    for model in sorted({*requests, *tokens}):
        own = Limits(
            requests_per_minute=_rate(requests.get(model), "requests_per_minute"),
            tokens_per_minute=_rate(tokens.get(model), "tokens_per_minute"),
        )
        if own != Limits():
            yield model, own


def rules(limits: Iterable[tuple[str, Limits]], scope: Any, scope_id: str) -> list[Rule]:
    """Return the rules that set these limits."""
    return [Rule(place=Place(scope, scope_id, model), limits=each) for model, each in limits]


def _rate(value: Any, name: str) -> int | None:
    """Return a limit; None for none. 0 lifts a limit here, so what LiteLLM lets nothing through by is 1."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        return max(1, min(int(value), MOST[name]))
    except (ValueError, OverflowError):
        return None


def _losses(row: Row, metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a row has and nothing here does."""
    for name in (
        "aliases",
        "permissions",
        "config",
        "router_settings",
        "allowed_routes",
        "policies",
        "budget_fallbacks",
        "budget_limits",
    ):
        if json_in(row.get(name)):
            yield name
    if row.get("tpd_limit"):
        yield "tpd_limit"
    if row.get("model_id") is not None:
        yield "aliases of models"
    if row.get("auto_rotate"):
        yield "auto_rotate"
    if json_in(row.get("model_max_budget")) and "token" in row:
        yield "model_max_budget"
    if metadata.get("guardrails"):
        yield "guardrails"


def _kept(row: Row) -> dict[str, Any]:
    """Return what is kept to be given back by LiteLLM's routes."""
    found = {name: json_in(row.get(name)) if name in {"metadata", "tags"} else row.get(name) for name in _KEPT_FIELDS}
    return {name: value for name, value in found.items() if value}


def texts(value: Any) -> list[str]:
    """Return the texts of a column of several."""
    return [str(each) for each in value] if isinstance(value, list | tuple) else []


def moment(value: Any) -> datetime | None:
    """Return a column's moment in UTC, which LiteLLM stores without a zone."""
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def nanousd_in(value: Any) -> int | None:
    """Return dollars that a database has as a float, in nano-dollars."""
    if value is None or isinstance(value, bool):
        return None
    try:
        found = Decimal(str(value)) * NANO_PER_USD
        return int(found.to_integral_value()) if found.is_finite() else None
    except InvalidOperation:
        return None


assert len(NOBODYS) <= ID_CHARS  # noqa: S101
