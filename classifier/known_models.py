"""Models known by name: from the name at a provider, a host or an engine to the model's row in the manifest.

A wrong match is worse than none. A name is known when it is one of `known_models.toml`'s, once what says where the model runs,
in which numbers it is stored, or on which day it was released is taken off; anything else that is added to a name makes
another model of it, which nobody here knows.
"""

import functools
import re
import tomllib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal

import msgspec

from classifier.shipped_rows import shipped_rows

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Reasoning efforts, rising. `none` is without thinking."""
LIST: Final = Path(__file__).with_name("known_models.toml")

_MAX_NAME: Final = 200
_MAX_CACHED: Final = 4_096
_MAX_STRIPPED: Final = 6
_NEAREST: Final = 3
_ALIKE: Final = 0.6
_REGION: Final = re.compile(r"[a-z]{2}(-gov)?-[a-z]+-\d")
_BEDROCK: Final = re.compile(
    r"^(?:(?:us|eu|apac|global|jp|au|ca|us-gov)\.)?"
    r"(ai21|amazon|anthropic|cohere|deepseek|google|meta|minimax|mistral|moonshot|moonshotai|nvidia|openai|qwen|xai|zai)\."
)
_BEDROCK_VERSION: Final = re.compile(r"(?:-v[1-9])?(?::\d+)?(?::\d+k)?$")
_ARN: Final = re.compile(r"^arn:aws[a-z-]*:bedrock:[^/]*:(?:foundation-model|inference-profile)/(.+)$")
_FAMILY: Final = re.compile(r"\b(gemma|granite|llama|mixtral|phi|qwen)-?v?(?=\d)")
_FIREWORKS_POINT: Final = re.compile(r"(?<=\d)p(?=\d)")
_BASE_WEIGHTS: Final = re.compile(r"^(?:meta-)?llama-3(?:\.1)?-\d+b$")
_TAKEN_OFF: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r":(?:free|nitro|floor|exacto|extended|beta|online)$",
        r"(?<=-gguf):(?:latest|b?f16|(?:ud-)?i?q\d[a-z0-9_-]*)$",
        r"[-@]20\d\d-?\d\d-?\d\d$",
        r"(?:-latest|@latest|@default|@00\d|-maas|-hf)$",
        r"-(?:dynamic|unsloth|mlx|gguf|quantized)$",
        r"-(?:fp8|fp16|bf16|fp4|nvfp4|mxfp4|awq|gptq|int[48]|[48]bit|bnb-4bit|awq-int4|gptq-int[48]|w4a16|w8a8|w8a16)$",
        r"\.(?:w4a16|w8a8|w8a16)$",
        r"(?<=b)-(?:q\d[a-z0-9_]*|it-qat|qat)$|-(?:q\d(?:_[a-z0-9]+)*)$",
        r"(?<=instruct)-(?:turbo(?:-free)?|lite|reference)$",
        r"(?<=:)(.*)-(?:instruct|it|chat)$",
    )
)
_PREFIXES: Final = re.compile(r"^(?:databricks-|meta-(?=llama))")
_NAMED_EFFORT: Final = re.compile(rf"^(.+)@({'|'.join(EFFORTS)})$")


class KnownModel(msgspec.Struct, frozen=True):
    """A model that the classifier can judge without a word of configuration."""

    name: str
    """Its canonical name."""
    row: str
    """The key of its row among the manifest's abilities."""
    effort: str
    """The reasoning effort of the row; empty where the model has no such choice."""
    basis: Literal["outcomes", "published"]
    extrapolated: bool


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model of `known_models.toml`, which says what each field means."""

    name: str
    provider: str
    released: str
    aliases: tuple[str, ...] = ()
    efforts: tuple[str, ...] = ()
    default: str = ""
    thinks: bool = False
    outcomes: str = ""

    def row(self, effort: str) -> str:
        """Return the manifest's key of this model at one of its efforts."""
        return self.outcomes or (f"{self.name}@{effort}" if self.efforts else self.name)

    def at(self, effort: str) -> str:
        """Return the own effort that a request for `effort` gets; the default for an empty or a strange one."""
        if effort in self.efforts or not self.efforts:
            return effort if self.efforts else ""
        if effort not in EFFORTS:
            return self.default
        wanted = EFFORTS.index(effort)
        ranks = {own: EFFORTS.index(own) for own in self.efforts}
        # Whoever asks for some thinking gets some, and whoever asks for hardly any gets none, where there are just these two.
        thinking = EFFORTS.index("low")
        same_side = {own: rank for own, rank in ranks.items() if (rank >= thinking) == (wanted >= thinking)} or ranks
        return min(same_side, key=lambda own: abs(same_side[own] - wanted))


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hosts: frozenset[str]
    models: list[Listed]
    fixed: dict[str, str]


def known_model(names: Iterable[str], effort: str = "") -> KnownModel | None:
    """Return the first of the names that is a known model's, at the given reasoning effort or the one next to it.

    An empty effort is the provider's default. None where no name is known, or the model that ships has no row for it.
    """
    return next((found for name in names if (found := _known(name, effort)) is not None), None)


@functools.lru_cache(_MAX_CACHED)
def _known(name: str, effort: str) -> KnownModel | None:
    found = listed(name)
    if found is None:
        return None
    model, fixed = found
    at = model.at(fixed or effort)
    shipped = _shipped_rows().get(model.row(at))
    if shipped is None:
        return None
    return KnownModel(model.name, model.row(at), "" if model.outcomes else at, shipped.basis, shipped.extrapolated)


def efforts_of(name: str) -> tuple[str, ...]:
    """Return the reasoning efforts of a known model, rising; none where it has no such choice or is not known."""
    found = listed(name)
    return found[0].efforts if found is not None else ()


def nearest_names(name: str) -> tuple[str, ...]:
    """Return up to three canonical names like this one, the likest first."""
    models = known_models()
    keys = {_key(each): model.name for model in models for each in (*model.aliases, model.name)}
    tail = _key(name[:_MAX_NAME].rsplit("/", 1)[-1])
    close = get_close_matches(tail, keys, n=4 * _NEAREST, cutoff=_ALIKE)
    return tuple(dict.fromkeys(keys[each] for each in close))[:_NEAREST]


@functools.cache
def known_models() -> tuple[Listed, ...]:
    """Return every model of the list."""
    return tuple(_list().models)


@functools.lru_cache(_MAX_CACHED)
def listed(name: str) -> tuple[Listed, str] | None:
    """Return the model that a name means, and the effort that the name fixes, if any."""
    text = name.strip().lower()
    if not text or len(text) > _MAX_NAME:
        return None
    keys = _keys()
    for form in _forms(text):
        found = keys.get(_key(form))
        if found is not None:
            return found
    named = _NAMED_EFFORT.match(text)
    if named is not None:
        model = keys.get(_key(named[1]))
        return (model[0], named[2]) if model is not None and named[2] in model[0].efforts else None
    return None


@functools.cache
def _list() -> _List:
    return msgspec.convert(tomllib.loads(LIST.read_text()), _List)


@functools.cache
def _keys() -> dict[str, tuple[Listed, str]]:
    found = {}
    by_name = {model.name: model for model in known_models()}
    for model in known_models():
        for name in (model.name, *model.aliases):
            found[_key(name)] = (model, "")
    for name, meant in _list().fixed.items():
        at, _, effort = meant.partition("@")
        found[_key(name)] = (by_name[at], effort)
    return found


_shipped_rows: Final = functools.cache(shipped_rows)


def _key(name: str) -> str:
    return _FAMILY.sub(r"\1-", name.lower().replace("_", "-").replace(".", "-"))


def _forms(text: str) -> Iterator[str]:
    """Yield the name as given, then without one part after another that does not tell models apart."""
    yield text
    form = _without_place(text)
    if form is None:
        return
    for _ in range(_MAX_STRIPPED):
        yield form
        shorter = _PREFIXES.sub("", form)
        if shorter == form:
            shorter = next((cut for each in _TAKEN_OFF if (cut := _cut(each, form)) != form), form)
        if shorter == form:
            break
        form = shorter
    # Ollama's names without a tag, which no other host has.
    yield f"{form}:latest"


def _cut(pattern: re.Pattern[str], form: str) -> str:
    found = pattern.search(form)
    if found is None:
        return form
    return form[: found.start()] + (found[1] if pattern.groups else "")


def _without_place(text: str) -> str | None:
    """Return the name without its host, vendor and region; None where somebody else stands there."""
    if text.startswith("arn:"):
        found = _ARN.match(text)
        if found is None:
            return None
        text = found[1]
    *places, tail = text.split("/")
    hosts = _list().hosts
    if not all(place in hosts or _REGION.fullmatch(place) for place in places):
        return None
    if "meta-llama" in places and _BASE_WEIGHTS.match(tail):
        # On Hugging Face and OpenRouter these are the weights before they were taught to follow instructions.
        return None
    if {"ollama", "ollama_chat"}.intersection(places) and ":" not in tail:
        return f"{tail}:latest"
    if "fireworks" in places or "fireworks_ai" in places:
        tail = _FIREWORKS_POINT.sub(".", tail)
    bedrock = _BEDROCK.match(tail)
    if bedrock is None:
        return tail
    tail = _BEDROCK_VERSION.sub("", tail[bedrock.end() :], count=1)
    return tail if bedrock[1] != "deepseek" or tail.startswith("deepseek") else f"deepseek-{tail}"
