"""Incidents in words, alike on pages, in `weighbridge top`, in alerts and on a team's page."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from api.incidents.kept import Share
from dashboards.ui.formats import number, plural

KINDS: Final[Mapping[str, str]] = {
    "down": "Down",
    "slow": "Slow",
    "saturated": "Saturated",
    "errors": "Errors",
    "spend": "Spend",
    "flooding": "Flooding",
    "unreachable": "Unreachable",
    "books": "Books",
    "drift": "Drift",
    "configuration": "To configure",
    "late": "Late",
}


def sentence(text: str) -> str:
    """Return the text with a capital first letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def hit_words(incident: Mapping[str, Any]) -> str:
    """Return whom an incident hurt; empty where nobody counts."""
    requests, refused, teams = incident["requests"], incident["refused"] or 0, incident["teams"]
    if requests is None:
        return ""
    if not requests:
        return "nobody so far"
    whose = f"{plural(requests, 'request')} of {plural(teams, 'team')}" if teams else plural(requests, "request")
    if refused == requests:
        return f"{whose} refused"
    if not refused:
        return f"{whose} delayed"
    return f"{whose}: {number(refused)} refused, {number(requests - refused)} delayed"


def models_hurt(hurt: Iterable[Share]) -> str:
    """Return the models that were asked for: all that who does not run the gateway is told of where it was."""
    return ", ".join(dict.fromkeys(each.model or "another model" for each in hurt))
