"""The gateway's own fields in the bodies and events of its replies."""

from typing import Any, Final

import msgspec

from cost.usage import UNPRICED_CALLS
from proxy.parse.wires.wire import Served, Tally

_PLACES: Final = 9


class Bill(msgspec.Struct, frozen=True):
    """The value of `weighbridge`: the answer's cost in dollars as a text, and the meters without a known price."""

    cost_usd: str | None
    baseline_usd: str | None
    usage_source: str
    cost_without: str | msgspec.UnsetType = msgspec.UNSET


def bill(tally: Tally) -> Bill:
    usage = tally.usage
    without = "tool_calls" if UNPRICED_CALLS in usage.flags else msgspec.UNSET
    return Bill(tally.cost_usd, tally.baseline_usd, usage.source, without)


def own_fields(served: Served, tally: Tally) -> dict[str, Any]:
    """Return `model_used`, and under `weighbridge` the bill."""
    return {"model_used": served.target_id, "weighbridge": bill(tally)}


def dollars(amount_nanousd: int | None) -> str | None:
    """Format nano-dollars as exact decimal text of nine places, as a JSON number would lose digits."""
    if amount_nanousd is None:
        return None
    digits = str(amount_nanousd).zfill(_PLACES + 1)
    return f"{digits[:-_PLACES]}.{digits[-_PLACES:]}"
