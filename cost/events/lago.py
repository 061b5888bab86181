"""Events as Lago takes them, which reads no CloudEvents: https://getlago.com/docs/api-reference/events/batch."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec

from cost.events.event import Event

_CENTS: Final = 7
"""Digits between a nano-dollar and a cent."""


def lago_encoder(code: str) -> Callable[[Event], bytes]:
    """Return what writes an event as one of a billable metric. Its subscription is the team's id; Lago refuses one without."""
    encode = msgspec.json.Encoder().encode

    def written(event: Event) -> bytes:
        entry = event.entry
        made: dict[str, Any] = {
            "transaction_id": event.id,
            "external_subscription_id": entry.team_id,
            "code": code,
            "timestamp": f"{entry.at_us / 1_000_000:.3f}",
            "properties": event.data(),
        }
        if entry.cost_nanousd is not None:
            made["precise_total_amount_cents"] = f"{Decimal(entry.cost_nanousd).scaleb(-_CENTS):f}"
        return encode(made)

    return written
