"""A pool of two H100 for each replica, and ledger entries of work that it did."""

from datetime import date
from decimal import Decimal
from typing import Any

from cost.fleet.pool_config import PoolSection
from cost.ledger.entries import Entry
from cost.times import start_of
from tests.cost.entries import settle

DAY = start_of(date(2026, 11, 20))
HOUR = 3_600_000_000


def pool(**changes: Any) -> PoolSection:
    """Two H100 at 2.95 $/h that make 4,205 output tokens a second beside as much input: 237.812 s for a million of both."""
    usual: dict[str, Any] = {
        "name": "h100",
        "targets": ["llama"],
        "replicas": 1,
        "gpus_per_replica": 2,
        "usd_per_gpu_hour": Decimal("2.95"),
        "seconds_per_million": {"input": Decimal("37.812"), "cached_input": Decimal(2), "output": Decimal(200)},
    }
    return PoolSection.model_validate({**usual, **changes})


def work(request_id: str, **changes: Any) -> Entry:
    """A request that the pool served, booked at a planned rate."""
    usual: dict[str, Any] = {
        "at_us": DAY + HOUR,
        "target_id": "llama",
        "provider": "self-hosted",
        "pool": "h100",
        "served": True,
        "input_tokens": 1_000,
        "output_tokens": 1_000,
        "cost_nanousd": 3_000_000,
        "input_nanousd": 1_000_000,
        "output_nanousd": 2_000_000,
        "baseline_nanousd": 12_500_000,
    }
    return settle(request_id, **{**usual, **changes})
