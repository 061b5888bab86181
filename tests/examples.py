"""How many examples of a property are tried: a few in `make test`, all of them in `make test-long`."""

import os
from typing import Final

IS_LONG: Final = "WB_EXAMPLES" in os.environ
USUAL: Final = int(os.environ.get("WB_EXAMPLES", "12"))
"""For properties that say nothing themselves."""
_FEWEST: Final = 6


def examples(full: int) -> int:
    """Return how many of `full` examples are tried in this run."""
    return full if IS_LONG else max(min(full, _FEWEST), full // 8)
