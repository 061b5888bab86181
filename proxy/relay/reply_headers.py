"""Reply headers that describe the routing decision and its cost, as lines of a reply's head."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from proxy.dispatch.attempt import Attempt
from proxy.dispatch.outcome import Agreement, QueueWaited, Unused, Weakness
from proxy.http.reply import Header
from proxy.http.reply_head import field_lines
from proxy.parse.wires.own_fields import dollars
from proxy.parse.wires.wire import Tally
from proxy.plan.evidence import Evidence

_MOST_WAYS: Final = 4096
"""The most distinct combinations of decision whose lines are cached."""


_COST_OF: Final[Mapping[Unused, bytes]] = {
    "escalated": b"escalation",
    "discarded": b"escalation",
    "hedge_lost": b"hedge",
    "confirmed": b"agreement",
    "disputed": b"agreement",
}


def decision_lines(
    attempts: Sequence[Attempt],
    answering: Attempt,
    *,
    weakness: Weakness | None = None,
    escalated_from: str | None = None,
    agreement: Agreement | None = None,
    waits: Sequence[QueueWaited] = (),
) -> bytes:
    """Return the `x-weighbridge-*` headers of the routing decision. `weakness` is the one found before the reply
    began.
    """
    routed, candidate, prediction = answering.routed, answering.candidate, answering.routed.prediction
    lines = b"%bx-weighbridge-attempts: %d\r\n" % (
        _lines_of_way(
            candidate.target.target_id,
            answering.deployment.deployment_id,
            candidate.reason,
            routed.facts.tier,
            None if prediction is None else prediction.source,
            routed.plan.grounds.get(candidate.target.target_id),
        ),
        len(attempts),
    )
    if prediction is not None:
        lines += b"x-weighbridge-complexity: %.3f\r\n" % prediction.complexity
    headers = _changed_headers(answering)
    if weakness is not None:
        headers.append((b"x-weighbridge-weakness", weakness.encode()))
    if escalated_from is not None:
        headers.append((b"x-weighbridge-escalated-from", escalated_from.encode()))
    if agreement is not None:
        headers.append((b"x-weighbridge-agreement", agreement.encode()))
    if len(attempts) > 1:
        headers += _unused_headers(attempts)
    if headers:
        lines += field_lines(headers)
    return lines + queue_line(waits) if waits else lines


def _changed_headers(answering: Attempt) -> list[Header]:
    """Return the headers of what was changed of the request, or told by it."""
    routed = answering.routed
    headers: list[Header] = []
    if answering.dropped:
        headers.append((b"x-weighbridge-dropped", ", ".join(sorted(answering.dropped)).encode()))
    if routed.downgraded:
        headers.append((b"x-weighbridge-downgraded", b"budget"))
    if routed.facts.affordable_tokens is not None:
        headers.append((b"x-weighbridge-budget-max-tokens", b"%d" % routed.facts.affordable_tokens))
    if routed.facts.loop.struggle is not None:
        headers.append((b"x-weighbridge-struggle", routed.facts.loop.struggle.encode()))
    return headers


@lru_cache(maxsize=_MOST_WAYS)
def _lines_of_way(
    target_id: str, deployment_id: str, reason: str, tier: str, classifier: str | None, evidence: Evidence | None
) -> bytes:
    """Return the headers that are the same for all requests of one decision."""
    headers = [
        (b"x-weighbridge-model-used", target_id.encode()),
        (b"x-weighbridge-target", target_id.encode()),
        (b"x-weighbridge-deployment", deployment_id.encode()),
        (b"x-weighbridge-reason", reason.encode()),
        (b"x-weighbridge-tier", tier.encode()),
    ]
    if classifier is not None:
        headers.append((b"x-weighbridge-classifier", classifier.encode()))
    if evidence is not None:
        headers.append((b"x-weighbridge-evidence", evidence.encode()))
    return field_lines(headers)


def queue_line(waits: Sequence[QueueWaited]) -> bytes:
    """Return the header of the time in all queues together, in whole milliseconds and rounded up; empty where none was waited in."""
    waited_s = sum(each.waited_s for each in waits)
    return b"x-weighbridge-queue-ms: %d\r\n" % math.ceil(waited_s * 1000) if waited_s > 0 else b""


def money_lines(tally: Tally) -> bytes:
    """Return the cost headers of a whole reply; a stream reports its cost in the last event."""
    lines = b""
    if tally.cost_usd is not None:
        lines = b"x-weighbridge-cost-usd: %b\r\n" % tally.cost_usd.encode()
    if tally.baseline_usd is not None:
        lines += b"x-weighbridge-baseline-usd: %b\r\n" % tally.baseline_usd.encode()
    return lines


def _unused_headers(attempts: Sequence[Attempt]) -> list[Header]:
    """Return the costs of answers that were not given: of a whole answer that was replaced or discarded, of the
    slower of two attempts that ran beside each other, and of cheap answers that were compared. An unknown cost has no
    header.
    """
    spent: dict[bytes, int] = {}
    for attempt in attempts:
        cost = None if attempt.settled is None else attempt.settled.cost_nanousd
        if cost is not None and attempt.unused is not None:
            name = _COST_OF[attempt.unused]
            spent[name] = spent.get(name, 0) + cost
    return [(b"x-weighbridge-%b-cost-usd" % name, (dollars(cost) or "").encode()) for name, cost in spent.items()]
