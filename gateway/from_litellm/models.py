"""LiteLLM's `model_list` as `providers.models`: entries of one name are deployments of one model, or several models in order."""

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import msgspec

from gateway.configuration.file import Value
from gateway.from_litellm.deployments import Entry, Translator, Unusable
from gateway.from_litellm.key_words import tell_by_table, words_for
from gateway.from_litellm.prices import is_price, number_in, prices_of
from gateway.from_litellm.source import Source, Variables
from gateway.from_litellm.told import Account, Item
from providers.target import CHAT_CAPABILITIES
from proxy.parse.chat_request import AUTO

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}", re.ASCII)
_WILDCARD: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._:@/-]{0,126})?\*", re.ASCII)
_CAPABILITIES: Final = {
    "embedding": ["embeddings"],
    "image_generation": ["images"],
    "audio_speech": ["speech"],
    "audio_transcription": ["transcription"],
    # LiteLLM reads a mode in few places, so that people's own words for it work there.
    "embeddings": ["embeddings"],
    "image": ["images"],
    "tts": ["speech"],
    "transcription": ["transcription"],
    "rerank": ["rerank"],
    "moderation": ["moderation"],
    "moderations": ["moderation"],
}
_CHATS: Final = frozenset({"chat", "completion", "responses", "batch", ""})
_SUPPORTS: Final = {
    "supports_vision": "vision",
    "supports_function_calling": "tools",
    "supports_tool_choice": "tools",
    "supports_response_schema": "json",
}
_LENGTHS: Final = {"max_input_tokens": "max_context_tokens", "max_output_tokens": "max_output_tokens"}
_MOST_LENGTH: Final = {"max_context_tokens": 100_000_000, "max_output_tokens": 10_000_000}
_MOST_WEIGHT: Final = 1_000
_OTHER_AUTO: Final = "auto-of-litellm"
_ROUTERS_DEFAULTS: Final = ("complexity_router_default_model", "auto_router_default_model")
_AUTO_ROUTER: Final = "auto_router/"
MOST_MODELS: Final = 1_000


class Models(msgspec.Struct, kw_only=True):
    """What `model_list` came to."""

    written: list[dict[str, Any]] = []
    aliases: dict[str, Any] = {}
    names: dict[str, list[str]] = {}
    """The models behind each name of LiteLLM's, in order."""
    groups: dict[str, list[str]] = {}
    """The names in each of LiteLLM's access groups."""


class _Facts(msgspec.Struct, kw_only=True):
    """What an entry says of its model, beside where it is called."""

    prices: dict[str, Any] | None = None
    written: dict[str, Any] = {}
    groups: list[str] = []


def translate_models(
    source: Source, account: Account, translator: Translator, variables: Variables, *, by_rpm: bool
) -> Models:
    """Return the models. `by_rpm`: LiteLLM shares traffic out by the entries' `rpm`."""
    models = Models()
    entries: dict[str, list[Entry]] = {}
    routers: list[tuple[Item, str, dict[str, Item]]] = []
    for item in source.items("model_list"):
        found = _params(item, account, variables)
        if found is None:
            continue
        name, params = found
        if str(params["model"].value).startswith(_AUTO_ROUTER) if "model" in params else False:
            routers.append((item, name, params))
            continue
        try:
            entry = translator.entry(item, name, params, _below(item, "model_info"))
        except Unusable:
            continue
        entries.setdefault(name, []).append(entry)
    for name, of_name in entries.items():
        if len(models.written) + len(of_name) > MOST_MODELS:
            account.tell(of_name[0].item, "not possible", f"more than {MOST_MODELS} models cannot be configured")
            continue
        _write(models, account, name, of_name, by_rpm=by_rpm)
    for item, name, params in routers:
        _write_router(models, account, item, name, params)
    return models


def _params(item: Item, account: Account, variables: Variables) -> tuple[str, dict[str, Item]] | None:
    """Return an entry's name and parameters; None for what is no entry. It tells what stands beside these."""
    if not isinstance(item.value, dict):
        account.tell(item, "not possible", "an entry has `model_name` and `litellm_params`; it was left out")
        return None
    params = _below(item, "litellm_params")
    named = item.value.get("model_name")
    name = variables.resolved(named)
    for key, value in item.value.items():
        if key not in {"model_name", "litellm_params", "model_info"}:
            # LiteLLM takes some keys of an entry beside `litellm_params`, and has no use for most.
            account.tell(
                item.at(key, value=value), "not possible", "not within `litellm_params`: LiteLLM does not read it there"
            )
    if not params:
        account.tell(item, "not possible", "the entry has no `litellm_params`; it was left out")
        return None
    if not isinstance(name, str | int) or not str(name).strip():
        # What LiteLLM does, too.
        name = str(params["model"].value) if "model" in params else ""
        account.tell(item.at("model_name"), "changed", f"it has no name: {name[:80]}")
    return str(name).strip(), params


def _below(item: Item, key: str) -> dict[str, Item]:
    found = item.value.get(key) if isinstance(item.value, dict) else None
    return {name: item.at(key, name, value=value) for name, value in found.items()} if isinstance(found, dict) else {}


def _write(models: Models, account: Account, name: str, entries: list[Entry], *, by_rpm: bool) -> None:
    facts = {id(each): _Reading(each, account).facts() for each in entries}
    for group in dict.fromkeys(group for each in entries for group in facts[id(each)].groups):
        models.groups.setdefault(group, []).append(name)
    kinds = _alike(entries, facts)
    model_id = _model_id(name, models)
    for each in entries[1:]:
        account.tell(each.item.at("model_name"), "changed", f"one more entry of the name {name[:80]}")
    made = [model_id] if len(kinds) == 1 else _numbered(model_id, len(kinds), models)
    for own, of_kind in zip(made, kinds, strict=True):
        models.written.append(_model(own, of_kind, facts, by_rpm=by_rpm))
    models.names[name] = made
    if name != AUTO and made != [name]:
        models.aliases[name] = made[0] if len(made) == 1 else made
    _tell_name(account, entries, made)


def _numbered(model_id: str, many: int, models: Models) -> list[str]:
    return [_free(f"{model_id.rstrip('*')}--{number}", models) for number in range(1, many + 1)]


def _tell_name(account: Account, entries: list[Entry], made: list[str]) -> None:
    where, name = entries[0].item.at("model_name"), entries[0].name
    if len(made) > 1:
        words = f"entries of one name that are other models, cost otherwise or have another order: {', '.join(made)}, tried in this order"
    elif name == AUTO:
        words = f"the model {made[0]}: callers who send `{AUTO}` let the gateway choose"
    elif made != [name]:
        words = f"the model {made[0]}, and an alias of the old name"
    elif len(entries) > 1:
        words = f"{len(entries)} entries of one name: deployments of one model, shared by `weight`"
    else:
        account.tell(where, "kept", "`model_id`")
        return
    account.tell(where, "changed", words)


def _alike(entries: list[Entry], facts: dict[int, _Facts]) -> list[list[Entry]]:
    """Return the entries in groups of those that are one model at one price, in the order in which they are tried."""
    found: dict[tuple[Any, ...], list[Entry]] = {}
    is_wildcard = entries[0].name.endswith("*")
    for each in sorted(entries, key=lambda entry: entry.order):
        mine = facts[id(each)]
        facts_beside = sorted((name, value) for name, value in mine.written.items() if name != "known_as")
        key = (each.order, _same_name(each), repr(mine.prices), repr(facts_beside))
        found.setdefault(("",) if is_wildcard else key, []).append(each)
    return list(found.values())


def _same_name(entry: Entry) -> str:
    """Return a model's name as all its hosts have it: without maker, date and capitals."""
    name = (entry.known_as.rpartition("/")[2] or entry.bare.rpartition("/")[2]).lower()
    return re.sub(r"(-\d{4}-\d{2}-\d{2}|-\d{8}(-v\d+(:\d+)?)?|-latest)\Z", "", name)


def _model_id(name: str, models: Models) -> str:
    if _NAME.fullmatch(name) or _WILDCARD.fullmatch(name):
        return _free(_OTHER_AUTO, models) if name == AUTO else name
    slug = re.sub(r"[^A-Za-z0-9._:@/-]+", "-", name).strip("-./:@")[:100] or "model"
    return _free(slug, models)


def _free(name: str, models: Models) -> str:
    taken = {each["model_id"] for each in models.written} | set(models.names)
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


def _model(model_id: str, entries: list[Entry], facts: dict[int, _Facts], *, by_rpm: bool) -> dict[str, Any]:
    first = facts[id(entries[0])]
    model: dict[str, Any] = {"model_id": model_id, "provider": entries[0].provider}
    if first.prices is not None:
        model["prices"] = first.prices
    model |= first.written
    if any("known_as" not in facts[id(each)].written for each in entries):
        model.pop("known_as", None)
    if by_rpm and len(entries) > 1:
        _weigh_by_rpm(entries)
    if len(entries) == 1:
        written = dict(entries[0].written)
        upstream = written.pop("upstream_model")
        if not model_id.endswith("*") and written.get("kind") != "litellm":
            written.pop("provider", None)
            return {"model_id": model_id, "provider": entries[0].provider, "model": upstream, **written} | {
                key: value for key, value in model.items() if key not in {"model_id", "provider"}
            }
    model["deployments"] = [{"name": f"d{number}", **each.written} for number, each in enumerate(entries, 1)]
    return model


def _weigh_by_rpm(entries: list[Entry]) -> None:
    rates = [each.weight_by_rpm for each in entries]
    if any("weight" in each.written for each in entries) or None in rates or len(set(rates)) == 1:
        return
    largest = max(rate for rate in rates if rate is not None)
    for each, rate in zip(entries, rates, strict=True):
        share = (
            Decimal(rate or 1)
            * (_MOST_WEIGHT if largest > _MOST_WEIGHT else 1)
            / (largest if largest > _MOST_WEIGHT else 1)
        )
        each.written["weight"] = max(share.quantize(Decimal("0.001")), Decimal("0.001"))


class _Reading:
    """The reading of one entry's `model_info`: each key is told once."""

    def __init__(self, entry: Entry, account: Account) -> None:
        self._entry = entry
        self._account = account
        self._facts = _Facts()
        self._costs = dict(entry.costs)
        self._told_costs: dict[str, Item] = dict(entry.told_costs)
        self._notes: list[str] = []
        self._mode = ""
        self._cannot: set[str] = set()

    def facts(self) -> _Facts:
        """Return what an entry says of its model, and tell it."""
        facts, entry = self._facts, self._entry
        for key, item in entry.info.items():
            self._one(key, item)
        if self._mode in _CAPABILITIES:
            facts.written["capabilities"] = _CAPABILITIES[self._mode]
        elif self._cannot:
            facts.written["capabilities"] = sorted(CHAT_CAPABILITIES - self._cannot)
        if entry.known_as and _is_word(entry.known_as):
            facts.written["known_as"] = entry.known_as
        if self._costs:
            facts.prices = prices_of(self._costs, self._mode)
        self._tell_costs()
        self._tell_notes()
        if self._costs and facts.prices is None:
            words = "its own prices make none (docs/books.md); write `prices`"
            self._account.tell(entry.item.at("model_info"), "not possible", words)
        _settle_lengths(facts)
        return facts

    def _one(self, key: str, item: Item) -> None:
        if key == "mode":
            self._take_mode(item)
        elif is_price(key):
            self._costs[key] = item.value
            self._told_costs[key] = item
        elif key == "base_model":
            self._entry.known_as = str(item.value or "")
            self._account.tell(item, "kept", "`known_as`")
        elif key in _LENGTHS or key == "max_tokens":
            self._length(key, item)
        elif key in _SUPPORTS:
            self._support(key, item)
        else:
            if key == "access_groups" and isinstance(item.value, list):
                self._facts.groups = [str(each) for each in item.value]
            if words_for("model_info", key) is None:
                self._notes.append(key)
            else:
                tell_by_table(self._account, "model_info", key, item)

    def _tell_costs(self) -> None:
        """Tell each price: kept, unless the prices are the same without it."""
        for key, item in self._told_costs.items():
            rest = {name: value for name, value in self._costs.items() if name != key}
            number, prices = number_in(self._costs[key]), self._facts.prices
            if number != 0 and prices is not None and rest and prices == prices_of(rest, self._mode):
                self._account.tell(
                    item, "not possible", "not charged beside the others; write `prices` (docs/books.md)"
                )
            else:
                self._account.tell(item, "kept", "`prices`, for a million tokens")

    def _tell_notes(self) -> None:
        """Tell what LiteLLM gives back at `/model/info` and has no other use for, in one line for an entry."""
        if self._notes:
            words = f"LiteLLM gives it back at /model/info; here is no place for {', '.join(self._notes)}"
            self._account.tell(self._entry.item.at("model_info"), "not possible", words)

    def _take_mode(self, item: Item) -> None:
        self._mode = str(item.value or "")
        if self._mode in _CAPABILITIES:
            self._account.tell(item, "kept", "`capabilities`")
        elif self._mode in _CHATS:
            self._account.tell(item, "not needed", "models chat unless they say otherwise")
        else:
            self._account.tell(item, "not possible", f"nothing here is of the mode {self._mode[:40]}")

    def _support(self, key: str, item: Item) -> None:
        if _is_true(item.value):
            self._account.tell(item, "not needed", "a model is taken to do what nobody says it cannot")
        else:
            self._cannot.add(_SUPPORTS[key])
            self._account.tell(item, "kept", "`capabilities`")

    def _length(self, key: str, item: Item) -> None:
        number, written = number_in(item.value), self._facts.written
        name = _LENGTHS.get(key, "max_output_tokens")
        if number is None or not 1 <= number <= _MOST_LENGTH[name]:
            self._account.tell(item, "not possible", "no length")
        elif key == "max_tokens" and "max_output_tokens" in written:
            self._account.tell(item, "not needed", "`max_output_tokens` says it")
        elif key == "max_input_tokens":
            written[name] = int(number)
            self._account.tell(item, "changed", f"`{name}`, prompt and answer together")
        else:
            written[name] = int(number)
            self._account.tell(item, "kept", f"`{name}`")


def _settle_lengths(facts: _Facts) -> None:
    context, answer = facts.written.get("max_context_tokens"), facts.written.get("max_output_tokens")
    if context is not None and answer is not None and answer > context:
        del facts.written["max_output_tokens"]


def _is_true(value: Value) -> bool:
    return value is True or str(value).lower() in {"true", "yes", "on", "1"}


def _is_word(text: str) -> bool:
    return re.fullmatch(r"\S{1,256}", text) is not None


def _write_router(models: Models, account: Account, item: Item, name: str, params: dict[str, Item]) -> None:
    """Write LiteLLM's router by complexity as an alias by which the gateway chooses among the same models."""
    config = params.get("complexity_router_config")
    tiers = config.value.get("tiers") if config is not None and isinstance(config.value, dict) else None
    wanted = [str(value) for value in _leaves(tiers)]
    wanted += [str(params[key].value) for key in _ROUTERS_DEFAULTS if key in params]
    targets = list(dict.fromkeys(own for each in wanted for own in models.names.get(each, ()) if not own.endswith("*")))
    alias = name if name != AUTO else _OTHER_AUTO
    if not targets:
        account.tell(
            item, "not possible", "its models are not among those of the file; callers send `auto` (docs/policy.md)"
        )
        return
    models.aliases[alias] = {"auto": targets}
    account.tell(item, "changed", f"the alias {alias}: the gateway chooses among {', '.join(targets)} (docs/policy.md)")


def _leaves(value: Value) -> Iterable[Value]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, str):
        yield value
