"""What LiteLLM's clients send: known fields, those that nothing here does, and all others, each refused by name where it says something."""

from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from accounts.store import utc_now
from api.keys.change import ends_after
from api.litellm.durations import Renewal, renewal_of, seconds_of
from cost.budgets.budget import MAX_LIMIT_NANOUSD
from cost.prices import usd
from proxy.errors import BadRequest

_WITHOUT_EQUAL: Final[Mapping[str, str]] = {
    "aliases": "names of models are mapped for all, by `policy.aliases` of the configuration",
    "model_aliases": "names of models are mapped for all, by `policy.aliases` of the configuration",
    "config": "there are no settings of a single key",
    "router_settings": "there are no settings of a single key or team",
    "permissions": "what a key may do is its role",
    "allowed_routes": "what a key may do is its role",
    "allowed_passthrough_routes": "there are no pass-through routes",
    "guardrails": "rules are a team's: PUT /v1/admin/teams/{team_id}/guard",
    "policies": "rules are a team's: PUT /v1/admin/teams/{team_id}/guard",
    "enforced_params": "no field is required of callers",
    "allowed_cache_controls": "an answer's cache is the team's choice: PUT /v1/admin/teams/{team_id}/policy",
    "object_permission": "there are no vector stores and MCP servers",
    "budget_id": "a budget is set with the key or team itself: `max_budget`, `budget_duration`",
    "model_max_budget": "a team's budget of one model: PUT /v1/admin/budgets/{id} with the scope team_model",
    "budget_limits": "several budgets of one key: PUT /v1/admin/budgets/{id}",
    "tpd_limit": "limits are by the minute; a budget may be by the day",
    "auto_rotate": "keys are rotated by POST /v1/admin/teams/{team_id}/keys/{key}/rotate",
    "rotation_interval": "keys are rotated by POST /v1/admin/teams/{team_id}/keys/{key}/rotate",
    "prompts": "there is no store of prompts",
    "project_id": "a key belongs to a team",
    "agent_id": "there are no agents",
    "access_group_ids": "name the models",
    "team_member_budget": "a budget of a member is one of their key",
    "team_member_rpm_limit": "a limit of a member is one of their key",
    "team_member_tpm_limit": "a limit of a member is one of their key",
    "secret_manager_settings": "keys are not kept in a secret store",
    "password": "people choose theirs by a link: POST /v1/admin/people/{email}/link",
    "sso_user_id": "people are found by their mail address at sign-in",
    "auto_create_key": "make the key by itself: POST /key/generate",
    "spend": "the books say what was spent, and a budget is raised by POST /v1/admin/budgets/{id}/topups",
    "key_type": "what a key may do is its role, which PUT /v1/admin/teams/{team_id}/keys/{key} gives: finance only reads, admin manages",
}
"""Fields of LiteLLM's that nothing here does, and what to do instead."""
_IGNORED: Final = frozenset({"send_invite_email", "created_by", "updated_by", "litellm_changed_by"})
"""Fields that change neither what a key may do nor what it may spend."""
_USUAL_TYPES: Final = ("default", "llm_api")
"""Values of `key_type` that every key here is."""

_MOST_USD: Final = usd(MAX_LIMIT_NANOUSD)
_MOST_TEXTS: Final = 1_000
_MOST_CHARS: Final = 1_000


class Sent:
    """A body's fields. A field that says nothing (null, 0, empty) is as if it were left out, as Terraform's provider sends all of them;
    in a change (`changes`) a `spend` of 0 says something, as LiteLLM would forget what was spent.
    """

    def __init__(self, fields: Mapping[str, Any], known: Collection[str], *, changes: bool = False) -> None:
        for name, value in fields.items():
            says = value is not None if changes and name == "spend" else bool(value)
            if not says or name in known or name in _IGNORED or (name == "key_type" and value in _USUAL_TYPES):
                continue
            why = _WITHOUT_EQUAL.get(name)
            if why is not None:
                raise BadRequest(f"`{name[:60]}` has no equal here: {why}.", param=name[:60])
            raise BadRequest(f"`{name[:60]}` is no field that is known here.", param=name[:60])
        if _has_nul(fields):
            raise BadRequest("A text must not have a NUL in it.")
        self._fields = fields

    def __contains__(self, name: str) -> bool:
        return bool(self._fields.get(name, "") != "")

    def text(self, name: str) -> str | None:
        """Return a text; None where none was sent."""
        value = self._fields.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str) or len(value) > _MOST_CHARS:
            raise BadRequest(f"`{name}` is a text of at most {_MOST_CHARS:,} characters.", param=name)
        return value

    def texts(self, name: str) -> list[str] | None:
        """Return a list of texts; None where none was sent."""
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) and len(each) <= _MOST_CHARS for each in value):
            raise BadRequest(f"`{name}` is a list of texts.", param=name)
        if len(value) > _MOST_TEXTS:
            raise BadRequest(f"`{name}` has at most {_MOST_TEXTS:,} texts.", param=name)
        return value

    def flag(self, name: str) -> bool | None:
        """Return a boolean; None where none was sent."""
        value = self._fields.get(name)
        if value is not None and not isinstance(value, bool):
            raise BadRequest(f"`{name}` is true or false.", param=name)
        return value

    def mapping(self, name: str) -> dict[str, Any] | None:
        """Return an object; None where none was sent."""
        value = self._fields.get(name)
        if value is not None and not isinstance(value, dict):
            raise BadRequest(f"`{name}` is an object.", param=name)
        return value

    def whole(self, name: str) -> int | None:
        """Return a whole number; None where none was sent."""
        value = self._fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise BadRequest(f"`{name}` is a whole number.", param=name)
        return int(value)

    def amount(self, name: str) -> Decimal | None:
        """Return an amount of dollars; None where none was sent."""
        value = self._fields.get(name)
        if value is None:
            return None
        try:
            found = Decimal(str(value))
        except InvalidOperation:
            found = Decimal("NaN")
        if isinstance(value, bool) or not found.is_finite() or not 0 <= found <= _MOST_USD:
            raise BadRequest(f"`{name}` is an amount of dollars, from 0 to a billion.", param=name)
        return found.quantize(Decimal("1E-9"))

    def ends_at(self) -> datetime | None:
        """Return when a key of `duration` ends; None for never."""
        duration = self.text("duration")
        if duration is None or duration == "-1":
            return None
        seconds = seconds_of(duration)
        if not seconds:
            raise BadRequest("`duration` is a time such as 30s, 30m, 30h, 30d or 1mo.", param="duration")
        return ends_after(utc_now(), seconds)

    def renewal(self) -> Renewal:
        """Return the period of a budget. Raises BadRequest for a time that none of ours has."""
        found = renewal_of(self.text("budget_duration"))
        if found is None or not found.is_same:
            raise BadRequest(
                "`budget_duration` is one of 1h, 1d, 7d, 30d and 365d here, or left out for a budget that never renews: budgets renew by the "
                "hour, day, week, month and year.",
                param="budget_duration",
            )
        return found


def _has_nul(fields: Mapping[str, Any]) -> bool:
    """Return True where a name or a text has a NUL at any depth: PostgreSQL has no place for one."""
    left: list[Any] = [fields]
    while left:
        value = left.pop()
        if isinstance(value, str):
            if "\x00" in value:
                return True
        elif isinstance(value, Mapping):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
    return False
