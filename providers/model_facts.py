"""Facts of a model by its name: context, longest answer, capabilities, service tiers and price.

All of it comes from litellm's table, which is read as data; litellm itself is not imported. A row counts only for the
provider that it is about: the same weights cost something else elsewhere.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from cost.errors import PriceTableMissing
from cost.price_book.litellm_table import LitellmTable, Row, read_table
from cost.prices import SERVICE_TIERS, Price, ServiceTier
from providers.config import DeploymentConfig, ModelConfig
from providers.known_providers import Provider, provider_at, provider_named
from providers.target import CHAT_CAPABILITIES, OWN_ENGINES, Capability

_MOST_TOKENS: Final = 100_000_000
_SERVES: Final[Mapping[str, frozenset[Capability]]] = {
    "embedding": frozenset({"embeddings"}),
    "rerank": frozenset({"rerank"}),
    "moderation": frozenset({"moderation"}),
    "image_generation": frozenset({"images"}),
    "audio_speech": frozenset({"speech"}),
    "audio_transcription": frozenset({"transcription"}),
}
"""The capability that a row's mode tells of a model that answers no chats."""
_MODES: Final = frozenset({"chat", *_SERVES})
"""The rows that this gateway can call."""
_ANSWERS_NOTHING: Final[frozenset[Capability]] = frozenset({"embeddings", "rerank", "moderation"})
_FLAGS: Final[Mapping[Capability, tuple[str, ...]]] = {
    "vision": ("supports_vision",),
    "tools": ("supports_function_calling",),
    # JSON mode is older than schemas, and has no flag of its own; whoever calls functions writes JSON.
    "json": ("supports_response_schema", "supports_function_calling"),
}


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The table's facts of one model; None where it has none. Tokens are counts, `max_input_tokens` of a prompt."""

    name: str
    """Its name in the table."""
    max_input_tokens: int | None
    max_output_tokens: int | None
    capabilities: frozenset[Capability]
    service_tiers: frozenset[ServiceTier]
    price: Price | None


class Known(msgspec.Struct, frozen=True):
    """A model's facts, and why there are none where there are none."""

    facts: ModelFacts | None
    why_not: str = ""

    def capabilities_of(self, model: ModelConfig) -> frozenset[Capability] | None:
        """Return the model's capabilities by its configuration, else by these facts; None where neither says."""
        if model.capabilities is not None:
            return model.capabilities
        return None if self.facts is None else self.facts.capabilities


@functools.cache
def bundled_table() -> LitellmTable:
    """Return the installed litellm's table, or the part that comes with the gateway, read once a process. Raises
    PriceTableMissing.
    """
    return read_table()


def facts_of(model: ModelConfig, rest: str | None = None) -> Known:
    """Return the known facts of a configured model; `rest` is what a wildcard's `*` stands for."""
    if not needs_facts(model):
        return Known(None)
    names = list(_names(model, rest))
    if not names:
        return Known(None, "no table knows a model that you run yourself")
    try:
        table = bundled_table()
    except PriceTableMissing as missing:
        return Known(None, str(missing))
    found = _find(table, names)
    if found is not None:
        return Known(_facts(*found, table))
    tried = " or ".join(f"`{candidate}`" for candidate in dict.fromkeys(candidate for _, candidate in names))
    return Known(None, f"the table of litellm {table.release} has no {tried}{table.lacks}")


def listed_price(model: ModelConfig) -> tuple[str, Price] | None:
    """Return the row of the table that a configured model is found under, whatever the file says itself, and its price; None without one."""
    try:
        table = bundled_table()
    except PriceTableMissing:
        return None
    found = _find(table, _names(model, None))
    price = None if found is None else table.price(found[0])
    return None if found is None or price is None else (found[0], price)


def _find(table: LitellmTable, names: Iterable[tuple[str, str]]) -> tuple[str, Row] | None:
    for provider, candidate in names:
        row = table.rows.get(candidate)
        if row is not None and row.get("mode") in _MODES and _is_of(row, provider):
            return candidate, row
    return None


def needs_facts(model: ModelConfig) -> bool:
    """Return True when the configuration leaves out something that a table may know."""
    given = (model.prices, model.max_context_tokens, model.max_output_tokens, model.capabilities)
    return any(each is None for each in given)


def names_under(model: ModelConfig) -> tuple[str, ...]:
    """Return what the `*` of a wildcard entry stands for, as far as the table knows the upstream's names; sorted."""
    patterns = [
        (provider, _name_of(model.upstream_of(deployment), deployment).partition("*"))
        for deployment in model.deployments
        for provider in _providers(model, deployment)
    ]
    if not patterns:
        return ()
    try:
        table = bundled_table()
    except PriceTableMissing:
        return ()
    found = set()
    for name, row in table.rows.items():
        if row.get("mode") in _MODES:
            for provider, (begins, _, ends) in patterns:
                bare = name.removeprefix(f"{provider}/")
                if _is_of(row, provider) and bare.startswith(begins) and bare.endswith(ends):
                    found.add(bare[len(begins) : len(bare) - len(ends)])
    return tuple(sorted(found - {""}))


def _names(model: ModelConfig, rest: str | None) -> Iterator[tuple[str, str]]:
    """Yield pairs of a provider and a name in the table, the likeliest first. An empty provider takes any."""
    if model.known_as is not None:
        if model.known_as:
            yield "", model.known_as
            # As litellm calls it, with a provider whose names have none before them there.
            prefix, _, name = model.known_as.partition("/")
            known = provider_named(prefix)
            if name and known is not None and known.prices:
                yield known.prices, f"{known.prices}/{name}"
                yield known.prices, name
        return
    for deployment in model.deployments:
        upstream = _name_of(model.upstream_of(deployment, rest), deployment)
        for provider in _providers(model, deployment):
            yield provider, f"{provider}/{upstream}"
            yield provider, upstream
        yield from _of_maker(upstream, deployment)


def _name_of(upstream: str, deployment: DeploymentConfig) -> str:
    """Return the model's name without the provider that litellm has before it."""
    return upstream.partition("/")[2] if deployment.kind == "litellm" else upstream


def _of_maker(upstream: str, deployment: DeploymentConfig) -> Iterator[tuple[str, str]]:
    """Yield the names under which the maker sells a model that a host passes on at the maker's price."""
    host = provider_of(deployment)
    maker, _, name = upstream.partition("/")
    sold_by = provider_named(maker) if host is not None and maker in host.makers else None
    if sold_by is not None and name:
        for each in dict.fromkeys((name, name.replace(".", "-"))):
            yield sold_by.prices, f"{sold_by.prices}/{each}"
            yield sold_by.prices, each


def provider_of(deployment: DeploymentConfig) -> Provider | None:
    """Return the provider that a deployment names, else the one whose host its address has."""
    named = provider_named(deployment.provider) if deployment.provider is not None else None
    return named or provider_at(deployment.base_url)


def _providers(model: ModelConfig, deployment: DeploymentConfig) -> Iterator[str]:
    """Yield the table's names of a deployment's provider, none for an engine of one's own."""
    if deployment.kind in OWN_ENGINES or deployment.kind == "scripted":
        return
    if deployment.kind == "litellm":
        yield (deployment.upstream_model or "").partition("/")[0]
        return
    known = provider_of(deployment) or provider_named("azure" if deployment.kind == "azure" else model.provider)
    yield model.provider.lower() if known is None else known.prices or known.name


def _is_of(row: Row, provider: str) -> bool:
    """Return True when a row is about a provider; litellm tells some apart by their wire, such as `bedrock_converse`."""
    said = row.get("litellm_provider")
    return isinstance(said, str) and (
        not provider or said == provider or said.startswith((f"{provider}-", f"{provider}_converse"))
    )


def _facts(name: str, row: Row, table: LitellmTable) -> ModelFacts:
    serves = _SERVES.get(str(row.get("mode")))
    reads_only = serves is not None and serves <= _ANSWERS_NOTHING
    price = table.price(name)
    return ModelFacts(
        name=name,
        # Where there is no other, `max_tokens` of a chat model may be its longest answer.
        max_input_tokens=_tokens(row.get("max_input_tokens"))
        or (_tokens(row.get("max_tokens")) if reads_only else None),
        max_output_tokens=None if reads_only else _tokens(row.get("max_output_tokens")),
        capabilities=serves
        if serves is not None
        else frozenset(each for each in CHAT_CAPABILITIES if any(row.get(flag) is True for flag in _FLAGS[each])),
        service_tiers=frozenset(
            tier for tier in SERVICE_TIERS if price is not None and getattr(price, tier) is not None
        ),
        price=price,
    )


def _tokens(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST_TOKENS
    return value if is_count else None
