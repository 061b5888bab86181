"""LiteLLM's `litellm_settings`, `router_settings` and `general_settings`, as far as the file of ours has a place for them."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

import msgspec

from gateway.configuration.file import Value
from gateway.from_litellm.key_words import Place, tell_by_table
from gateway.from_litellm.models import Models
from gateway.from_litellm.prices import number_in
from gateway.from_litellm.secrets import Secrets
from gateway.from_litellm.source import Source, Variables, name_in
from gateway.from_litellm.told import Account, Item
from proxy.parse.chat_request import AUTO

SECTIONS: Final[tuple[Place, ...]] = ("litellm_settings", "router_settings", "general_settings")
_STRATEGIES: Final = {
    "simple-shuffle": ("kept", "shares of traffic by `weight`"),
    "latency-based-routing": (
        "changed",
        "shares of traffic by `weight`; late first tokens are hedged where `providers.hedging` says so",
    ),
    "least-busy": (
        "changed",
        "shares of traffic by `weight`; own engines are balanced by what they do (docs/fleet.md)",
    ),
    "usage-based-routing": (
        "changed",
        "shares of traffic by `weight`; `requests_per_minute` and `tokens_per_minute` of each are kept",
    ),
    "usage-based-routing-v2": (
        "changed",
        "shares of traffic by `weight`; `requests_per_minute` and `tokens_per_minute` of each are kept",
    ),
    "cost-based-routing": (
        "changed",
        "callers who send `auto` get the cheapest model that is good enough (docs/policy.md)",
    ),
    "provider-budget-routing": ("changed", "budgets of providers: weighbridge budgets set provider"),
}
_CALLBACKS: Final = {
    "prometheus": ("not needed", "/metrics (docs/observability.md)"),
    "prometheus_system": ("not needed", "/metrics (docs/observability.md)"),
    "otel": ("changed", "traces go to OTEL_EXPORTER_OTLP_ENDPOINT or `telemetry.otlp_endpoint`"),
    "arize_phoenix": ("changed", "traces go to OTEL_EXPORTER_OTLP_ENDPOINT or `telemetry.otlp_endpoint`"),
    "langfuse_otel": ("changed", "traces go to OTEL_EXPORTER_OTLP_ENDPOINT or `telemetry.otlp_endpoint`"),
    "langfuse": ("changed", "add the plug-in `gateway.exporters.langfuse:Langfuse` (docs/plugins.md)"),
    "s3": (
        "changed",
        "add the plug-in `gateway.exporters.parquet:…`, which writes requests to files (docs/plugins.md)",
    ),
    "s3_v2": (
        "changed",
        "add the plug-in `gateway.exporters.parquet:…`, which writes requests to files (docs/plugins.md)",
    ),
}
_BY_SENTINELS: Final = "set WEIGHBRIDGE_REDIS_URL=redis+sentinel://HOST:26379,…/SERVICE (docs/databases.md)"
_SEVERAL_REDIS: Final = {
    "redis_startup_nodes": "set WEIGHBRIDGE_REDIS_URL=redis+cluster://HOST:6379,… (docs/databases.md)",
    "sentinel_nodes": _BY_SENTINELS,
    "sentinel_password": _BY_SENTINELS,
    "service_name": _BY_SENTINELS,
}
_MOST_ATTEMPTS: Final = 10


class Settings(msgspec.Struct, kw_only=True):
    """What the settings came to: sections of ours."""

    written: dict[str, Any] = {}
    fallbacks: dict[str, list[str]] = {}
    aliases: dict[str, Any] = {}
    has_master_key: bool = False

    def put(self, *path: str, value: Any) -> None:
        """Write a value of a section; what was written first stays."""
        place = self.written
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place.setdefault(path[-1], value)


def by_rpm(source: Source, variables: Variables) -> bool:
    """Return True where LiteLLM shares traffic out by the entries' `rpm`."""
    strategy = source.section("router_settings").get("routing_strategy")
    return strategy is None or variables.resolved(strategy.value) in {None, "simple-shuffle"}


def translate_settings(
    source: Source, account: Account, secrets: Secrets, variables: Variables, models: Models
) -> Settings:
    """Return the sections that LiteLLM's settings come to."""
    found = _Reading(account, secrets, variables, models)
    for section in SECTIONS:
        for key, item in source.section(section).items():
            found.read(section, key, item)
    found.finish()
    return found.settings


class _Reading:
    def __init__(self, account: Account, secrets: Secrets, variables: Variables, models: Models) -> None:
        self.settings = Settings()
        self._account = account
        self._secrets = secrets
        self._variables = variables
        self._models = models
        self._redis: dict[str, Item] = {}
        self._cache: Item | None = None
        self._cache_params: Item | None = None
        self._defaults: Item | None = None
        self._handlers: dict[str, Callable[[Item], None]] = {
            "num_retries": self._retries,
            "max_retries": self._retries,
            "allowed_fails": self._fails,
            "cooldown_time": lambda item: self._seconds(item, ("providers", "breaker", "base_ejection_s"), 3_600),
            "request_timeout": lambda item: self._seconds(item, ("providers", "timeouts", "total_s"), 86_400),
            "timeout": lambda item: self._seconds(item, ("providers", "timeouts", "total_s"), 86_400),
            "stream_timeout": lambda item: self._seconds(
                item, ("providers", "timeouts", "first_token_interactive_s"), 3_600
            ),
            "fallbacks": lambda item: self._fallbacks(item, "kept"),
            "context_window_fallbacks": lambda item: self._fallbacks(item, "changed"),
            "default_fallbacks": self._default_fallbacks,
            "model_group_alias": self._aliases,
            "model_alias_map": self._aliases,
            "routing_strategy": self._strategy,
            "success_callback": self._callbacks,
            "failure_callback": self._callbacks,
            "callbacks": self._callbacks,
            "service_callbacks": self._callbacks,
            "input_callback": self._callbacks,
            "audit_log_callbacks": self._callbacks,
            "cache": self._keep_cache,
            "cache_params": self._keep_cache_params,
            "redis_host": self._redis_part,
            "redis_port": self._redis_part,
            "redis_password": self._redis_part,
            "redis_url": self._redis_url,
            "master_key": self._master_key,
            "database_url": self._database_url,
            "default_team_params": self._team_defaults,
            "global_max_parallel_requests": self._in_flight,
            "max_in_flight_requests_per_worker": self._in_flight,
            "max_request_size_mb": self._body_size,
        }

    def read(self, section: Place, key: str, item: Item) -> None:
        """Tell and write one key."""
        handler = self._handlers.get(key)
        if item.value is None or item.value in ([], {}, ""):
            self._account.tell(item, "not needed", "empty")
        elif handler is not None:
            handler(item)
        else:
            tell_by_table(self._account, section, key, item)

    def finish(self) -> None:
        """Write what several keys say together."""
        if self._defaults is not None:
            targets = self._targets(self._defaults)
            for name in self._models.names:
                if name.endswith("*"):
                    continue
                own = self.settings.fallbacks.setdefault(name, [])
                own += [each for each in targets if each not in own and each not in self._models.names[name]]
        self._write_cache()
        self._write_redis()

    def _number(self, item: Item) -> Decimal | None:
        found = number_in(self._variables.resolved(item.value))
        if found is None:
            self._account.tell(item, "not possible", "no number is known here")
        return found

    def _retries(self, item: Item) -> None:
        number = self._number(item)
        if number is not None:
            attempts = max(1, min(int(number) + 1, _MOST_ATTEMPTS))
            self.settings.put("providers", "retry", "attempts", value=attempts)
            self._account.tell(item, "kept", f"`providers.retry.attempts: {attempts}`, the first one counted")

    def _fails(self, item: Item) -> None:
        number = self._number(item)
        if number is not None:
            fails = max(1, min(int(number) + 1, 1_000))
            self.settings.put("providers", "breaker", "consecutive_failures", value=fails)
            self._account.tell(item, "changed", f"`providers.breaker.consecutive_failures: {fails}`, in a row")

    def _seconds(self, item: Item, path: tuple[str, ...], most: int) -> None:
        number = self._number(item)
        if number is None:
            return
        if number <= 0:
            self._account.tell(item, "not needed", "none")
            return
        seconds = min(number, Decimal(most))
        self.settings.put(*path, value=seconds)
        if path[-1] == "base_ejection_s":
            self.settings.put("providers", "breaker", "max_ejection_s", value=max(Decimal(300), seconds))
        self._account.tell(item, "kept" if seconds == number else "changed", f"`{'.'.join(path)}: {seconds}`")

    def _fallbacks(self, item: Item, outcome: Any) -> None:
        for name, targets, at in _pairs(item):
            if name == "*":
                self._default_fallbacks(at)
                continue
            if name not in self._models.names or name.endswith("*"):
                why = (
                    "a wildcard has no fallbacks: name models"
                    if name.endswith("*")
                    else f"there is no model {name[:80]}"
                )
                self._account.tell(at, "not possible", why)
                continue
            own = self.settings.fallbacks.setdefault(name, [])
            own += [
                each
                for each in self._targets(Item(at.document, at.path, targets))
                if each not in own and each not in self._models.names[name]
            ]
            place = "`policy.fallbacks`"
            if len(self._models.names[name]) > 1:
                # So it is written: a name of several models is a list in order.
                place = f"the end of `policy.aliases.{name[:80]}`"
            self._account.tell(
                at,
                outcome,
                place if outcome == "kept" else f"{place}, for every failure; the context is checked before a call",
            )

    def _targets(self, item: Item) -> list[str]:
        """Return the models behind LiteLLM's names, and tell of those that are none."""
        found: list[str] = []
        for name in item.value if isinstance(item.value, list) else [item.value]:
            named = name.get("model") if isinstance(name, dict) else name
            known = self._models.names.get(str(named))
            if isinstance(name, dict):
                self._account.tell(
                    item, "not possible", "a fallback with parameters of its own; its name alone was kept"
                )
            if known is None or str(named).endswith("*"):
                self._account.tell(item, "not possible", f"there is no model {str(named)[:80]} to fall back to by name")
                continue
            found += [each for each in known if each not in found]
        return found

    def _default_fallbacks(self, item: Item) -> None:
        self._defaults = item
        self._account.tell(item, "kept", "`policy.fallbacks` of every model")

    def _aliases(self, item: Item) -> None:
        if not isinstance(item.value, dict):
            self._account.tell(item, "not possible", "aliases are names and models")
            return
        for alias, target in item.value.items():
            name = target.get("model") if isinstance(target, dict) else target
            at = item.at(alias, value=target)
            known = self._models.names.get(str(name))
            if known is None:
                self._account.tell(at, "not possible", f"there is no model {str(name)[:80]}")
            elif alias in self._models.names or alias == AUTO:
                self._account.tell(at, "not possible", "a model has this name already, which goes first")
            else:
                self.settings.aliases[alias] = known[0] if len(known) == 1 else known
                hidden = isinstance(target, dict) and target.get("hidden")
                self._account.tell(
                    at, "changed" if hidden else "kept", "`policy.aliases`" + (", which lists show" if hidden else "")
                )

    def _strategy(self, item: Item) -> None:
        named = str(self._variables.resolved(item.value))
        outcome, words = _STRATEGIES.get(named, ("not possible", "shares of traffic by `weight`"))
        self._account.tell(item, outcome, words)  # type: ignore[arg-type]

    def _callbacks(self, item: Item) -> None:
        for index, name in enumerate(item.value if isinstance(item.value, list) else [item.value]):
            at = item.at(index, value=name) if isinstance(item.value, list) else item
            outcome, words = _CALLBACKS.get(
                str(name), ("not possible", "write the exporter as a plug-in (docs/plugins.md)")
            )
            self._account.tell(at, outcome, words)  # type: ignore[arg-type]

    def _keep_cache(self, item: Item) -> None:
        self._cache = item

    def _keep_cache_params(self, item: Item) -> None:
        self._cache_params = item

    def _write_cache(self) -> None:
        if self._cache is None and self._cache_params is None:
            return
        is_on = self._cache is not None and _is_true(self._variables.resolved(self._cache.value))
        if self._cache is not None:
            self._account.tell(
                self._cache,
                "changed" if is_on else "not needed",
                "`cache.default: true`: answers to requests with temperature 0, and embeddings, within a team (docs/cache.md)"
                if is_on
                else "off",
            )
        if is_on:
            self.settings.put("cache", "default", value=True)
        params = self._cache_params
        for key, value in params.value.items() if params is not None and isinstance(params.value, dict) else ():
            assert params is not None  # noqa: S101 - it has items
            self._cache_param(key, params.at(key, value=value), is_on=is_on)

    def _cache_param(self, key: str, item: Item, *, is_on: bool) -> None:
        if key == "ttl" and is_on:
            number = self._number(item)
            if number is not None:
                self.settings.put("cache", "ttl_s", value=max(1, min(int(number), 2_592_000)))
                self._account.tell(item, "kept", "`cache.ttl_s`")
        elif key in {"url", "redis_url"}:
            self._redis_url(item)
        elif key in _SEVERAL_REDIS:
            self._account.tell(item, "changed", _SEVERAL_REDIS[key])
        elif key in {"host", "port", "password"}:
            self._redis_part(item, key)
        elif key == "type" and "semantic" in str(item.value):
            self._account.tell(item, "not possible", "answers are given again to equal requests, not to similar ones")
        elif key == "type":
            self._account.tell(item, "kept", "kept in Redis where there is one, else in each process")
        else:
            self._account.tell(item, "not possible" if is_on else "not needed", "docs/cache.md has what can be set")

    def _redis_part(self, item: Item, key: str = "") -> None:
        name = key or str(item.path[-1]).removeprefix("redis_")
        if name in self._redis:
            self._account.tell(item, "not needed", "one Redis for all")
        else:
            self._redis[name] = item

    def _redis_url(self, item: Item) -> None:
        named = name_in(str(item.value))
        if named is None:
            self._secrets.moved["REDIS_URL"] = str(item.value)
            self._account.tell(item, "changed", "set it as REDIS_URL")
        else:
            self.settings.put("redis", "url", value=f"env:{named}")
            self._secrets.referred.add(named)
            self._account.tell(item, "kept", "`redis.url`")

    def _write_redis(self) -> None:
        host = self._redis.get("host")
        if host is None:
            for item in self._redis.values():
                self._account.tell(item, "not possible", "no host beside it: set REDIS_URL=redis://HOST:6379/0")
            return
        for name, item in self._redis.items():
            self._account.tell(item, "changed", f"the {name} in the one address REDIS_URL, redis://HOST:PORT/0")
        self.settings.put("redis", "url", value="env:REDIS_URL")
        self._secrets.referred.add("REDIS_URL")
        parts = {name: self._variables.resolved(item.value) for name, item in self._redis.items()}
        if all(parts.values()):
            password = f":{quote(str(parts['password']), safe='')}@" if "password" in parts else ""
            self._secrets.moved["REDIS_URL"] = f"redis://{password}{parts['host']}:{parts.get('port', 6379)}/0"

    def _master_key(self, item: Item) -> None:
        self.settings.has_master_key = True
        variable = name_in(str(item.value)) or self._secrets.moved_to("LITELLM_MASTER_KEY", str(item.value))
        words = f"weighbridge keys import TEAM_ID --role admin --from-env {variable}"
        if variable is None:
            words = "this one can be guessed; a new one: weighbridge keys create TEAM_ID --role admin"
        self._account.tell(item, "changed", f"a key of the role admin: {words}")

    def _database_url(self, item: Item) -> None:
        self._account.tell(
            item, "changed", "read once with --database; ours is in WEIGHBRIDGE_DATABASE_URL, another database"
        )

    def _team_defaults(self, item: Item) -> None:
        names = {
            "tpm_limit": "tokens_per_minute",
            "rpm_limit": "requests_per_minute",
            "max_parallel_requests": "concurrency",
        }
        for key, value in item.value.items() if isinstance(item.value, dict) else ():
            at = item.at(key, value=value)
            if key in names and (number := self._number(at)) is not None and number >= 1:
                self.settings.put("limits", "team", names[key], value=int(number))
                self._account.tell(at, "kept", f"`limits.team.{names[key]}`")
            elif key not in names:
                self._account.tell(at, "not possible", "say it with each team")

    def _in_flight(self, item: Item) -> None:
        number = self._number(item)
        if number is not None and number >= 1:
            self.settings.put("server", "max_in_flight", value=min(int(number), 1_000_000))
            self._account.tell(item, "changed", "`server.max_in_flight`, of each worker")

    def _body_size(self, item: Item) -> None:
        number = self._number(item)
        if number is not None and number > 0:
            self.settings.put("server", "max_body_bytes", value=max(1_000, min(int(number * 1_000_000), 200_000_000)))
            self._account.tell(item, "kept", "`server.max_body_bytes`")


def _pairs(item: Item) -> Iterator[tuple[str, Value, Item]]:
    """Yield name and fallbacks of a list of mappings, as LiteLLM has it, or of one mapping, as people write it."""
    listed = item.value if isinstance(item.value, list) else [item.value]
    for index, mapping in enumerate(listed):
        if not isinstance(mapping, dict):
            continue
        for name, targets in mapping.items():
            place = (index, name) if isinstance(item.value, list) else (name,)
            yield name, targets, item.at(*place, value=targets)


def _is_true(value: Value) -> bool:
    return value is True or str(value).lower() in {"true", "yes", "on", "1"}
