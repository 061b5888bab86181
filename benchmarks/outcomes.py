"""The sums of an open loop's replies: answers in time, refusals and their speed, and whatever should not be."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from benchmarks.figures import percentile, quantiles_ms, ratio
from benchmarks.open_loop import GAVE_UP, Probe, Reply

REFUSALS: Final = frozenset({429, 503})
LATE: Final = 504
SOON_MS: Final = 50.0
_OK: Final = 200
_EARLY_US: Final = 20_000
"""Timers fire a little early; what was cut so shortly before its deadline was cut by it."""
_AFTER_WAITING: Final = frozenset({"shed", "expired"})


class Window(msgspec.Struct, frozen=True):
    """The part that counts: requests due between two moments after the load's beginning."""

    from_s: float
    to_s: float

    @property
    def seconds(self) -> float:
        return self.to_s - self.from_s

    def of(self, replies: Iterable[Reply]) -> list[Reply]:
        return [reply for reply in replies if self.from_s <= reply.at_s < self.to_s]


def is_good(reply: Reply, deadline_s: float) -> bool:
    """Return True for a whole answer within its deadline."""
    return reply.status == _OK and reply.whole and reply.latency_us <= deadline_s * 1e6


def served_tokens_per_s(replies: Iterable[Reply], window: Window, target: str) -> float:
    """Return the tokens of a target's whole answers that ended within the window."""
    ended = (
        reply.tokens
        for reply in replies
        if reply.status == _OK
        and reply.whole
        and reply.target == target
        and window.from_s <= reply.at_s + reply.latency_us / 1e6 < window.to_s
    )
    return sum(ended) / window.seconds


def summary(replies: Sequence[Reply], window: Window, deadline_s: float) -> dict[str, Any]:
    """Return the figures of one load."""
    counted = window.of(replies)
    good = [reply for reply in counted if is_good(reply, deadline_s)]
    refused = [reply for reply in counted if reply.status in REFUSALS]
    # What waited and was then given up is refused late, and is told apart.
    at_once = [reply for reply in refused if reply.why not in _AFTER_WAITING]
    waited = [reply for reply in refused if reply.why in _AFTER_WAITING]
    return {
        "offered_per_s": len(counted) / window.seconds,
        "goodput_per_s": len(good) / window.seconds,
        "good_share": ratio(len(good), len(counted)),
        "latency": quantiles_ms([reply.latency_us for reply in good]),
        "ttft": quantiles_ms([reply.ttft_us for reply in good]),
        "refused_share": ratio(len(refused), len(counted)),
        "refusals": dict(Counter(_named(reply) for reply in refused)),
        "refusal": quantiles_ms([reply.latency_us for reply in at_once]),
        "refused_soon_share": ratio(sum(reply.latency_us <= SOON_MS * 1000 for reply in at_once), len(at_once)),
        "refusal_after_waiting": quantiles_ms([reply.latency_us for reply in waited]),
        "retry_after_share": ratio(sum(reply.retry_after for reply in refused), len(refused)),
        "late": sum(_is_late(reply, deadline_s) for reply in counted),
        "gave_up": sum(reply.status == GAVE_UP for reply in counted),
        "targets": dict(Counter(reply.target for reply in good)),
        "driver_late_p99_ms": percentile([reply.late_us for reply in replies], 0.99) / 1000,
    }


def _named(reply: Reply) -> str:
    return " ".join(filter(None, (str(reply.status), reply.code, reply.why)))


def _is_late(reply: Reply, deadline_s: float) -> bool:
    """Return True for a request given up by the gateway at its deadline, or answered after it."""
    if reply.status == _OK and reply.whole:
        return reply.latency_us > deadline_s * 1e6
    return reply.status == LATE or (reply.status == _OK and reply.latency_us >= deadline_s * 1e6 - _EARLY_US)


def problems(replies: Sequence[Reply], deadline_s: float) -> dict[str, int]:
    """Return the number of replies that are neither answer nor refusal nor late, by kind: broken connections, other errors, cut
    streams.
    """
    found: Counter[str] = Counter()
    for reply in replies:
        if reply.status == _OK:
            if not reply.whole and reply.latency_us < deadline_s * 1e6 - _EARLY_US:
                found["a stream was cut before its deadline"] += 1
        elif reply.status not in REFUSALS and reply.status not in {LATE, GAVE_UP}:
            found[_named(reply)] += 1
    return dict(found)


def probes_told(probes: Sequence[Probe]) -> dict[str, Any]:
    """Return the answers of plain paths meanwhile."""
    return {
        path: quantiles_ms([probe.latency_us for probe in probes if probe.path == path])
        | {"statuses": dict(Counter(str(probe.status) for probe in probes if probe.path == path))}
        for path in sorted({probe.path for probe in probes})
    }
