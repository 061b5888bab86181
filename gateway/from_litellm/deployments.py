"""One entry of LiteLLM's `model_list`, as a deployment of ours."""

import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from pydantic import ValidationError

from gateway.configuration.file import Value
from gateway.from_litellm.key_words import tell_by_table
from gateway.from_litellm.prices import is_price, number_in
from gateway.from_litellm.secrets import Secrets
from gateway.from_litellm.source import Variables, name_in
from gateway.from_litellm.told import Account, Item
from providers.config import DeploymentConfig
from providers.known_providers import Provider, provider_at, provider_named
from providers.private_addresses import is_inside

_AZURE_API_VERSION: Final = "2025-02-01-preview"
"""What LiteLLM asks Azure for where nobody says."""
_UNKNOWN_ADDRESS: Final = "http://{}.invalid/v1"
"""An address that leads nowhere by definition, and passes the check of a configuration."""
_AZURE_PATH: Final = re.compile(r"/openai(/deployments/(?P<name>[^/?]+).*|/v1/?)?(\?.*)?\Z|/?(\?.*)?\Z")
_NAMES_A_SECRET: Final = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)\Z", re.IGNORECASE)
_CALLED: Final = re.compile(r"/(chat/completions|completions|embeddings|messages|responses)/?\Z")
_DEFAULTS: Final = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "stop",
        "n",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "min_p",
        "logit_bias",
        "extra_body",
        "thinking",
        "reasoning",
        "reasoning_effort",
        "verbosity",
        "response_format",
        "tools",
        "tool_choice",
        "web_search_options",
        "service_tier",
        "metadata",
        "stream",
        "safety_settings",
        "chat_template_kwargs",
        "think",
        "num_ctx",
        "keep_alive",
        "input_type",
        "dimensions",
        "encoding_format",
        "user",
        "parallel_tool_calls",
        "prompt_id",
        "store",
        "modalities",
        "prompt_cache_key",
        "truncate",
        "provider",
        "reasoning_split",
        "litellm_metadata",
    }
)
"""Fields of requests that an entry of LiteLLM's sets where the caller does not."""
_OPTIONS: Final = re.compile(
    r"(aws|vertex|watsonx|sagemaker|databricks|snowflake|oci|gigachat)_[a-z_]+|azure_ad_token|azure_scope|tenant_id|client_id|client_secret|"
    r"azure_username|azure_password|s3_bucket_name|gcs_bucket_name|model_id|hf_model_name|use_in_region|account_id|space_id|project_id|deployment_id"
)
"""Keyword arguments of litellm's that belong to one provider."""
_SECRET: Final = re.compile(r"key|secret|token|password|credential", re.IGNORECASE)
_SECRET_HEADER: Final = re.compile(r"auth|key|secret|token|password|credential|cookie|signature", re.IGNORECASE)
_MOST: Final[Mapping[str, int]] = {"requests_per_minute": 10_000_000, "tokens_per_minute": 10_000_000_000}
_NO_LITELLM_KIND: Final = "only kind litellm has it"


class _Bare(msgspec.Struct, frozen=True):
    begins: tuple[str, ...]
    provider: str


class _Names(msgspec.Struct, frozen=True):
    names: tuple[str, ...]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    openai_compatible: tuple[str, ...]
    default_keys: dict[str, str]
    through_litellm: _Names
    bare: tuple[_Bare, ...]


@cache
def _table() -> _Table:
    file = Path(__file__).with_name("providers.toml")
    return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _Table)


class Entry(msgspec.Struct, kw_only=True):
    """What an entry came to: its deployment as we write it, and what else is known of its model."""

    item: Item
    name: str
    provider: str
    bare: str
    """The model's name without its provider, by which entries of one name are told to be the same model."""
    written: dict[str, Any] = {}
    costs: dict[str, Value] = {}
    told_costs: dict[str, Item] = {}
    info: dict[str, Item] = {}
    order: int = 0
    weight_by_rpm: int | None = None
    known_as: str = ""


class Unusable(Exception):
    """An entry that makes no deployment; why was told."""


class Translator:
    """Makes deployments of entries. All entries of a configuration share one, so that a secret has one name."""

    def __init__(
        self, account: Account, secrets: Secrets, variables: Variables, credentials: Mapping[str, dict[str, Item]]
    ) -> None:
        self._account = account
        self._secrets = secrets
        self._variables = variables
        self._credentials = credentials

    def entry(self, item: Item, name: str, params: dict[str, Item], info: dict[str, Item]) -> Entry:
        """Return the entry as ours. Raises Unusable."""
        return _Reading(self._account, self._secrets, self._variables, self._with_credential(params)).entry(
            item, name, info
        )

    def _with_credential(self, params: dict[str, Item]) -> dict[str, Item]:
        named = params.get("litellm_credential_name")
        if named is None:
            return params
        found = self._credentials.get(str(named.value))
        if found is None:
            self._account.tell(named, "not possible", f"there is no credential {str(named.value)[:60]}")
            return params
        self._account.tell(named, "changed", "its values stand beside the model")
        rest = {key: value for key, value in params.items() if key != "litellm_credential_name"}
        return {**found, **rest}


class _Reading:
    """The reading of one entry's `litellm_params`: each key is told once."""

    def __init__(self, account: Account, secrets: Secrets, variables: Variables, params: dict[str, Item]) -> None:
        self._account = account
        self._secrets = secrets
        self._variables = variables
        self._left = dict(params)

    def entry(self, item: Item, name: str, info: dict[str, Item]) -> Entry:
        model_item, model = self._model(item)
        prefix, bare, row = self._provider(model_item, model)
        if model == "*":
            self._account.tell(
                model_item,
                "changed",
                "LiteLLM finds the provider by each name; here `*` is one provider: add `anthropic/*` and others",
            )
        entry = Entry(item=item, name=name, provider="", bare=bare, info=info)
        self._address(entry, model_item, prefix, row)
        self._rest(entry, row)
        return entry

    def _model(self, item: Item) -> tuple[Item, str]:
        model_item = self._left.pop("model", None)
        if model_item is None or model_item.value is None or model_item.value == "":
            self._account.tell(
                item.at("litellm_params", "model"), "not possible", "the entry names no model; it was left out"
            )
            raise Unusable
        if not isinstance(model_item.value, str):
            self._account.tell(model_item, "not possible", "`model` is a text; the entry was left out")
            raise Unusable
        found = self._variables.resolved(model_item.value)
        if not isinstance(found, str) or not found.strip("/ "):
            self._account.tell(
                model_item,
                "not possible",
                "its variable is not set here, so the entry was left out; set it and import again",
            )
            raise Unusable
        return model_item, found.strip()

    def _provider(self, item: Item, model: str) -> tuple[str, str, Provider | None]:
        """Return LiteLLM's name of the provider, the model's name there, and our row of it. Raises Unusable."""
        table, custom = _table(), self._left.pop("custom_llm_provider", None)
        prefix, _, rest = model.partition("/")
        if custom is not None and isinstance(custom.value, str):
            self._account.tell(custom, "kept", "`provider` or `kind`")
            prefix, rest = custom.value, model.removeprefix(f"{custom.value}/")
        elif not rest:
            prefix = next((each.provider for each in table.bare if model.startswith(each.begins)), "")
            rest = model
        elif not self._is_provider(prefix):
            # A hub's name, at an address that speaks OpenAI's API.
            prefix, rest = "", model
        if not prefix and ("api_base" in self._left or "base_url" in self._left or model == "*"):
            prefix = "openai"
        if not prefix or not self._is_provider(prefix):
            self._account.tell(
                item,
                "not possible",
                f"left out: nothing says whose model {model[:80]} is; write `provider:` or `kind` and `base_url` (docs/providers.md)",
            )
            raise Unusable
        if rest.startswith("responses/"):
            rest = rest.removeprefix("responses/")
        return prefix, rest, None if prefix in table.openai_compatible else provider_named(prefix)

    @staticmethod
    def _is_provider(prefix: str) -> bool:
        table = _table()
        return (
            prefix in table.openai_compatible
            or prefix in table.through_litellm.names
            or provider_named(prefix) is not None
        )

    def _address(self, entry: Entry, model_item: Item, prefix: str, row: Provider | None) -> None:
        """Write kind, address and the model's name."""
        compatible = prefix in _table().openai_compatible
        if row is not None and row.kind == "azure":
            self._azure(entry, model_item)
            return
        base = self._base_url(row, prefix)
        if compatible:
            self._compatible(entry, model_item, prefix, base)
        elif row is not None:
            entry.provider = row.name
            entry.written = {"provider": row.name, "upstream_model": entry.bare}
            if base and not row.is_at(base):
                entry.written["base_url"] = base
            words = f"provider {row.name}"
            self._account.tell(
                model_item,
                "kept" if row.kind != "litellm" or row.name == "anthropic" else "changed",
                words
                if row.name == "anthropic" or row.kind != "litellm"
                else f"{words}, through the package litellm (pip install 'weighbridge[litellm]')",
            )
        else:
            entry.provider = prefix.replace("_", "-")
            entry.written = {"kind": "litellm", "upstream_model": f"{prefix}/{entry.bare}"}
            if base:
                entry.written["base_url"] = base
            self._account.tell(
                model_item, "changed", "through the package litellm (pip install 'weighbridge[litellm]')"
            )

    def _compatible(self, entry: Entry, model_item: Item, prefix: str, base: str) -> None:
        known = provider_at(base) if base else provider_named("openai") if prefix != "litellm_proxy" else None
        if known is not None and known.kind == "openai":
            entry.provider = known.name
            entry.written = {"provider": known.name, "upstream_model": entry.bare}
            self._account.tell(model_item, "kept", f"provider {known.name}")
            if "api_key" not in self._left and prefix != known.name:
                self._default_key(entry, known)
            return
        if not base:
            base = _UNKNOWN_ADDRESS.format("litellm-proxy-api-base")
            self._account.tell(
                model_item, "not possible", "LITELLM_PROXY_API_BASE says where it is: write its address as `base_url`"
            )
        else:
            words = "an OpenAI-compatible address"
            if is_inside(base):
                words += (
                    "; an engine of your own is `kind: vllm` or another, which costs nothing. Links to media are not sent to this address "
                    "without `allow_media_links`"
                )
            self._account.tell(model_item, "kept", words)
        entry.provider = _provider_name(base)
        entry.written = {"kind": "openai", "base_url": base, "upstream_model": entry.bare}

    def _azure(self, entry: Entry, model_item: Item) -> None:
        base_item = self._left.pop("api_base", None) or self._left.pop("base_url", None)
        base = self._text(base_item) if base_item is not None else self._variables.value_of("AZURE_API_BASE") or ""
        found = urlsplit(base.strip()) if base else None
        path = "" if found is None else found.path + (f"?{found.query}" if found.query else "")
        shape = _AZURE_PATH.fullmatch(path)
        if found is None or not found.hostname:
            base = "https://azure-resource.invalid"
            at = base_item or model_item
            self._account.tell(
                at, "not possible", "its address is in a variable that is not set here: write it as `base_url`"
            )
        elif shape is None:
            base = f"{found.scheme}://{found.netloc}{found.path.rstrip('/')}"
        else:
            base = f"{found.scheme}://{found.netloc}"
            if base_item is not None:
                self._account.tell(base_item, "kept" if path.strip("/") == "" else "changed", "`base_url`")
        entry.provider = "azure"
        entry.written = {"provider": "azure", "base_url": base, "upstream_model": entry.bare}
        version = self._left.pop("api_version", None)
        named = self._text(version) if version is not None else ""
        is_v1 = path.strip("/") == "openai/v1" or named in {"v1", "latest", "preview"}
        if is_v1:
            entry.written["base_url"] = f"{base}/openai/v1"
        else:
            entry.written["api_version"] = named or self._variables.value_of("AZURE_API_VERSION") or _AZURE_API_VERSION
        if version is not None:
            self._account.tell(version, "changed" if is_v1 else "kept", "Azure's API without versions" if is_v1 else "")
        self._account.tell(model_item, "kept", "provider azure")
        if "api_key" not in self._left:
            entry.written["api_key"] = f"env:{_table().default_keys['azure']}"

    def _base_url(self, row: Provider | None, prefix: str) -> str:
        """Return the address that an entry names, whole; empty for none. It tells what became of it."""
        item = self._left.pop("api_base", None)
        other = self._left.pop("base_url", None)
        if item is None:
            item = other
        if item is None or item.value in {None, ""}:
            return ""
        text = self._text(item).strip().rstrip("/")
        if not text:
            variable = name_in(str(item.value)) or prefix
            unknown = _UNKNOWN_ADDRESS.format(re.sub(r"[^a-z0-9]+", "-", variable.lower()).strip("-"))
            self._account.tell(
                item, "not possible", f"{variable} is not set here: write the address in place of {unknown}"
            )
            return unknown
        if _NAMES_A_SECRET.search(name_in(str(item.value)) or ""):
            # A key without a scheme would stand in the file, and be looked up, as a host.
            text = ""
        whole = text if "://" in text else f"http://{text}"
        bare = _CALLED.sub("", whole)
        address = bare if row is None else row.whole_address(bare)
        if not re.fullmatch(r"https?://[^\s/?#@{}<>$]+(/[^\s?#{}<>$]*)?", address):
            unknown = _UNKNOWN_ADDRESS.format("address-of-" + re.sub(r"[^a-z0-9]+", "-", prefix.lower()).strip("-"))
            self._account.tell(item, "not possible", f"no plain address: write it in place of {unknown}")
            return unknown
        kept = address == str(item.value).strip().rstrip("/")
        self._account.tell(item, "kept" if kept else "changed", "`base_url`" if kept else f"`base_url: {address}`")
        return address

    def _rest(self, entry: Entry, row: Provider | None) -> None:
        self._keys(entry, row)
        for key, item in self._left.items():
            self._one(entry, key, item)
        if options := entry.written.get("options"):
            entry.written["options"] = dict(sorted(options.items()))

    def _keys(self, entry: Entry, row: Provider | None) -> None:
        item = self._left.pop("api_key", None)
        if item is None or item.value in {None, ""}:
            if item is not None:
                self._account.tell(item, "not needed", "empty")
            if row is not None:
                self._default_key(entry, row)
            elif "base_url" in entry.written and entry.written.get("kind") == "openai":
                self._account.tell(
                    entry.item.at("litellm_params"),
                    "changed",
                    "no key goes to this address; LiteLLM sent OPENAI_API_KEY",
                )
            return
        variable = row.keys[0] if row is not None and row.keys else f"{entry.provider}_API_KEY"
        reference = self._secrets.reference(item, variable)
        if reference is not None:
            entry.written["api_key"] = reference

    def _default_key(self, entry: Entry, row: Provider) -> None:
        variable = _table().default_keys.get(row.name)
        if variable is not None and "api_key" not in entry.written:
            entry.written["api_key"] = f"env:{variable}"

    def _one(self, entry: Entry, key: str, item: Item) -> None:
        simple = {
            "rpm": lambda: self._rate(entry, item, "requests_per_minute"),
            "tpm": lambda: self._rate(entry, item, "tokens_per_minute"),
            "weight": lambda: self._weight(entry, item),
            "order": lambda: self._order(entry, item),
            "timeout": lambda: self._timeout(entry, item, "total_s", 86_400),
            "request_timeout": lambda: self._timeout(entry, item, "total_s", 86_400),
            "stream_timeout": lambda: self._timeout(entry, item, "first_token_s", 3_600),
            "extra_headers": lambda: self._headers(entry, item),
            "headers": lambda: self._headers(entry, item),
            "organization": lambda: self._header(entry, item, "OpenAI-Organization"),
            "base_model": lambda: self._base_model(entry, item),
            "api_version": lambda: self._option(entry, key, item),
        }
        if key in simple:
            simple[key]()
        elif is_price(key):
            entry.costs[key] = self._variables.resolved(item.value)
            entry.told_costs[key] = item
        elif key in _DEFAULTS:
            self._account.tell(item, "not possible", "no defaults of requests: callers send it")
        elif _OPTIONS.fullmatch(key):
            self._option(entry, key, item)
        elif key == "model_info" and isinstance(item.value, dict):
            entry.info = {name: item.at(name, value=value) for name, value in item.value.items()} | entry.info
        elif item.value is None:
            self._account.tell(item, "not needed", "empty")
        else:
            tell_by_table(self._account, "litellm_params", key, item)

    def _text(self, item: Item) -> str:
        found = self._variables.resolved(item.value)
        return "" if found is None else str(found)

    def _number(self, item: Item) -> Decimal | None:
        return number_in(self._variables.resolved(item.value))

    def _rate(self, entry: Entry, item: Item, name: str) -> None:
        number = self._number(item)
        if number is None or number < 1:
            self._account.tell(item, "not possible", "no number of at least 1 is known here")
            return
        entry.written[name] = min(int(number), _MOST[name])
        if name == "requests_per_minute":
            entry.weight_by_rpm = int(number)
        self._account.tell(item, "kept", f"`{name}`")

    def _weight(self, entry: Entry, item: Item) -> None:
        number = self._number(item)
        if number is None or not 0 < number <= 1_000:  # noqa: PLR2004
            self._account.tell(item, "not possible", "a weight is above 0 and at most 1000")
            return
        entry.written["weight"] = number
        self._account.tell(item, "kept")

    def _order(self, entry: Entry, item: Item) -> None:
        entry.order = int(self._number(item) or 0)
        self._account.tell(item, "kept", "the order of targets behind one name")

    def _timeout(self, entry: Entry, item: Item, name: str, most: int) -> None:
        number = self._number(item)
        if number is None or number <= 0:
            self._account.tell(item, "not possible", "no number of seconds is known here")
            return
        entry.written.setdefault("timeouts", {})[name] = min(number, Decimal(most))
        self._account.tell(item, "kept", f"`timeouts.{name}`")

    def _headers(self, entry: Entry, item: Item) -> None:
        if not isinstance(item.value, dict):
            self._account.tell(item, "not possible", "headers are names and values")
            return
        for name, value in item.value.items():
            self._header(entry, item.at(name, value=value), name)

    def _header(self, entry: Entry, item: Item, name: str) -> None:
        text = str(item.value)
        is_secret = bool(_SECRET_HEADER.search(name)) or name_in(text) is not None
        tried = {**entry.written.get("headers", {}), name: "env:X" if is_secret else text}
        problem = _problem({"headers": tried} | ({"api_key": "env:X"} if "api_key" in entry.written else {}))
        if problem:
            self._account.tell(item, "not possible", problem)
            return
        value = self._secrets.reference(item, name) if is_secret else text
        if value is not None:
            entry.written.setdefault("headers", {})[name] = value
        if not is_secret:
            self._account.tell(item, "kept", "`headers`")

    def _base_model(self, entry: Entry, item: Item) -> None:
        entry.known_as = self._text(item)
        self._account.tell(item, "kept", "`known_as`")

    def _option(self, entry: Entry, key: str, item: Item) -> None:
        provider = entry.written.get("provider")
        row = provider_named(provider) if isinstance(provider, str) else None
        if entry.written.get("kind") != "litellm" and (row is None or row.kind != "litellm"):
            self._account.tell(item, "not possible", _NO_LITELLM_KIND)
            return
        text = str(item.value)
        if _SECRET.search(key):
            value = self._secrets.reference(item, key)
        else:
            found = name_in(text)
            value = text if found is None else f"env:{found}"
            self._account.tell(item, "kept", "`options`")
        if value is not None:
            entry.written.setdefault("options", {})[key] = value


def _problem(written: dict[str, Any]) -> str:
    """Return why a deployment with these keys is refused; empty where it is not."""
    try:
        DeploymentConfig.model_validate({"kind": "openai", "base_url": "http://host/v1"} | written)
    except ValidationError as error:
        return error.errors(include_input=False, include_url=False)[0]["msg"].removeprefix("Value error, ")
    return ""


def _provider_name(base_url: str) -> str:
    """Return a name for finance: the provider at an address, else its host."""
    known = provider_at(base_url)
    if known is not None:
        return known.name
    host = urlsplit(base_url).hostname or "openai"
    if host.endswith(".invalid"):
        return "unknown"
    found = re.sub(r"[^A-Za-z0-9._-]+", "-", host).strip("-._")[:64]
    return found or "openai"
