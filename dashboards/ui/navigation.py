"""The menu: entries for the pages that the viewer may open."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from accounts.access import Right

_OVERVIEW_DEPTH: Final = 3
"""Number of slashes in the address of a team's overview."""


class Entry(msgspec.Struct, frozen=True):
    """One link of the menu."""

    label: str
    href: str
    is_here: bool = False


class Group(msgspec.Struct, frozen=True):
    """Links under one heading."""

    label: str
    entries: tuple[Entry, ...]


_TEAM: Final = (
    ("Overview", ""),
    ("Spend", "/spend"),
    ("Requests", "/requests"),
    ("End users", "/end-users"),
    ("Models", "/models"),
    ("Playground", "/playground"),
    ("Policy", "/policy"),
    ("Guard", "/guard"),
    ("Caching", "/caching"),
    ("Keys", "/keys"),
    ("Budgets and limits", "/budgets"),
    ("Incidents", "/incidents"),
    ("Alerts", "/alerts"),
    ("Members", "/members"),
)
_GROUPS: Final[Sequence[tuple[str, Right, Sequence[tuple[str, str]]]]] = (
    (
        "Finance",
        "finance.read",
        (
            ("Savings", "/dashboard/finance"),
            ("Month close", "/dashboard/finance/month"),
            ("Spend", "/dashboard/finance/spend"),
            ("Showback", "/dashboard/finance/showback"),
            ("Price book", "/dashboard/finance/prices"),
            ("Reconciliation", "/dashboard/finance/reconciliation"),
            ("Exports", "/dashboard/finance/exports"),
            ("Reports", "/dashboard/finance/reports"),
        ),
    ),
    (
        "Operations",
        "operations.read",
        (
            ("Overview", "/dashboard/operations"),
            ("Incidents", "/dashboard/operations/incidents"),
            ("Traffic", "/dashboard/operations/traffic"),
            ("Models", "/dashboard/operations/targets"),
            ("Pools", "/dashboard/operations/pools"),
            ("Rollouts", "/dashboard/operations/rollouts"),
            ("Queues", "/dashboard/operations/queues"),
            ("Live requests", "/dashboard/operations/decisions"),
            ("Classifier", "/dashboard/operations/classifier"),
            ("Measurements", "/dashboard/operations/measurements"),
            ("Configuration", "/dashboard/operations/config"),
        ),
    ),
    (
        "Organisation",
        "organisation.read",
        (
            ("Budgets", "/dashboard/budgets"),
            ("Incidents", "/dashboard/incidents"),
            ("Alerts", "/dashboard/alerts"),
            ("Guard", "/dashboard/guard"),
            ("People", "/dashboard/people"),
        ),
    ),
    ("Organisation", "audit.read", (("Audit log", "/dashboard/audit"),)),
    ("Organisation", "organisation.change", (("API", "/dashboard/api"),)),
)


def menu(
    may: Callable[[Right], bool], path: str, team: tuple[str, str] | None, teams: Mapping[str, str]
) -> tuple[Group, ...]:
    """Return the menu's groups. `team` is the page's team, as id and name; `teams` are the viewer's own, names by id."""
    groups: dict[str, list[Entry]] = {}
    shown = team or (next(iter(teams.items())) if len(teams) == 1 else None)
    if shown is not None:
        base = f"/dashboard/teams/{shown[0]}"
        groups[shown[1]] = [Entry(label, base + rest, _is_here(path, base + rest)) for label, rest in _TEAM]
    sees_all = may("organisation.read")
    everyone = [("All teams" if sees_all else "Your teams", "/dashboard/teams")] if sees_all or len(teams) != 1 else []
    groups["Teams"] = [
        Entry(label, href, path == href)
        for label, href in [*everyone, ("Ask", "/dashboard/ask"), ("Batches", "/dashboard/batches")]
    ]
    for label, right, lines in _GROUPS:
        if may(right):
            entries = groups.setdefault(label, [])
            entries += [Entry(text, href, _is_here(path, href)) for text, href in lines]
    return tuple(Group(label, tuple(entries)) for label, entries in groups.items())


def _is_here(path: str, href: str) -> bool:
    """Return True if an entry is current: pages below it count, except for overviews, which have other entries' pages below
    them.
    """
    overviews = href.count("/") == _OVERVIEW_DEPTH and href.startswith("/dashboard/teams/")
    if overviews or href in {"/dashboard/finance", "/dashboard/operations", "/dashboard/teams"}:
        return path == href
    return path == href or path.startswith(f"{href}/")
