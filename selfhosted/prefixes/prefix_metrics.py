"""Prometheus metrics of prompt prefixes."""

from prometheus_client import CollectorRegistry, Counter

from selfhosted.prefixes.tracker import Looked


class PrefixMetrics:
    """The counts of new prompt prefixes: analysed, sampled out or lost."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._beginnings = Counter(
            "weighbridge_prompt_beginnings",
            "New beginnings of prompts by what became of them: looked at, sampled_out, and requests that were lost.",
            ("result",),
            registry=registry,
        )

    def count_beginnings(self, result: Looked, count: int) -> None:
        self._beginnings.labels(result).inc(count)
