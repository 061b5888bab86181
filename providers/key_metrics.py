"""Prometheus metrics of keys that stand in files. A key is named by its digest's first digits, never shown."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class KeyMetrics:
    """Which key of which file is in use, since when, and which keys are refused."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._read = Gauge(
            "weighbridge_provider_key_read_seconds",
            "When the key that is in use was read from its file, in Unix seconds.",
            ("file", "key"),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._refused = Counter(
            "weighbridge_provider_key_refusals",
            "Calls that a provider refused for a key that stands in a file.",
            ("key",),
            registry=registry,
        )

    def read(self, reference: str, key: str, at_s: float, before: str) -> None:
        self.forget(reference, before)
        self._read.labels(reference.removeprefix("file:"), key).set(at_s)

    def forget(self, reference: str, key: str) -> None:
        try:
            self._read.remove(reference.removeprefix("file:"), key)
        except KeyError:
            return

    def refused(self, key: str) -> None:
        self._refused.labels(key).inc()
