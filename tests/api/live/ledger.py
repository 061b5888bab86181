"""Ledger entries for tests of what operators see."""

from typing import Any

from cost.ledger.entries import Entry

BASE_US = 1_750_000_000_000_000


def ended(number: int, at_us: int, **fields: Any) -> Entry:
    """The end of one request's only attempt."""
    values: dict[str, Any] = {
        "request_id": f"req_{number:06}",
        "attempt": 1,
        "entry": "settle",
        "at_us": at_us,
        "boot_id": "boot",
        "organisation_id": "acme",
        "team_id": "team_a",
        "key_id": "key_a",
        "tier": "interactive",
        "alias": "auto",
        "target_id": "small",
        "deployment_id": "small/main",
        "provider": "local",
        "price_version": "v1",
        "input_tokens": 100,
        "cached_input_tokens": 0,
        "cache_write_tokens": 0,
        "output_tokens": 50,
        "reasoning_tokens": 0,
        "cost_nanousd": 1_000,
        "baseline_nanousd": 2_000,
        "usage_source": "upstream",
        "flags": (),
        "status": 200,
        "stream": True,
        "complexity": 0.3,
        "reason": "cheapest-capable",
        "ttft_us": 200_000,
        "duration_us": 1_200_000,
        "served": True,
    }
    return Entry(**{**values, **fields})
