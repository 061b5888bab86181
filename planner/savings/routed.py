"""What routing between commercial models alone would pay for requests of one shape: the planner's own choices, complexity spread evenly."""

from collections import Counter
from decimal import Decimal
from typing import Final

import msgspec
import numpy as np

from cost.prices import NANO_PER_USD
from planner.savings.workload import Workload, costs_of, decided, routes_of
from providers.catalog import Catalog
from proxy.plan.route_plan import Policy

_COUNT: Final = 2_000
"""Requests that the mean is taken of: one for each step of complexity."""


class Routed(msgspec.Struct, frozen=True, kw_only=True):
    """The mean request, routed."""

    usd_per_request: Decimal
    shares: dict[str, float]
    """Of the requests, by model, the largest first."""


def routed(
    catalog: Catalog, policy: Policy, *, input_tokens: int, cached_tokens: int, output_tokens: int
) -> Routed | None:
    """Return the cost of such a request; None where some find no commercial model."""
    routes = routes_of(catalog, policy, frozenset())
    workload = _alike(input_tokens, cached_tokens, output_tokens)
    _, _, chosen = decided(workload, routes)
    if (chosen < 0).any():
        return None
    costs = costs_of(workload, catalog, routes.names)[chosen, np.arange(_COUNT)]
    counts = Counter(routes.names[place] for place in chosen.tolist())
    return Routed(
        usd_per_request=Decimal(int(costs.sum())) / NANO_PER_USD / _COUNT,
        shares={name: count / _COUNT for name, count in counts.most_common()},
    )


def _alike(input_tokens: int, cached_tokens: int, output_tokens: int) -> Workload:
    def whole(value: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.full(_COUNT, value, dtype=np.int64)

    return Workload(
        at_s=np.zeros(_COUNT),
        input_tokens=whole(input_tokens),
        cached_tokens=whole(cached_tokens),
        output_tokens=whole(output_tokens),
        complexity=(np.arange(_COUNT) + 0.5) / _COUNT,
        place=np.arange(_COUNT),
        copy=whole(0),
        duration_s=1.0,
    )
