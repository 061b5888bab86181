"""The requests of a trace as a pool sees them: when they come, the work that they are, and what they cost elsewhere."""

import msgspec
import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
Whole = NDArray[np.int64]


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that the pool is capable of, in the order of their arrival, and the sums of all others."""

    at_s: Seconds
    work_s: Seconds
    """Time of one replica that each takes."""
    input_tokens: Whole
    output_tokens: Whole
    elsewhere_nanousd: Whole
    """Cost at the cheapest capable model elsewhere; -1 where there is none, so that the request has to wait here."""
    duration_s: float
    others_nanousd: int
    """Cost of the requests that the pool is not capable of, or not in time; they go elsewhere whatever the fleet is."""

    def __len__(self) -> int:
        return len(self.at_s)

    @property
    def bound(self) -> NDArray[np.bool_]:
        """True for those that nobody else can serve."""
        return self.elsewhere_nanousd < 0
