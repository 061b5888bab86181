"""Who served work is compared with, from the catalog as it is priced now."""

from collections.abc import Mapping

from cost.claim.comparators import Comparator, Comparators
from providers.catalog import Catalog
from providers.target import Target


def comparator_of(target: Target | None) -> Comparator | None:
    """None where there is no target, or no price to compare with."""
    if target is None or target.price is None:
        return None
    return Comparator(target_id=target.target_id, price=target.price, tokenizer_ppm=target.tokenizer_ppm)


def build_comparators(catalog: Catalog, reference: str | None, hosted: Mapping[str, str]) -> Comparators:
    """`hosted` names, for targets of our own, the target that hosts the same weights."""
    hosts = {target: comparator_of(catalog.targets.get(host)) for target, host in hosted.items()}
    return Comparators(
        reference=comparator_of(catalog.targets.get(reference or "")),
        hosted={target: host for target, host in hosts.items() if host is not None},
    )
