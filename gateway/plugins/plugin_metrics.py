"""Prometheus metrics of plug-ins. Labels are names of the configuration, so they are bounded."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.plugins.calls import CallResult


class PluginMetrics:
    """Calls of plug-ins, how long they took, which are taken out, and what exporters delivered."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "weighbridge_plugin_calls",
            "Calls of plug-ins: ok, late, failed, or out where the plug-in was taken out and not called.",
            ("plugin", "result"),
            registry=registry,
        )
        self._seconds = Counter(
            "weighbridge_plugin_seconds",
            "Seconds that calls of plug-ins took.",
            ("plugin",),
            registry=registry,
        )
        self._out = Gauge(
            "weighbridge_plugin_out",
            "1 while a plug-in is taken out because it was late three times in a row.",
            ("plugin",),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._exported = Counter(
            "weighbridge_exported",
            "Finished requests by what became of them on the way to an exporter: delivered, dropped before a full queue, or lost with a "
            "batch that failed or was late.",
            ("plugin", "result"),
            registry=registry,
        )

    def called(self, plugin: str, result: CallResult, took_s: float) -> None:
        self._calls.labels(plugin, result).inc()
        self._seconds.labels(plugin).inc(took_s)

    def set_out(self, plugin: str, *, out: bool) -> None:
        self._out.labels(plugin).set(out)

    def count_exported(self, plugin: str, result: str, outcomes: int) -> None:
        self._exported.labels(plugin, result).inc(outcomes)
