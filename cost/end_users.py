"""End users: how the one that a request names is booked.

The ledger keeps what it has for good, so of what may be a mail address or a telephone number it gets a digest.
"""

import re
from hashlib import blake2b
from typing import Final

LEAST_KEPT_DAYS: Final = 400
"""Days for which what each one spent is kept at least: longer than any period of a budget that renews."""
BOOKED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}", re.ASCII)
_TELEPHONE: Final = re.compile(r"[0-9][0-9./-]{6,}", re.ASCII)


def booked(given: str) -> str:
    """Return an end user as the ledger has it; empty for none."""
    if not given or (BOOKED.fullmatch(given) and not _TELEPHONE.fullmatch(given)):
        return given
    return f"digest-{blake2b(given.encode(), digest_size=16).hexdigest()}"
