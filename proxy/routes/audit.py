"""What administrators change through the API is told in the log, under a name of its own."""

import logging
from typing import Final

from accounts.caller import Caller

_audit: Final = logging.getLogger("weighbridge.audit")


def audited(caller: Caller, did: str) -> None:
    """Who did what, once it is done."""
    _audit.warning("key %s of %s/%s %s", caller.key_id, caller.organisation_id, caller.team_id, did)
