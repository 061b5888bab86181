"""Comparators: the targets whose current catalog prices the baselines of served work are computed from."""

from collections.abc import Mapping

from cost.claim.comparators import Comparator, Comparators
from providers.catalog import Catalog
from providers.target import Target


def comparator_of(target: Target | None) -> Comparator | None:
    """Returns the comparator for a target; None without a target or without a price."""
    if target is None or target.price is None:
        return None
    return Comparator(target_id=target.target_id, price=target.price, tokenizer_ppm=target.tokenizer_ppm)


def build_comparators(catalog: Catalog, reference: str | None, hosted: Mapping[str, str]) -> Comparators:
    """Builds the comparators. `hosted` maps each own target to the paid target that hosts the same weights."""
    hosts = {target: comparator_of(catalog.targets.get(host)) for target, host in hosted.items()}
    return Comparators(
        reference=comparator_of(catalog.targets.get(reference or "")),
        hosted={target: host for target, host in hosts.items() if host is not None},
    )
