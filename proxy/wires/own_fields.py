"""The gateway's own fields in the bodies and events of its replies."""

from typing import Any

from cost.prices import NANO_PER_USD
from proxy.wires.wire import Served, Tally


def own_fields(served: Served, tally: Tally) -> dict[str, Any]:
    """`model_used`, and under `weighbridge` what the answer cost."""
    return {
        "model_used": served.target_id,
        "weighbridge": {
            "cost_usd": dollars(tally.cost_nanousd),
            "baseline_usd": dollars(tally.baseline_nanousd),
            "usage_source": tally.usage.source,
        },
    }


def dollars(amount_nanousd: int | None) -> str | None:
    """Formats nano-dollars as exact decimal text of nine places, as a JSON number would lose digits."""
    if amount_nanousd is None:
        return None
    whole, rest = divmod(amount_nanousd, NANO_PER_USD)
    return f"{whole}.{rest:09d}"
