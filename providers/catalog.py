"""The catalog: every target that can be called, built from the configuration and immutable."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec

from cost.price_book.book import DatedPrice, PriceBook, price_book
from cost.price_book.price_config import dated_price, price_items
from cost.prices import SERVICE_TIERS, SIZED_SEARCHES, Price, price_from_usd
from providers.config import DeploymentConfig, ModelConfig, ProvidersSection
from providers.known_rows import KnownRow, row_of
from providers.model_facts import Known, bundled_table, facts_of, names_under, provider_of
from providers.parameters import lacking, most_output_tokens
from providers.provider_tools import common_dialect, known_tools
from providers.secret_references import read_secret_file
from providers.target import (
    ASSUMED_OUTPUT_TOKENS,
    CHAT_CAPABILITIES,
    UNKNOWN_CONTEXT_TOKENS,
    Deployment,
    Fact,
    OwnTimeouts,
    Target,
    Tier,
)
from settings.secret_ref import SecretRef, is_reference

ResolveSecret = Callable[[SecretRef], str]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")
_MOST_UNLISTED: Final = 256
"""The most names of one wildcard that the table does not know and that are kept in mind."""


class SecretMissing(Exception):
    """A reference to a secret cannot be resolved. Names the reference and its place, never a value."""

    def __init__(self, reference: str, key_path: str, why: str) -> None:
        super().__init__(f"{key_path}: {reference} {why}")
        self.reference = reference
        self.key_path = key_path


class Wildcard(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that stands for every name that begins as its own (`openai/*`).

    `target` is what all of them share: its deployments, and with them their circuit breakers, are the same for all names.
    """

    model: ModelConfig
    target: Target
    names: tuple[str, ...]
    """The names that callers may send, as far as litellm's table knows them; others are taken too."""

    def stands_for(self, name: str) -> str | None:
        """Return the part of a name that the `*` matches; None where the name does not match."""
        prefix = self.target.target_id[:-1]
        rest = name.removeprefix(prefix)
        return rest if rest and name.startswith(prefix) and _NAME.fullmatch(name) else None

    def named(self, name: str, rest: str, price: Price | None) -> Target:
        """Return the target of one name, at the price of the book, else at what the table knows of it."""
        known = facts_of(self.model, rest)
        if price is None and known.facts is not None:
            price = known.facts.price
        bare = msgspec.structs.replace(
            self.target,
            target_id=name,
            price=price,
            pattern=self.target.target_id,
            deployments=tuple(
                msgspec.structs.replace(each, target_id=name, upstream_model=each.upstream_model.replace("*", rest, 1))
                for each in self.target.deployments
            ),
        )
        return _with_row(_with_facts(bare, self.model, known), row_of(self.model, rest))


class Wildcards:
    """All wildcards, and the targets that followed from them so far, at the prices of one moment."""

    def __init__(self, entries: tuple[Wildcard, ...], book: PriceBook, at_us: int) -> None:
        self.entries = entries
        self._book = book
        self._at_us = at_us
        self._found: dict[str, Target] = {}
        self._most = sum(len(each.names) + _MOST_UNLISTED for each in entries)

    def target(self, name: str) -> Target | None:
        """Return the target of a name, by the longest wildcard that matches it; None where none does."""
        found = self._found.get(name)
        if found is not None:
            return found
        matching = [(entry, rest) for entry in self.entries if (rest := entry.stands_for(name)) is not None]
        if not matching:
            return None
        entry, rest = max(matching, key=lambda each: len(each[0].target.target_id))
        price = self._book.at(name, self._at_us) or self._book.at(entry.target.target_id, self._at_us)
        if len(self._found) >= self._most:
            self._found.clear()
        found = self._found[name] = entry.named(name, rest, price)
        return found

    def priced_by(self, book: PriceBook, at_us: int) -> "Wildcards":
        """Return the same wildcards at the prices of another moment."""
        return Wildcards(self.entries, book, at_us) if self.entries else self


_NO_WILDCARDS: Final = Wildcards((), PriceBook(), 0)


def those_that_chat(targets: tuple[Target, ...]) -> tuple[Target, ...]:
    """Return the targets that answer chats, or all where none does: `auto` never means one that embeds, draws or
    speaks, so no refusal or explanation mentions it.
    """
    return tuple(each for each in targets if each.chats) or targets


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """The targets by id, in the order of the configuration, and the wildcards that further ones follow from.

    To go over a catalog is to go over its entries, wildcards included.
    """

    targets: Mapping[str, Target]
    wildcards: Wildcards = _NO_WILDCARDS
    chatting: tuple[Target, ...] = ()
    """The targets that `auto` is meant to choose from where nobody names them; follows from the targets."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "chatting", those_that_chat(tuple(self.targets.values())))

    def __iter__(self) -> Iterator[Target]:
        yield from self.targets.values()
        for entry in self.wildcards.entries:
            yield entry.target

    def __len__(self) -> int:
        return len(self.targets)

    def named(self, name: str) -> Target | None:
        """Return the target that a caller names; None where there is none."""
        return self.targets.get(name) or self.wildcards.target(name)

    def including(self, names: Iterable[str]) -> "Catalog":
        """Return a catalog whose `targets` have these names too, as far as a wildcard stands for them."""
        if not self.wildcards.entries:
            return self
        further = {name: found for name in names if (found := self.named(name)) is not None}
        if further.keys() <= self.targets.keys():
            return self
        return Catalog(targets={**self.targets, **further}, wildcards=self.wildcards)

    def __contains__(self, name: object) -> bool:
        """Return True for a target's id, a wildcard itself, and a name that a wildcard stands for."""
        if not isinstance(name, str):
            return False
        return self.named(name) is not None or any(name == each.target.target_id for each in self.wildcards.entries)

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """Every target's deployments, in the order of the configuration."""
        return tuple(deployment for target in self for deployment in target.deployments)

    @property
    def abilities(self) -> dict[str, str]:
        """The names of rows of the classifier's table by target id, for the targets that have one."""
        return {target.target_id: target.ability for target in self if target.ability is not None}

    @property
    def efforts(self) -> dict[str, Mapping[str, str]]:
        """The names of rows by reasoning effort and target id, for the targets that have several."""
        return {target.target_id: target.efforts for target in self if target.efforts}

    @property
    def needs_litellm(self) -> bool:
        """True when any deployment is called through litellm."""
        return any(each.kind == "litellm" and not each.speaks_messages for each in self.deployments)


def build_catalog(
    section: ProvidersSection,
    resolve_secret: ResolveSecret,
    book: PriceBook | None = None,
    at_us: int | None = None,
    pools: Mapping[str, str] | None = None,
    served_as: Mapping[str, str] | None = None,
) -> Catalog:
    """Build the catalog: resolve every secret, and take the prices in effect at `at_us` (now by default).

    `book` stands in for the section's own prices. `pools` maps target ids to the pools that serve them, whose
    deployments are added later with `with_deployments`; `served_as` has the names that their engines have the models by. Raises SecretMissing and PriceError.
    """
    prices = configured_prices(section) if book is None else book
    moment_us = time.time_ns() // 1_000 if at_us is None else at_us
    built = [
        (
            model,
            _target(
                model,
                resolve_secret,
                prices.at(model.model_id, moment_us),
                pool=(pools or {}).get(model.model_id),
                served_as=(served_as or {}).get(model.model_id),
                hedged_tiers=section.hedging.tiers if model.hedging is None else model.hedging,
            ),
        )
        for model in section.models
    ]
    wildcards = tuple(
        Wildcard(model=model, target=target, names=tuple(model.model_id[:-1] + each for each in names_under(model)))
        for model, target in built
        if model.is_wildcard
    )
    return Catalog(
        targets={target.target_id: target for model, target in built if not model.is_wildcard},
        wildcards=Wildcards(wildcards, prices, moment_us) if wildcards else _NO_WILDCARDS,
    )


def configured_prices(section: ProvidersSection) -> PriceBook:
    """Return the section's own prices, and those that litellm's table has for models that have none.

    Raises PriceError for a name that litellm's table does not have.
    """
    return price_book(each for model in section.models for each in _prices_of(model))


def _prices_of(model: ModelConfig) -> Iterator[DatedPrice]:
    items = price_items(model.prices)
    for item in items:
        yield dated_price(model.model_id, item, bundled_table)
    if items:
        return
    if model.is_own:
        yield DatedPrice(target_id=model.model_id, price=_OWN, source="config", note=_OWN_NOTE)
        return
    names: list[tuple[str, str | None]] = [(model.model_id, None)]
    if model.is_wildcard:
        names = [(model.model_id[:-1] + each, each) for each in names_under(model)]
    for target_id, upstream in names:
        facts = facts_of(model, upstream).facts
        if facts is not None and facts.price is not None:
            yield DatedPrice(target_id=target_id, price=facts.price, source="litellm")


_OWN: Final = price_from_usd(version="own engine", input_usd=0, output_usd=0)
_OWN_NOTE: Final = "A token of your own engine costs nothing by itself; what its GPUs cost is what `cost.pools` says."


def costs_nothing(catalog: Catalog, target_id: str) -> bool:
    """Return True for a target whose tokens are booked at nothing because it runs on an own engine."""
    target = catalog.named(target_id)
    return target is not None and target.price is not None and target.price.version == _OWN.version


def repriced(catalog: Catalog, book: PriceBook, at_us: int) -> Catalog:
    """Return the same targets, with the prices in effect at `at_us`."""
    return Catalog(
        targets={
            target_id: msgspec.structs.replace(target, price=book.at(target_id, at_us))
            for target_id, target in catalog.targets.items()
        },
        wildcards=catalog.wildcards.priced_by(book, at_us),
    )


def with_deployments(catalog: Catalog, deployments: Mapping[str, tuple[Deployment, ...]]) -> Catalog:
    """Return the same targets, with these deployments by target id in place of their own."""
    return Catalog(
        targets={
            target_id: target
            if target_id not in deployments
            else msgspec.structs.replace(target, deployments=deployments[target_id])
            for target_id, target in catalog.targets.items()
        },
        wildcards=catalog.wildcards,
    )


def unknown_facts(section: ProvidersSection, catalog: Catalog, *, unpriced: Literal["refuse", "book"]) -> Iterator[str]:
    """Yield sentences about facts of a configured model that neither the file nor litellm's table has, and the
    consequence. `unpriced` is what the configuration does with requests for a model without a price.
    """
    entries = {each.target.target_id: each for each in catalog.wildcards.entries}
    for model in section.models:
        entry = entries.get(model.model_id)
        if entry is not None and entry.target.price is None and not entry.names and unpriced == "refuse":
            tells = any(each.told_cost is not None for each in entry.target.deployments)
            yield (
                f"{model.model_id}: litellm's table lists no prices of its provider, and a name without one is refused: write "
                f"`prices` here, or `cost.unpriced: book`{', which books the cost that the provider tells' if tells else ''}"
            )
        target = catalog.targets.get(model.model_id)
        if target is None:
            continue
        follows = [said for fact, said in _ASSUMED.items() if fact in target.assumed]
        if target.price is None:
            others = "others are refused (`prices`, `cost.unpriced`)"
            if unpriced == "book":
                others = "others are booked without one (`prices`)"
            follows.append(f"its price is unknown, so `auto` never chooses it and {others}")
        if follows:
            why = facts_of(model).why_not
            yield f"{model.model_id}: {'; '.join(follows)}{f'; {why}' if why else ''}"


_ASSUMED: Final[dict[Fact, str]] = {
    "capabilities": "nobody says what it can do, so it is taken to do everything (`capabilities`)",
    "max_context_tokens": "nobody says how long a prompt may be, so none is refused here (`max_context_tokens`)",
}


def secret_reader(environment: Mapping[str, str]) -> ResolveSecret:
    """Return a resolver that reads `env:` references from the given mapping and `file:` references from disk."""

    def read(reference: SecretRef) -> str:
        if reference.startswith("file:"):
            return read_secret_file(reference)
        return environment[reference.removeprefix("env:").removeprefix("os.environ/")]

    return read


def _target(
    model: ModelConfig,
    resolve_secret: ResolveSecret,
    price: Price | None,
    *,
    pool: str | None,
    served_as: str | None,
    hedged_tiers: frozenset[Tier],
) -> Target:
    bare = Target(
        target_id=model.model_id,
        provider=model.provider,
        tiers=model.tier_eligibility,
        price=price,
        max_context_tokens=UNKNOWN_CONTEXT_TOKENS,
        max_output_tokens=ASSUMED_OUTPUT_TOKENS,
        capabilities=CHAT_CAPABILITIES,
        capability=model.capability,
        routing_weight=model.routing_weight,
        tokenizer_ppm=None if model.tokenizer_ratio is None else int(model.tokenizer_ratio * 1_000_000),
        deployments=tuple(_deployment(model, deployment, resolve_secret) for deployment in model.deployments),
        pool=pool,
        template_tokens=model.template_tokens,
        hedged_tiers=hedged_tiers,
    )
    # What a wildcard's name stands for is known when somebody sends it.
    if model.is_wildcard:
        return _with_facts(bare, model, Known(None))
    return _with_row(_with_facts(bare, model, facts_of(model)), row_of(model, served_as=served_as))


def _with_row(target: Target, known: KnownRow | None) -> Target:
    if known is None or not target.chats:
        return target
    return msgspec.structs.replace(target, ability=known.ability, efforts=known.efforts)


def _with_facts(target: Target, model: ModelConfig, known: Known) -> Target:
    """Return the target with its facts from the configuration, else from the table, else from assumptions."""
    facts = known.facts
    context = model.max_context_tokens or (facts and facts.max_input_tokens)
    output = model.max_output_tokens or (facts and facts.max_output_tokens) or most_output_tokens(target.deployments)
    capabilities = known.capabilities_of(model)
    given: dict[Fact, object] = {
        "max_context_tokens": context,
        "max_output_tokens": output,
        "capabilities": capabilities,
    }
    tiers = {tier for tier in SERVICE_TIERS if target.price is not None and getattr(target.price, tier) is not None}
    return msgspec.structs.replace(
        target,
        max_context_tokens=context or UNKNOWN_CONTEXT_TOKENS,
        max_output_tokens=min(output or ASSUMED_OUTPUT_TOKENS, context or UNKNOWN_CONTEXT_TOKENS),
        capabilities=CHAT_CAPABILITIES if capabilities is None else capabilities,
        assumed=frozenset(fact for fact, value in given.items() if value is None),
        answer_beside=model.max_context_tokens is None,
        **msgspec.structs.asdict(lacking(target.deployments)),
        searches=next(
            (SIZED_SEARCHES[each.quirks.searches] for each in target.deployments if each.quirks.searches), ""
        ),
        dialect=common_dialect(target.deployments),
        provider_tools=known_tools(target.deployments) if model.provider_tools is None else model.provider_tools,
        service_tiers=frozenset(tiers) | (facts.service_tiers if facts is not None else frozenset()),
    )


def _deployment(model: ModelConfig, deployment: DeploymentConfig, resolve_secret: ResolveSecret) -> Deployment:
    place = f"providers.models[{model.model_id}].deployments[{deployment.name}]"
    provider = provider_of(deployment)
    return Deployment(
        deployment_id=f"{model.model_id}/{deployment.name}",
        target_id=model.model_id,
        kind=deployment.kind,
        upstream_model=model.upstream_of(deployment),
        base_url=deployment.base_url.rstrip("/"),
        api_key=None if deployment.api_key is None else _secret(deployment.api_key, f"{place}.api_key", resolve_secret),
        weight=deployment.weight,
        options={
            name: _secret(value, f"{place}.options.{name}", resolve_secret) if is_reference(value) else value
            for name, value in deployment.options.items()
        },
        headers={
            name: _secret(value, f"{place}.headers.{name}", resolve_secret) if is_reference(value) else value
            for name, value in deployment.headers.items()
        },
        timeouts=OwnTimeouts(**deployment.timeouts.model_dump()),
        requests_per_minute=deployment.requests_per_minute,
        tokens_per_minute=deployment.tokens_per_minute,
        allow_media_links=deployment.allow_media_links,
        api_version=deployment.api_version,
        batch_api=deployment.batch_api,
        dialect=deployment.dialect or "",
        told_cost=None if provider is None else provider.told_cost,
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
