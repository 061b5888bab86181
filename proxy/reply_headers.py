"""Reply headers that describe the routing decision and its cost."""

import math
from collections.abc import Sequence

from proxy.answers.weak_answer import Weakness
from proxy.attempt import Attempt
from proxy.reply import Header
from proxy.wires.own_fields import dollars
from proxy.wires.wire import Tally


def decision_headers(
    attempts: Sequence[Attempt],
    answering: Attempt,
    *,
    weakness: Weakness | None = None,
    escalated_from: str | None = None,
) -> list[Header]:
    """Returns the `x-weighbridge-*` headers of the routing decision. `weakness` is what was found before the reply
    began.
    """
    routed, candidate = answering.routed, answering.candidate
    target_id = candidate.target.target_id.encode()
    headers = [
        (b"x-weighbridge-model-used", target_id),
        (b"x-weighbridge-target", target_id),
        (b"x-weighbridge-deployment", answering.deployment.deployment_id.encode()),
        (b"x-weighbridge-reason", candidate.reason.encode()),
        (b"x-weighbridge-attempts", b"%d" % len(attempts)),
        (b"x-weighbridge-tier", routed.facts.tier.encode()),
    ]
    if routed.prediction is not None:
        headers.append((b"x-weighbridge-complexity", f"{routed.prediction.complexity:.3f}".encode()))
        headers.append((b"x-weighbridge-classifier", routed.prediction.source.encode()))
    if answering.dropped:
        headers.append((b"x-weighbridge-dropped", ", ".join(sorted(answering.dropped)).encode()))
    if routed.downgraded:
        headers.append((b"x-weighbridge-downgraded", b"budget"))
    if routed.facts.loop.struggle is not None:
        headers.append((b"x-weighbridge-struggle", routed.facts.loop.struggle.encode()))
    if weakness is not None:
        headers.append((b"x-weighbridge-weakness", weakness.encode()))
    if escalated_from is not None:
        headers.append((b"x-weighbridge-escalated-from", escalated_from.encode()))
    if answering.slot is not None and answering.slot.waited_s > 0:
        headers.append((b"x-weighbridge-queue-ms", b"%d" % math.ceil(answering.slot.waited_s * 1000)))
    if len(attempts) > 1:
        headers += _unused_headers(attempts)
    return headers


def money_headers(tally: Tally) -> list[Header]:
    """Returns the cost headers of a whole reply; a stream reports its cost in the last event."""
    headers = []
    if tally.cost_usd is not None:
        headers.append((b"x-weighbridge-cost-usd", tally.cost_usd.encode()))
    if tally.baseline_usd is not None:
        headers.append((b"x-weighbridge-baseline-usd", tally.baseline_usd.encode()))
    return headers


def _unused_headers(attempts: Sequence[Attempt]) -> list[Header]:
    """The costs of what was not given: of a whole answer that was replaced or discarded, and of the slower of two attempts
    that ran beside each other. None is told where none is known.
    """
    headers = []
    for attempt in attempts:
        usd = None if attempt.settled is None else dollars(attempt.settled.cost_nanousd)
        if usd is not None and attempt.unused is not None:
            name = b"hedge" if attempt.unused == "hedge_lost" else b"escalation"
            headers.append((b"x-weighbridge-%b-cost-usd" % name, usd.encode()))
    return headers
