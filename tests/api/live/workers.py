"""Reports of workers, as they would tell them."""

from typing import Any

from cost.ledger.journal import JournalState
from proxy.admin.worker_report import WorkerReport


def worker(boot_id: str = "one", **fields: Any) -> WorkerReport:
    """An idle worker, but for these fields."""
    idle: dict[str, Any] = {
        "boot_id": boot_id,
        "draining": False,
        "in_flight": 0,
        "max_in_flight": 100,
        "is_refusing": False,
        "limits_mode": "process",
        "live": 1,
        "redis": None,
        "breakers": {},
        "queues": (),
        "journal": JournalState(depth=0, oldest_age_s=0.0, accepting=True, write_failures=0, unwritten=0),
        "settle_failures": 0,
        "scored_by_rule": 0,
    }
    return WorkerReport(**{**idle, **fields})
