"""Names that budgets and limits may have: what the books call models and providers, and what callers send as `model`.

A mistyped one would bound nobody, and nobody would notice before the bill.
"""

from collections.abc import Iterable
from typing import Final, Self

import msgspec

from cost.budgets.budget import Budget
from cost.scopes import ROWS
from providers.catalog import Catalog
from proxy.admit.limits.rules import Place
from proxy.parse.chat_request import AUTO
from proxy.plan.route_plan import Policy
from settings.words import nearest

_MOST_SHOWN: Final = 80
_MOST_LISTED: Final = 20


class KnownNames(msgspec.Struct, frozen=True):
    """The configured names of one moment."""

    catalog: Catalog
    policy: Policy

    @classmethod
    def empty(cls) -> Self:
        """Return the names of a gateway without models."""
        return cls(Catalog(targets={}), Policy())

    def budget_problem(self, budget: Budget) -> str:
        """Return what is wrong with the model or provider that a budget is for; empty for nothing, and for other budgets."""
        row = ROWS[budget.scope]
        if not row.of_target:
            return ""
        name = budget.scope_id.partition("/")[2]
        if row.dimension == "provider":
            providers = {target.provider for target in self.catalog}
            return "" if name in providers else _unknown("provider", name, providers)
        if name in self.catalog.targets:
            return ""
        if name == AUTO or name in self.policy.autos:
            return f"`{name}` chooses among models, and each is booked by its own name: give that a budget"
        if behind := self.policy.aliases.get(name):
            listed = ", ".join(f"`{each}`" for each in behind[:_MOST_LISTED])
            return (
                f"`{name}` is an alias, and what it spends is booked by the model that answered: give {listed} a budget"
            )
        return "" if self.catalog.named(name) else self._unknown_model(name, self.catalog.targets)

    def limit_problem(self, place: Place) -> str:
        """Return what is wrong with the model that a limit is for; empty for nothing, and for a limit of all models."""
        name = place.model
        if (
            not name
            or name == AUTO
            or name in self.policy.aliases
            or name in self.policy.autos
            or self.catalog.named(name)
        ):
            return ""
        return self._unknown_model(name, (AUTO, *self.policy.aliases, *self.policy.autos, *self.catalog.targets))

    def _unknown_model(self, name: str, known: Iterable[str]) -> str:
        if "*" in name:
            return f"`{name[:_MOST_SHOWN]}` stands for many models, and each has a budget or limit of its own: name one"
        of_wildcards = (each for entry in self.catalog.wildcards.entries for each in entry.names)
        return _unknown("model", name, (*known, *of_wildcards))


def _unknown(label: str, name: str, known: Iterable[str]) -> str:
    """Return the sentence for a name that the configuration does not have, with those that may have been meant."""
    names = sorted(set(known))
    near = nearest(name[:_MOST_SHOWN], names)
    if near:
        hint = f"did you mean {' or '.join(f'`{each}`' for each in near)}?"
    else:
        more = ", …" if len(names) > _MOST_LISTED else ""
        hint = f"there are {', '.join(f'`{each}`' for each in names[:_MOST_LISTED])}{more}" if names else "it has none"
    return f"the configuration has no {label} `{name[:_MOST_SHOWN]}`; {hint}"
