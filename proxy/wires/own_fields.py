"""The gateway's own fields in the bodies and events of its replies."""

from typing import Any, Final

from cost.usage import UNPRICED_CALLS
from proxy.wires.wire import Served, Tally

_PLACES: Final = 9


def own_fields(served: Served, tally: Tally) -> dict[str, Any]:
    """`model_used`, and under `weighbridge` what the answer cost, and what of it has no known price."""
    without = {"cost_without": "tool_calls"} if UNPRICED_CALLS in tally.usage.flags else {}
    return {
        "model_used": served.target_id,
        "weighbridge": {
            "cost_usd": tally.cost_usd,
            "baseline_usd": tally.baseline_usd,
            "usage_source": tally.usage.source,
            **without,
        },
    }


def dollars(amount_nanousd: int | None) -> str | None:
    """Formats nano-dollars as exact decimal text of nine places, as a JSON number would lose digits."""
    if amount_nanousd is None:
        return None
    digits = str(amount_nanousd).zfill(_PLACES + 1)
    return f"{digits[:-_PLACES]}.{digits[-_PLACES:]}"
