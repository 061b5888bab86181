"""Incidents as tests see them."""

from typing import Any

from api.incidents.kept import Share
from api.operations.incidents import Incident


def seen(place: str = "target/small", **changes: Any) -> Incident:
    """One that hurt 90 requests of one team and 48 of another."""
    usual: dict[str, Any] = {
        "severity": "bad",
        "kind": "down",
        "subject": place.partition("/")[2],
        "text": "its provider refuses our key, so no deployment is called",
        "advice": "Mend the key.",
        "href": "/dashboard/operations/targets/small",
        "place": place,
        "places": (place,),
        "targets": ("small",),
        "hurt": (
            Share(organisation_id="default", team_id="team_a", model="small", requests=90, refused=90),
            Share(organisation_id="default", team_id="team_b", model="auto", requests=48, refused=40),
        ),
        "keys": 2,
    }
    return Incident(**usual | changes)
