"""Counts that upstreams tell and that no meter is known for, told to operators."""

import logging
from typing import Final

from proxy.dispatch.attempt import Attempt

_MOST: Final = 256
_log: Final = logging.getLogger("weighbridge.usage")


class UnknownDetails:
    """Names told so far: each is logged once for each target."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def look_at(self, attempt: Attempt) -> None:
        """Log the names in an attempt's usage that were not logged before."""
        if attempt.settled is None or not attempt.settled.usage.unknown:
            return
        target_id = attempt.deployment.target_id
        for name in attempt.settled.usage.unknown:
            if (target_id, name) not in self._told and len(self._told) < _MOST:
                self._told.add((target_id, name))
                _log.warning(
                    "An upstream counts something that has no price of its own here.",
                    extra={"fields": {"target": target_id, "usage_detail": name}},
                )
