"""Prometheus metrics of states and incidents, as operators' pages show them."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge

MAX_SHOWN: Final = 1_000
_VALUES: Final = {"warn": 1, "bad": 2}


class StateMetrics:
    """Gauges of open incidents, and of the state of each target and pool."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._shown: dict[str, set[str]] = {"target": set(), "pool": set()}
        self._incidents = Gauge(
            "weighbridge_incidents",
            "Open incidents by their severity.",
            ("severity",),
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self._states = {
            kind: Gauge(name, text, (kind,), registry=registry, multiprocess_mode="livemostrecent")
            for kind, name, text in (
                (
                    "target",
                    "weighbridge_target_state",
                    "Worst problem of a target: 0 none, 1 a warning, 2 a grave one.",
                ),
                ("pool", "weighbridge_pool_state", "Worst problem of a pool: 0 none, 1 a warning, 2 a grave one."),
            )
        }

    def tell(self, told: Mapping[str, Any]) -> None:
        """Set all gauges from an operations snapshot."""
        for severity in ("bad", "warn"):
            count = sum(each["severity"] == severity for each in told["incidents"])
            self._incidents.labels(severity).set(count)
        self._set("target", {each["target_id"]: _value(each) for each in told["targets"][:MAX_SHOWN]})
        self._set("pool", {each["name"]: _value(each) for each in told["pools"]["data"][:MAX_SHOWN]})

    def _set(self, kind: str, values: Mapping[str, int]) -> None:
        for gone in self._shown[kind] - values.keys():
            self._states[kind].remove(gone)
        self._shown[kind] = set(values)
        for name, value in values.items():
            self._states[kind].labels(name).set(value)


def _value(place: Mapping[str, Any]) -> int:
    severities: Iterable[str] = {each["severity"] for each in place["problems_found"]}
    return max((_VALUES[each] for each in severities), default=0)
