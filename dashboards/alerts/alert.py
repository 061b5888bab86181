"""An alert: a measure over a time, and the threshold from which it is told. Pure."""

from collections.abc import Mapping
from typing import Final, Literal, assert_never, get_args

import msgspec

from dashboards.ui import formats

Measure = Literal["spend", "errors", "latency", "refusals", "no-room", "incidents", "budgets"]
MEASURES: Final[tuple[Measure, ...]] = get_args(Measure)
MEASURE_WORDS: Final[Mapping[Measure, str]] = {
    "spend": "Spend",
    "errors": "Share of attempts that failed",
    "latency": "Time to first token, p95",
    "refusals": "Refused requests",
    "no-room": "Attempts refused for lack of room (429)",
    "incidents": "Incidents that hurt at least so many requests",
    "budgets": "Share spent of a budget",
}
WINDOWS_S: Final[Mapping[int, str]] = {300: "5 minutes", 3_600: "hour", 86_400: "24 hours"}
"""Times that are looked back, by their length."""
AGAIN_S: Final = 3_600
"""Seconds after which an alert that still holds is told again, at the earliest."""
ENOUGH: Final = 20
"""Fewest attempts of which a share or a quantile is told: one failure of two is no alarm."""
MILLION: Final = 1_000_000


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert of an organisation, or with `team_id` of one team. `threshold` is in the measure's unit: nano-dollars,
    parts of a million, microseconds, or a count.
    """

    alert_id: str
    organisation_id: str
    team_id: str = ""
    name: str
    measure: Measure
    threshold: int
    window_s: int
    destination: str
    created_us: int = 0
    address: str = ""
    """The team's own address, sealed (`api.webhooks.sealed_addresses`), when it is not told to a configured destination."""

    def message_id(self, now_us: int) -> str:
        """Return the id that every process derives alike, so that one of them tells it, once in AGAIN_S or a longer window."""
        again_us = max(AGAIN_S, self.window_s) * 1_000_000
        return f"alert/{self.alert_id}/{now_us // again_us}"

    def words(self, value: int) -> str:
        """Return one sentence with the value and the threshold."""
        whose = f"team {self.team_id}" if self.team_id else f"organisation {self.organisation_id}"
        return (
            f"{self.name}: {MEASURE_WORDS[self.measure].lower()} of {whose} in the last {WINDOWS_S[self.window_s]} is "
            f"{shown(self.measure, value)}, the threshold {shown(self.measure, self.threshold)}."
        )

    def body(self, value: int) -> dict[str, str | int | None]:
        """Return the message's data: amounts in words and in the measure's unit."""
        return {
            "text": self.words(value),
            "alert_id": self.alert_id,
            "name": self.name,
            "organisation_id": self.organisation_id,
            "team_id": self.team_id or None,
            "measure": self.measure,
            "window_s": self.window_s,
            "value": value,
            "threshold": self.threshold,
        }


def shown(measure: Measure, value: int) -> str:
    """Return a value of this measure for people."""
    match measure:
        case "spend":
            return formats.money(value)
        case "errors" | "budgets":
            return formats.share(value / MILLION)
        case "latency":
            return formats.seconds(value / MILLION)
        case "refusals" | "no-room" | "incidents":
            return formats.number(value)
        case _:
            assert_never(measure)
