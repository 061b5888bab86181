"""The catalog: every target that can be called, built from the configuration and immutable."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from cost.price_book.book import PriceBook, price_book
from cost.price_book.litellm_table import read_table
from cost.price_book.price_config import dated_price, price_items
from cost.prices import Price
from providers.config import DeploymentConfig, ModelConfig, ProvidersSection, SecretRef, is_reference
from providers.target import Deployment, Target

ResolveSecret = Callable[[SecretRef], str]

_MAX_SECRET_BYTES = 64 * 1024


class SecretMissing(Exception):
    """A reference to a secret cannot be resolved. Names the reference and its place, never a value."""

    def __init__(self, reference: str, key_path: str, why: str) -> None:
        super().__init__(f"{key_path}: {reference} {why}")
        self.reference = reference
        self.key_path = key_path


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """Targets by id, in the order of the configuration."""

    targets: Mapping[str, Target]

    def __iter__(self) -> Iterator[Target]:
        return iter(self.targets.values())

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """Every target's deployments, in the order of the configuration."""
        return tuple(deployment for target in self for deployment in target.deployments)

    @property
    def abilities(self) -> dict[str, str]:
        """The classifier's ability name by target id, for the targets that name one."""
        return {target.target_id: target.ability for target in self if target.ability is not None}

    @property
    def needs_litellm(self) -> bool:
        """True when any deployment is called through litellm."""
        return any(deployment.kind == "litellm" for deployment in self.deployments)


def build_catalog(
    section: ProvidersSection,
    resolve_secret: ResolveSecret,
    book: PriceBook | None = None,
    at_us: int | None = None,
    pools: Mapping[str, str] | None = None,
) -> Catalog:
    """Builds the catalog: resolves every secret, and takes the prices in effect at `at_us` (now by default).

    `book` stands in for the section's own prices. `pools` maps target ids to the pools that serve them, whose
    deployments are added later with `with_deployments`. Raises SecretMissing and PriceError.
    """
    prices = configured_prices(section) if book is None else book
    moment_us = time.time_ns() // 1_000 if at_us is None else at_us
    return Catalog(
        targets={
            model.model_id: _target(
                model, resolve_secret, prices.at(model.model_id, moment_us), (pools or {}).get(model.model_id)
            )
            for model in section.models
        }
    )


def configured_prices(section: ProvidersSection) -> PriceBook:
    """The section's own prices. Raises PriceError for a name that litellm's table does not have."""
    # Read when the first model asks for it, and once.
    table = functools.cache(read_table)
    return price_book(
        dated_price(model.model_id, item, table) for model in section.models for item in price_items(model.prices)
    )


def repriced(catalog: Catalog, book: PriceBook, at_us: int) -> Catalog:
    """The same targets, with the prices in effect at `at_us`."""
    return Catalog(
        targets={
            target.target_id: msgspec.structs.replace(target, price=book.at(target.target_id, at_us))
            for target in catalog
        }
    )


def with_deployments(catalog: Catalog, deployments: Mapping[str, tuple[Deployment, ...]]) -> Catalog:
    """The same targets, with these deployments by target id in place of their own."""
    return Catalog(
        targets={
            target.target_id: target
            if target.target_id not in deployments
            else msgspec.structs.replace(target, deployments=deployments[target.target_id])
            for target in catalog
        }
    )


def secret_reader(environment: Mapping[str, str]) -> ResolveSecret:
    """A resolver that reads `env:` references from the given mapping and `file:` references from disk."""

    def read(reference: SecretRef) -> str:
        if reference.startswith("file:"):
            with Path(reference.removeprefix("file:")).open("rb") as file:
                return file.read(_MAX_SECRET_BYTES).decode().strip()
        return environment[reference.removeprefix("env:").removeprefix("os.environ/")]

    return read


def _target(model: ModelConfig, resolve_secret: ResolveSecret, price: Price | None, pool: str | None) -> Target:
    return Target(
        target_id=model.model_id,
        provider=model.provider,
        tiers=model.tier_eligibility,
        price=price,
        max_context_tokens=model.max_context_tokens,
        max_output_tokens=model.max_output_tokens,
        capabilities=model.capabilities,
        capability=model.capability,
        ability=model.ability,
        routing_weight=model.routing_weight,
        tokenizer_ppm=None if model.tokenizer_ratio is None else int(model.tokenizer_ratio * 1_000_000),
        deployments=tuple(_deployment(model, deployment, resolve_secret) for deployment in model.deployments),
        pool=pool,
    )


def _deployment(model: ModelConfig, deployment: DeploymentConfig, resolve_secret: ResolveSecret) -> Deployment:
    place = f"providers.models[{model.model_id}].deployments[{deployment.name}]"
    return Deployment(
        deployment_id=f"{model.model_id}/{deployment.name}",
        target_id=model.model_id,
        kind=deployment.kind,
        upstream_model=deployment.upstream_model or model.model_id,
        base_url=deployment.base_url.rstrip("/"),
        api_key=None if deployment.api_key is None else _secret(deployment.api_key, f"{place}.api_key", resolve_secret),
        weight=deployment.weight,
        options={
            name: _secret(value, f"{place}.options.{name}", resolve_secret) if is_reference(value) else value
            for name, value in deployment.options.items()
        },
        allow_media_links=deployment.allow_media_links,
    )


def _secret(reference: SecretRef, key_path: str, resolve_secret: ResolveSecret) -> str:
    try:
        secret = resolve_secret(reference)
    except LookupError as error:
        raise SecretMissing(reference, key_path, "is not set") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SecretMissing(reference, key_path, "cannot be read") from error
    if not secret:
        raise SecretMissing(reference, key_path, "is empty")
    if not secret.isprintable():
        # It would break out of its header; a stray line end is the usual cause.
        raise SecretMissing(reference, key_path, "contains a line end or another control character")
    return secret
