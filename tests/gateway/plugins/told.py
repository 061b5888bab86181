"""An observer of plug-ins that keeps what it is told."""

from collections import Counter

from gateway.plugins.calls import CallResult


class Told:
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.exported: Counter[str] = Counter()
        self.out: dict[str, bool] = {}

    def called(self, plugin: str, result: CallResult, took_s: float) -> None:
        self.calls[result] += 1

    def set_out(self, plugin: str, *, out: bool) -> None:
        self.out[plugin] = out

    def count_exported(self, plugin: str, result: str, outcomes: int) -> None:
        self.exported[result] += outcomes
