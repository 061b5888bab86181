"""Retry rules for requests without a waiting caller (batch lines, background responses): an outcome is final, or
tried again, and when. Pure.
"""

import math
from typing import Final, Literal

Meaning = Literal["answer", "again", "not now"]
"""`answer` is final, `again` a failure that may pass, and `not now` tells nothing of the line: limits, queues or the
process had no room for it.
"""
_MAY_PASS: Final = frozenset({408, 429, 500, 502, 503, 504})
_NO_ROOM: Final = frozenset(
    {
        "rate_limit_exceeded", "queue_full", "pool_full", "overloaded", "draining", "targets_unavailable",
        "ledger_unavailable", "budgets_unavailable", "accounts_unavailable", "upstream_rate_limited", "upstream_overloaded",
        "storage_unavailable", "key_blocked",
    }
)  # fmt: skip
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 300.0
_LEAST_WAIT_S: Final = 0.2


def meaning(status: int, code: str, failures: int, tries: int) -> Meaning:
    """Classify a reply to a request without a waiting caller. `failures` are those before it, of at most `tries`."""
    if status not in _MAY_PASS:
        return "answer"
    if code in _NO_ROOM:
        return "not now"
    return "again" if failures + 1 < tries else "answer"


def wait_of_s(told: float | None, failures: int, jitter: float) -> float:
    """Return the seconds to wait before the next try: `told`, or exponential back-off after `failures`, within
    bounds, and longer by `jitter`, a share.
    """
    doubled = _FIRST_WAIT_S * math.pow(2, min(failures, 16))
    return min(_LONGEST_WAIT_S, max(_LEAST_WAIT_S, doubled if told is None else told)) * (1 + jitter)
