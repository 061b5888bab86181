"""Prometheus metrics of LoRA adapters."""

from prometheus_client import CollectorRegistry, Counter

from selfhosted.lora.adapters import AdapterObserver, LoadResult


class AdapterMetrics(AdapterObserver):
    """The counts of adapter loads by pool and result. Pools come from the configuration, so they need no cap."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._loads = Counter(
            "weighbridge_adapter_loads",
            "LoRA adapters by what became of them at a replica: loaded, unloaded, failed, busy.",
            ("pool", "result"),
            registry=registry,
        )

    def count_adapter_load(self, pool: str, result: LoadResult) -> None:
        self._loads.labels(pool, result).inc()
