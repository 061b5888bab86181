"""Comparators: the targets whose current catalog prices the baselines of served work are computed from."""

from collections.abc import Mapping

from cost.claim.comparators import Comparators
from providers.catalog import Catalog


def build_comparators(catalog: Catalog, reference: str | None, hosted: Mapping[str, str]) -> Comparators:
    """Builds the comparators. `hosted` maps each own target to the paid target that hosts the same weights."""
    known = {name: target.comparator for name, target in catalog.targets.items() if target.comparator is not None}
    return Comparators(
        reference=known.get(reference or ""),
        hosted={target: known[host] for target, host in hosted.items() if host in known},
    )
