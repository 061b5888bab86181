"""Scopes of budgets: whose spending is bounded, in one table, and all that follows from it.

    ROWS["team_model"].id_of(entry)  ->  "payments/gpt-4o", as in `spend_day` and in the budgets

A new scope is a name in `Scope` and its row here. What it spent is then summed by day, its budgets are held, and commands, APIs
and pages offer it.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from cost.dimensions import BY_NAME, Dimension
from cost.end_users import booked
from settings.key_ids import first_id

Scope = Literal["organisation", "team", "key", "tag", "end_user", "model", "provider", "team_model", "team_provider"]
ANY: Final = "*"
"""Stands in an id for each one: `payments/*` are all end users of a team, and `*` those of every team."""


class Spender(msgspec.Struct, frozen=True, kw_only=True):
    """Whose spending a request is, by the names that entries have too. An empty field is nobody's, or not known yet."""

    organisation_id: str
    team_id: str
    key_id: str
    tag: str = ""
    end_user: str = ""
    target_id: str = ""
    provider: str = ""


class ScopeRow(NamedTuple):
    """One scope: the dimension whose values may have a budget, and whose part of it is meant."""

    name: Scope
    dimension: Dimension
    owner: Dimension | None
    """Whose part: None where a value is nobody else's, as a team or a key is."""
    label: str
    """Words before the id, such as `model` in: model `gpt-4o` of team `payments`."""
    each: bool = False
    """True if a budget may be for each value (`ANY`), unless the value has one of its own."""
    of_target: bool = False
    """True if it is known only once a target is chosen, so that another target may still have room."""

    @property
    def column(self) -> str:
        """Column of the value, in the ledger and the roll-ups."""
        return BY_NAME[self.dimension].column

    @property
    def owner_column(self) -> str:
        """Column of the owner; empty without one."""
        return "" if self.owner is None else BY_NAME[self.owner].column

    @property
    def rolled_up(self) -> bool:
        """True if the roll-ups have its sums; otherwise they are the ledger's."""
        return BY_NAME[self.dimension].rolled_up

    @property
    def rotates(self) -> bool:
        """True if one value goes on with another one's spending, as a key does after its rotation."""
        return BY_NAME[self.dimension].rotates

    def id_of(self, spender: Any) -> str:
        """Return the scope id of an entry or a `Spender`; empty where it has no such value."""
        value: str = _GETTERS[self.name][0](spender)
        if not value or self.owner is None:
            return value
        return f"{_GETTERS[self.name][1](spender)}/{value}"

    def stored(self, shown: str, organisation_id: str) -> str:
        """Return the id as it is stored. People leave the organisation out, which they are within anyway."""
        if self.owner == "organisation":
            return f"{organisation_id}/{shown}"
        if self.each and shown == ANY:
            return f"{ANY}/{organisation_id}"
        team, slash, value = shown.partition("/")
        # A person's mail address is booked as its digest.
        return f"{team}/{booked(value)}" if self.name == "end_user" and slash and value != ANY else shown

    def shown(self, stored: str, organisation_id: str) -> str:
        """Return the id as people write it: the opposite of `stored`."""
        if self.owner == "organisation":
            return stored.removeprefix(f"{organisation_id}/")
        return ANY if self.each and stored == f"{ANY}/{organisation_id}" else stored

    def defaults_of(self, spender: Any) -> tuple[str, ...]:
        """Return the ids of budgets for each value that a spender falls under, nearest first."""
        return (f"{_GETTERS[self.name][1](spender)}/{ANY}", f"{ANY}/{spender.organisation_id}")

    def team_in(self, stored: str) -> str:
        """Return the team that a stored id belongs to; empty for a key, for a whole organisation's, and for every team's."""
        if self.name == "team":
            return stored
        team = stored.partition("/")[0] if self.owner == "team" else ""
        return "" if team == ANY else team

    def in_words(self, shown: str) -> str:
        """Return an id as people read it, such as: model `gpt-4o` of team `payments`."""
        if self.owner != "team":
            return f"{self.label} `{shown}`" if shown != ANY else f"each {self.label}"
        if shown == ANY:
            return f"each {self.label} of every team"
        team, _, value = shown.partition("/")
        return f"each {self.label} of team `{team}`" if value == ANY else f"{self.label} `{value}` of team `{team}`"


SCOPES: Final = (
    ScopeRow("organisation", "organisation", None, "organisation"),
    ScopeRow("team", "team", None, "team"),
    ScopeRow("key", "key", None, "key"),
    ScopeRow("tag", "tag", "organisation", "tag"),
    # Two teams may have different people of the same name.
    ScopeRow("end_user", "end_user", "team", "end user", each=True),
    ScopeRow("model", "model", "organisation", "model", of_target=True),
    ScopeRow("provider", "provider", "organisation", "provider", of_target=True),
    ScopeRow("team_model", "model", "team", "model", of_target=True),
    ScopeRow("team_provider", "provider", "team", "provider", of_target=True),
)


def _value_getter(scope: ScopeRow) -> Callable[[Any], str]:
    get = attrgetter(scope.column)
    return (lambda spender: first_id(get(spender))) if scope.rotates else get


_GETTERS: Final = {each.name: (_value_getter(each), attrgetter(each.owner_column or each.column)) for each in SCOPES}
ROWS: Final[Mapping[Scope, ScopeRow]] = {each.name: each for each in SCOPES}
LONGEST_ID: Final = max(
    BY_NAME[each.dimension].width + (0 if each.owner is None else 1 + BY_NAME[each.owner].width) for each in SCOPES
)
"""Characters of the longest stored id."""

assert get_args(Scope) == tuple(ROWS)  # noqa: S101  Names and rows are one list, in one order.
