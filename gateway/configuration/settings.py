"""All settings: one file of typed sections, and the process's environment.

Each folder types its own section; here they meet. `load` either gives a configuration that can be
served, or raises one ConfigError that names every problem.
"""

import os
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from pydantic import AliasChoices, BaseModel, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from accounts.config import AccountsSection
from accounts.keys import MIN_PEPPER_BYTES, Pepper
from accounts.people.sign_in_config import SignInSection
from accounts.pepper_file import pepper_id, read_or_make_pepper
from api.webhooks.webhooks_config import WebhooksSection
from classifier.config import ClassifierSection
from cost.config import CostSection
from gateway.configuration.file import ConfigError, Document, KeyPath, Problem, Value, read_document
from gateway.configuration.known_abilities import ability_problems
from gateway.configuration.price_sources import price_problems
from gateway.configuration.problems import check
from providers.catalog import secret_reader
from providers.config import ProvidersSection, SecretRef
from providers.connections.address import AddressInvalid
from providers.connections.forward_proxy import ForwardProxy, forward_proxy_of
from providers.secret_references import inside, secrets_in
from proxy.admit.idempotency.idempotency_config import IdempotencySection
from proxy.admit.limits.limits_config import LimitsSection
from proxy.admit.queues.queues_config import QueuesSection
from proxy.batch.batch_config import BatchSection
from proxy.plan.routing_config import PolicyConfig
from proxy.responses.stored.stored_responses_config import ResponsesSection
from proxy.shared.deadline import DeadlinesSection
from proxy.shared.redis.redis_config import RedisSection, address_problem
from selfhosted.config import SelfhostedSection
from settings.types import Finite, Reloadable, Section, is_reloadable
from settings.words import closest, in_words

_NO_PEPPER = (
    f"no pepper: set WEIGHBRIDGE_PEPPER to a secret of at least {MIN_PEPPER_BYTES} characters, name one under "
    "`accounts.peppers`, or let `accounts.pepper_file` name a file that is made at the first start"
)
AUTO = "auto"
PREFIX = "WEIGHBRIDGE_"
_NO_CONFIG = (
    "no configuration: pass --config FILE or set WEIGHBRIDGE_CONFIG "
    "(config/minimal.yaml is the smallest that works, config/gateway.yaml shows everything)"
)


class TlsSection(Section):
    """The certificate of the public socket."""

    certificate: Path = Field(description="The certificate and its chain, a PEM file. Read at the start.")
    key: Path = Field(description="The certificate's private key, a PEM file without a password.")


class ServerConfig(Section):
    """The settings of the HTTP server."""

    host: str = Field(default="127.0.0.1", min_length=1, description="The address to listen on; `0.0.0.0` for all.")
    port: int = Field(default=8080, ge=0, le=65_535, description="The port to listen on; 0 lets the system choose.")
    workers: int = Field(default=1, ge=1, le=128, description="Processes that serve; about one a core.")
    max_body_bytes: Reloadable[int] = Field(
        default=20_000_000, ge=1_000, le=200_000_000, description="A larger request body is refused with 413."
    )
    max_upload_bytes: Reloadable[int] = Field(
        default=32_000_000,
        ge=1_000,
        le=1_000_000_000,
        description="A larger file is refused with 413. Uploads wait on disk (`TMPDIR`).",
    )
    max_bodies_bytes: int = Field(
        default=256_000_000,
        ge=1_000,
        le=64_000_000_000,
        description="Bytes of request bodies that one worker holds at once; more gets 503.",
    )
    max_replies_bytes: int = Field(
        default=256_000_000,
        ge=1_000_000,
        le=64_000_000_000,
        description="Bytes of answers that one process holds at once; more gets 503. One answer may have half "
        "of it; the first 64 KiB of each are not counted.",
    )
    tls: TlsSection | None = Field(
        default=None,
        description="With it the public socket speaks HTTPS. Without, something before it does, or nothing.",
    )
    cors_origins: list[Annotated[str, Field(pattern=r"^(\*|https?://[^/\s]+)$")]] = Field(
        default_factory=list,
        max_length=100,
        description="Origins whose pages may call the API from a browser; `*` for all.",
    )
    body_timeout_s: Reloadable[float] = Field(
        default=30.0, gt=0, le=600, description="A body that takes longer to arrive is refused with 408."
    )
    slow_reader_s: Reloadable[float] = Field(
        default=30.0, gt=0, le=600, description="A caller that reads nothing of its stream for this long is cut off."
    )
    drain_s: float = Field(
        default=30.0, ge=1, le=3_600, description="After a stop signal, how long requests under way may go on."
    )
    max_in_flight: Reloadable[int] = Field(
        default=10_000, ge=1, le=1_000_000, description="Requests that one worker holds at once; more get 503."
    )
    max_lag_s: Reloadable[Finite] = Field(
        default=0.25,
        ge=0,
        le=60,
        description="An event loop later than this for about a second, or connections unaccepted for half a "
        "second (Linux), means overload: some requests get 503. 0 turns it off.",
    )


class TelemetryConfig(Section):
    """The settings of logs and traces."""

    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="Where traces go, over OTLP/HTTP. OTEL_EXPORTER_OTLP_ENDPOINT comes first; no traces without either.",
    )
    metrics_token: SecretRef | None = Field(
        default=None,
        description="Where /metrics' bearer token is found: env:NAME. Without one it is closed, unless "
        "`metrics_local`.",
    )
    metrics_local: Reloadable[bool] = Field(
        default=False,
        description="Opens /metrics without `metrics_token` to this machine's processes, also to a local proxy "
        "that adds no forwarding header.",
    )
    metrics_listen: str | None = Field(
        default=None,
        pattern=r"^(\[[0-9a-fA-F:.]+\]|[^\s:\[\]/]+):[0-9]{1,5}$",
        description="A second address that serves /metrics only, such as `127.0.0.1:9464`: open to whoever "
        "reaches it, unless `metrics_token` is set.",
    )
    log_success_share: float = Field(
        default=0.01, ge=0, le=1, description="The share of successful requests that is logged. Failures all are."
    )


class GatewayConfig(Section):
    """The whole configuration file."""

    server: ServerConfig = Field(default=ServerConfig(), description="The listening side.")
    providers: ProvidersSection = Field(description="The models that can be called, and how to call them.")
    policy: Reloadable[PolicyConfig] = Field(default=PolicyConfig(), description="How names become targets.")
    limits: Reloadable[LimitsSection] = Field(
        default=LimitsSection(),
        description="What each organisation, team, key and model may use in a minute and at once.",
    )
    redis: RedisSection = Field(default=RedisSection(), description="The Redis that all processes share.")
    accounts: AccountsSection = Field(default=AccountsSection(), description="Teams, keys and their peppers.")
    sign_in: SignInSection = Field(default=SignInSection(), description="How people sign in to the pages.")
    classifier: ClassifierSection = Field(default=ClassifierSection(), description="How prompts are classified.")
    cost: CostSection = Field(default=CostSection(), description="The ledger, and what savings are measured against.")
    selfhosted: SelfhostedSection = Field(default=SelfhostedSection(), description="Own engines: pools of replicas.")
    queues: Reloadable[QueuesSection] = Field(
        default_factory=dict,
        description="Queues before own targets.",
    )
    deadlines: Reloadable[DeadlinesSection] = Field(
        default=DeadlinesSection(), description="How late an answer may be, where the caller does not say."
    )
    idempotency: IdempotencySection = Field(
        default=IdempotencySection(), description="Requests that are sent with an Idempotency-Key."
    )
    batch: BatchSection = Field(
        default=BatchSection(), description="Files of requests, answered in the background until a deadline."
    )
    responses: Reloadable[ResponsesSection] = Field(
        default=ResponsesSection(), description="Responses that are kept, so that conversations can go on from them."
    )
    webhooks: WebhooksSection = Field(default=WebhooksSection(), description="Where warnings and reports are sent.")
    telemetry: TelemetryConfig = Field(default=TelemetryConfig(), description="Logs and traces.")


class Environment(BaseSettings):
    """The process's environment variables. They override the file, and the command line overrides both."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, env_ignore_empty=True)

    config: Path | None = Field(default=None, description="The configuration file.")
    database_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("WEIGHBRIDGE_DATABASE_URL", "DATABASE_URL"),
        description="The database; SQLite in the data directory when not set. Plain DATABASE_URL is read too.",
    )
    redis_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("WEIGHBRIDGE_REDIS_URL", "REDIS_URL"),
        description="The shared Redis, instead of `redis.url`; none when neither is set. Plain REDIS_URL is read too.",
    )
    pepper: SecretStr | None = Field(
        default=None, description=f"The secret that keys are stored under, at least {MIN_PEPPER_BYTES} characters."
    )
    data_dir: Path = Field(default=Path("var"), description="Where SQLite's database is kept.")
    host: str | None = Field(default=None, description="Instead of `server.host`.")
    port: int | None = Field(default=None, ge=0, le=65_535, description="Instead of `server.port`.")
    workers: int | None = Field(default=None, ge=1, le=128, description="Instead of `server.workers`.")
    otlp_endpoint: str | None = Field(
        default=None,
        validation_alias=AliasChoices("OTEL_EXPORTER_OTLP_ENDPOINT"),
        description="Instead of `telemetry.otlp_endpoint`.",
    )
    https_proxy: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("HTTPS_PROXY"),
        description="A forward proxy for models at https addresses: http://[USER:PASSWORD@]HOST[:PORT].",
    )
    no_proxy: str = Field(
        default="",
        validation_alias=AliasChoices("NO_PROXY"),
        description="Hosts that are called without the proxy: names (with subdomains), addresses and networks, with commas; `*` for all.",
    )

    def forward_proxy(self) -> ForwardProxy | None:
        """Return the way out to upstreams, or None. Raises AddressInvalid."""
        if self.https_proxy is None:
            return None
        return forward_proxy_of(self.https_proxy.get_secret_value(), self.no_proxy)

    def database(self) -> str:
        """Return the database's address. It may hold a password: never show it."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite+aiosqlite:///{self.data_dir}/weighbridge.sqlite"

    def redis(self, section: RedisSection) -> str | None:
        """Return the shared Redis's address, or None. It may hold a password: never show it."""
        if self.redis_url is not None:
            return self.redis_url.get_secret_value()
        return None if section.url is None else resolve_secret(section.url)

    def server_overrides(self) -> dict[str, Any]:
        """Return the keys of the `server` section that the environment overrides."""
        given = {"host": self.host, "port": self.port, "workers": self.workers}
        return {name: value for name, value in given.items() if value is not None}

    def variables(self) -> dict[str, str]:
        """Return the settings as environment variables, for a child process that must see what this one was given."""
        return {f"{PREFIX}{name.upper()}": str(value) for name, value in self.server_overrides().items()}


def variables_of(name: str) -> tuple[str, ...]:
    """Return the variables that set a field of Environment, the one that comes first at the front."""
    alias = Environment.model_fields[name].validation_alias
    return tuple(map(str, alias.choices)) if isinstance(alias, AliasChoices) else (PREFIX + name.upper(),)


_VARIABLES = {variable for name in Environment.model_fields for variable in variables_of(name)}


class Reloaded(msgspec.Struct, frozen=True):
    """The result of a reload: the configuration to go on with, in which keys that need a restart are as they were. When
    `refused` is set, it is the previous one.
    """

    config: GatewayConfig
    refused: ConfigError | None = None
    needs_restart: tuple[str, ...] = ()
    """Keys that the file has otherwise than this process, which goes on with its own until a restart."""


def read_environment() -> Environment:
    """Read the environment. A misspelt WEIGHBRIDGE_* variable is an error, not a silent default."""
    allowed = [each for name in Environment.model_fields for each in variables_of(name) if each.startswith(PREFIX)]
    problems = [
        Problem("environment", 0, name, _unknown_variable(name, allowed))
        for name in sorted(os.environ)
        if name.upper().startswith(PREFIX) and name.upper() not in allowed
    ]
    # One character may be several bytes; a pepper is measured as it is used.
    if 0 < len(os.environ.get(f"{PREFIX}PEPPER", "").encode()) < MIN_PEPPER_BYTES:
        problems.append(
            Problem("environment", 0, f"{PREFIX}PEPPER", f"must have at least {MIN_PEPPER_BYTES} characters")
        )
    try:
        environment = Environment()
    except ValidationError as error:
        problems += [
            Problem("environment", 0, _variable(detail["loc"]), in_words(detail))
            for detail in error.errors(include_input=False, include_url=False)
        ]
        raise ConfigError(problems) from error
    if environment.database_url is not None and not _is_database(environment.database_url.get_secret_value()):
        said = "must be an address such as sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
        problems.append(Problem("environment", 0, "DATABASE_URL", said))
    if environment.redis_url is not None:
        wrong = address_problem(environment.redis_url.get_secret_value())
        problems += [] if wrong is None else [Problem("environment", 0, "REDIS_URL", wrong)]
    try:
        environment.forward_proxy()
    except AddressInvalid as error:
        problems.append(Problem("environment", 0, "HTTPS_PROXY", str(error)))
    if problems:
        raise ConfigError(problems)
    return environment


def _is_database(address: str) -> bool:
    try:
        parts = urlsplit(address)
        # Reading the port is what checks it.
        return parts.scheme.partition("+")[0] in _DATABASES and parts.port != 0
    except ValueError:
        return False


def _variable(location: tuple[int | str, ...]) -> str:
    name = str(location[0]).upper()
    return name if name in _VARIABLES or name.startswith(PREFIX) else PREFIX + name


def _unknown_variable(name: str, allowed: list[str]) -> str:
    guess = closest(name.upper().removeprefix(PREFIX), [known.removeprefix(PREFIX) for known in allowed])
    hint = f"; did you mean {PREFIX}{guess}?" if guess else "."
    return f"is not known{hint} Allowed: {', '.join(allowed)}"


def load(
    path: Path | None, environment: Environment, *, secrets_from: Mapping[str, str] | None = os.environ
) -> GatewayConfig:
    """Load the configuration, overlaid with the environment. Raises ConfigError with all problems.

    `secrets_from` is where references such as `env:NAME` must lead; None leaves them unresolved.
    """
    chosen = path or environment.config
    if chosen is None:
        raise ConfigError([Problem("", 0, "", _NO_CONFIG)])
    document = _effective(read_document(chosen))
    if "model_list" in document.values:
        raise ConfigError([document.problem(("model_list",), _OF_LITELLM)])
    # A section whose lines are all commented out is the same as one that is not there.
    document = msgspec.structs.replace(
        document, values={key: value for key, value in document.values.items() if value is not None}
    )
    config, problems = check(GatewayConfig, document)
    problems += dangling(document)
    if config is not None:
        problems += price_problems(config.providers, document)
        problems += ability_problems(config.providers, config.classifier, document)
        problems += _report_problems(config, document)
        problems += pool_problems(config, document)
        problems += shared_gpu_problems(config, document)
    if config is not None and secrets_from is not None:
        problems += [
            document.problem(secret.key, f"refers to {secret.name}, which is not set")
            for secret in secrets_in(config, secrets_from)
            if not secret.is_set
        ]
        problems += _redis_problems(config, document, secrets_from)
    if config is None or problems:
        raise ConfigError(problems)
    server = config.server.model_copy(update=environment.server_overrides())
    return config.model_copy(update={"server": server})


def without_effect(path: Path) -> list[Problem]:
    """Return warnings about accepted keys that no longer have an effect."""
    document = read_document(path)
    return [
        document.problem((section, key), f"has no effect any more, and can be removed: {why}")
        for section, keys in _WITHOUT_EFFECT.items()
        for key, why in keys.items()
        if key in _mapping(document.values.get(section))
    ]


def _effective(document: Document) -> Document:
    """Return the document without keys that no longer have an effect."""
    effective = {
        section: {key: value for key, value in _mapping(document.values.get(section)).items() if key not in keys}
        for section, keys in _WITHOUT_EFFECT.items()
        if not keys.keys().isdisjoint(_mapping(document.values.get(section)))
    }
    return msgspec.structs.replace(document, values={**document.values, **effective})


def reload(current: GatewayConfig, path: Path | None, environment: Environment) -> Reloaded:
    """Read the file again. An invalid one is rejected as a whole, and the current configuration stays."""
    try:
        fresh = load(path, environment)
    except ConfigError as refused:
        return Reloaded(current, refused=refused)
    effective, needs_restart = _adopted(current, fresh)
    return Reloaded(effective, needs_restart=tuple(needs_restart))


_Adopting = TypeVar("_Adopting", bound=BaseModel)


def _adopted(current: _Adopting, fresh: _Adopting, prefix: str = "") -> tuple[_Adopting, list[str]]:
    """Return the section with the reloadable keys of `fresh` and all others of `current`, and the paths of those others
    that differ.
    """
    adopted: dict[str, Any] = {}
    differ: list[str] = []
    for name, field in type(current).model_fields.items():
        old, new = getattr(current, name), getattr(fresh, name)
        if old == new:
            continue
        if is_reloadable(field):
            adopted[name] = new
        elif isinstance(old, BaseModel) and isinstance(new, type(old)):
            adopted[name], below = _adopted(old, new, f"{prefix}{name}.")
            differ += below
        else:
            differ.append(prefix + name)
    return current.model_copy(update=adopted), differ


def _redis_problems(config: GatewayConfig, document: Document, secrets_from: Mapping[str, str]) -> list[Problem]:
    """Check the secret that holds Redis's address, which can be validated only here; it is not repeated."""
    if config.redis.url is None:
        return []
    try:
        wrong = address_problem(secret_reader(secrets_from)(config.redis.url))
    except (LookupError, OSError, UnicodeDecodeError):
        # That it is not there is told with all other secrets.
        return []
    return (
        [] if wrong is None else [document.problem(("redis", "url"), f"leads to an address that is wrong: it {wrong}")]
    )


def _report_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    """Check that the reports' webhook is configured: a missing one would be noticed only when a report is needed."""
    wanted = None if config.cost.report is None else config.cost.report.webhook
    if wanted is None or wanted in config.webhooks.names():
        return []
    known = ", ".join(config.webhooks.names()) or "none are configured"
    told = f"no destination of `webhooks` has this name; there are: {known}"
    return [document.problem(("cost", "report", "webhook"), told)]


def pool_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    """Check that a model has either its own addresses or a pool's replicas, and that a queue without a size has a pool
    to size it.
    """
    served = config.selfhosted.pool_of_target()
    spot = {target for pool in config.selfhosted.pools if pool.spot for target in pool.targets}
    problems = []
    for index, model in enumerate(config.providers.models):
        where = ("providers", "models", index, "deployments")
        if model.deployments and model.model_id in served:
            told = f"the pool `{served[model.model_id]}` of `selfhosted.pools` serves it, so it has no addresses of its own"
            problems.append(document.problem(where, told))
        elif not model.deployments and model.model_id not in served:
            problems.append(document.problem(where, "is needed, unless a pool of `selfhosted.pools` serves the model"))
        if model.model_id in spot and model.tier_eligibility != {"batch"}:
            place = ("providers", "models", index, "tier_eligibility")
            told = (
                f"has to be [batch], because the pool `{served[model.model_id]}` that serves the model is a spot pool"
            )
            problems.append(document.problem(place, told))
    for name, queue in config.queues.items():
        if not queue.tokens_in_flight and not served.keys() >= set(queue.targets):
            told = "is needed, unless every target of the queue is served by a pool of `selfhosted.pools`"
            problems.append(document.problem(("queues", name, "tokens_in_flight"), told))
    costed = {pool.name: set(pool.targets) for pool in config.cost.pools}
    for index, pool in enumerate(config.selfhosted.pools):
        strangers = costed.get(pool.name, set()) - set(pool.served)
        if strangers:
            told = (
                f"`cost.pools` has {', '.join(sorted(strangers))} in a pool of this name, which this one does not serve"
            )
            problems.append(document.problem(("selfhosted", "pools", index, "targets"), told))
    return problems


def shared_gpu_problems(config: GatewayConfig, document: Document) -> list[Problem]:
    """Check that callers of a pool that sleeps can wait for it, and that the GPUs that pools share are paid for once."""
    problems = []
    pools = {pool.name: pool for pool in config.selfhosted.pools}
    costs = {pool.name: pool for pool in config.cost.pools}
    queued = {target: set(queue.targets) for queue in config.queues.values() for target in queue.targets}
    for index, group in enumerate(config.selfhosted.shared_gpus):
        where = ("selfhosted", "shared_gpus", index, "pools")
        for name in group.pools:
            served = set(pools[name].served)
            waits = [queued.get(target, set()) for target in served]
            if not all(waits) or any(not targets <= served for targets in waits):
                told = (
                    f"the pool `{name}` needs a queue of its own, in which requests wait while it sleeps: "
                    f"`queues: {{{name}: {{targets: [{', '.join(pools[name].served)}]}}}}`"
                )
                problems.append(document.problem(where, told))
        paid = [costs[name] for name in group.pools if name in costs]
        if not paid:
            continue
        if (
            len(paid) < len(group.pools)
            or len({(each.usd_per_gpu_hour, each.overhead, each.organisation) for each in paid}) > 1
        ):
            told = "all of them have the same `usd_per_gpu_hour`, `overhead` and `organisation` in `cost.pools`: they are the same GPUs"
            problems.append(document.problem(where, told))
        if sum(each.replicas > 0 for each in paid) > 1:
            told = (
                "an hour of which nothing is recorded would be paid for by each of them; set `replicas: 0` in `cost.pools` for "
                f"all but one, such as `{group.pools[0]}`"
            )
            problems.append(document.problem(where, told))
    return problems


_OF_LITELLM = (
    "this is a configuration of LiteLLM's proxy. Here each entry of `model_list` is one of `providers.models`: `model_name` is "
    "`model_id`, `litellm_params.model` is the deployment's `upstream_model` with `kind: litellm` (or `kind: openai` with a "
    "`base_url`, for hosts that speak OpenAI's API), and `os.environ/NAME` stays as it is"
)
_WITHOUT_EFFECT = {"classifier": {"second_weigher": "there is no second weigher"}}
"""Keys by section that files may still have, and why they have no effect."""
_DATABASES = {"sqlite", "postgres", "postgresql"}


def dangling(document: Document) -> list[Problem]:
    """Return problems for references to targets that the catalog does not have.

    It reads the plain values, so that these are reported together with all other problems.
    """
    models = _mapping(document.values.get("providers")).get("models")
    names = [str(model["model_id"]) for model in _list(models) if isinstance(model, dict) and "model_id" in model]
    if not names:
        return []
    reserved = f"`{AUTO}` is reserved: it lets the gateway choose"
    aliases = _mapping(_mapping(document.values.get("policy")).get("aliases"))
    shadowed = [
        document.problem(
            ("policy", "aliases", alias),
            f"`{alias}` is a model's own name, which nobody could send any more; name it otherwise",
        )
        for alias in aliases
        if alias in names
    ]
    return (
        shadowed
        + [
            document.problem(path, _missing_target(name, names))
            for path, name in _references(document.values)
            if name not in names and not (path[:2] in _NAMED_BY_CALLERS and _stands_for(names, name))
        ]
        + [
            *(document.problem(path, reserved) for path in _named_auto(document.values)),
            *(
                document.problem(path, _missing_target(name, known))
                for path, name, known in _unknown_limited(document, names)
            ),
        ]
    )


_NAMED_BY_CALLERS: set[KeyPath] = {("policy", "aliases"), ("policy", "fallbacks")}
"""Places whose names may be such as a wildcard stands for: they are looked up when a caller sends one."""


def _stands_for(names: list[str], name: str) -> str | None:
    """Return the wildcard that stands for a name, or None."""
    return next((each for each in names if each.endswith("*") and name.startswith(each[:-1]) and name != each), None)


def _named_auto(values: dict[str, Value]) -> Iterator[KeyPath]:
    if AUTO in _mapping(_mapping(values.get("policy")).get("aliases")):
        yield "policy", "aliases", AUTO
    for index, model in enumerate(_list(_mapping(values.get("providers")).get("models"))):
        if _mapping(model).get("model_id") == AUTO:
            yield "providers", "models", index, "model_id"


def _unknown_limited(document: Document, targets: list[str]) -> Iterator[tuple[KeyPath, str, list[str]]]:
    """Yield models with limits that no caller can name, with path and known names; each would limit nothing."""
    known = [*targets, *_mapping(_mapping(document.values.get("policy")).get("aliases")), AUTO]
    for name in _mapping(_mapping(document.values.get("limits")).get("models")):
        if name not in known and not _stands_for(targets, name):
            yield ("limits", "models", name), name, known


def _references(values: dict[str, Value]) -> Iterator[tuple[KeyPath, str]]:
    policy = _mapping(values.get("policy"))
    yield from _names(policy.get("auto"), ("policy", "auto"))
    for alias, targets in _mapping(policy.get("aliases")).items():
        if targets != AUTO:
            yield from _names(targets, ("policy", "aliases", alias))
        yield from _names(_mapping(targets).get("auto"), ("policy", "aliases", alias, "auto"))
    for target, others in _mapping(policy.get("fallbacks")).items():
        yield ("policy", "fallbacks", target), target
        yield from _names(others, ("policy", "fallbacks", target))
    yield from _names(_mapping(values.get("cost")).get("reference_target"), ("cost", "reference_target"))
    for index, pool in enumerate(_list(_mapping(values.get("cost")).get("pools"))):
        yield from _names(_mapping(pool).get("targets"), ("cost", "pools", index, "targets"))
    for queue, section in _mapping(values.get("queues")).items():
        yield from _names(_mapping(section).get("targets"), ("queues", queue, "targets"))
    for index, pool in enumerate(_list(_mapping(values.get("selfhosted")).get("pools"))):
        yield from _names(_mapping(pool).get("targets"), ("selfhosted", "pools", index, "targets"))
        for number, adapter in enumerate(_list(_mapping(pool).get("adapters"))):
            where = ("selfhosted", "pools", index, "adapters", number, "target")
            yield from _names(_mapping(adapter).get("target"), where)
    for target, host in _mapping(_mapping(values.get("cost")).get("hosted")).items():
        yield ("cost", "hosted", target), target
        yield from _names(host, ("cost", "hosted", target))
    shadow = _mapping(_mapping(values.get("classifier")).get("shadow"))
    yield from _names(shadow.get("judge_target"), ("classifier", "shadow", "judge_target"))


def _names(value: Value, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield path, value
    for index, name in enumerate(_list(value)):
        if isinstance(name, str):
            yield (*path, index), name


def _missing_target(name: str, names: list[str]) -> str:
    wildcard = _stands_for(names, name)
    if wildcard is not None:
        return (
            f"`{wildcard}` stands for `{name[:80]}` where callers name it; to use it here, give it an entry of its own"
        )
    guess = closest(name, names)
    hint = f"; did you mean `{guess}`?" if guess else "."
    return f"there is no model `{name[:80]}`{hint} Models here: {', '.join(names[:40])}"


def _mapping(value: Value) -> dict[str, Value]:
    return value if isinstance(value, dict) else {}


def _list(value: Value) -> list[Value]:
    return value if isinstance(value, list) else []


_HEXADECIMAL = re.compile(rf"(?:[0-9a-fA-F]{{2}}){{{MIN_PEPPER_BYTES},}}\Z")
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


def resolve_secret(reference: str) -> str:
    """Resolve a secret reference. Raises LookupError or OSError when the secret is not there."""
    return secret_reader(os.environ)(reference)


def settings_as_shown(value: Any, secrets_from: Mapping[str, str]) -> Any:
    """Return the configuration as plain values that are safe to show: a secret appears as its reference and whether it is set."""
    if isinstance(value, BaseModel | Mapping):
        return {str(name): settings_as_shown(inner, secrets_from) for name, inner in inside(value)}
    if isinstance(value, list | tuple | set | frozenset):
        return [settings_as_shown(inner, secrets_from) for _, inner in inside(value)]
    if isinstance(value, str):
        return next((str(secret) for secret in secrets_in(value, secrets_from)), _USER_INFO.sub("***@", value))
    if value is None or isinstance(value, bool | int | float):
        return value
    # For reading only: YAML knows no Decimal, and a float prints the same digits.
    return float(value) if isinstance(value, Decimal) else str(value)


def tells_other_hosts(config: GatewayConfig, environment: Environment) -> bool:
    """Return True where this host tells others through Redis which prompts it sent where."""
    section = config.selfhosted
    return bool(section.pools) and section.tells_other_hosts and environment.redis(config.redis) is not None


def peppers(config: GatewayConfig | None, environment: Environment) -> tuple[Pepper, ...]:
    """Return the peppers that keys are hashed with, the current one first.

    They come from `accounts.peppers`, else from WEIGHBRIDGE_PEPPER, else from `accounts.pepper_file` when
    the file names one. Without any the gateway does not start: a pepper that nobody chose to keep would
    be lost with its machine, and every key with it.
    """
    if config is not None and config.accounts.peppers:
        return tuple(
            Pepper(id=each.id, secret=_pepper_bytes(resolve_secret(each.secret))) for each in config.accounts.peppers
        )
    if environment.pepper is not None:
        secret = _pepper_bytes(environment.pepper.get_secret_value())
        return (Pepper(id=pepper_id(secret), secret=secret),)
    if config is not None and "pepper_file" in config.accounts.model_fields_set:
        return (read_or_make_pepper(config.accounts.pepper_file),)
    # Without a file nobody has looked for what most gateways have there.
    where = (
        ""
        if config is not None
        else "; a configuration file that has one is named by --config FILE or WEIGHBRIDGE_CONFIG"
    )
    raise ConfigError([Problem("", 0, "", _NO_PEPPER + where)])


def _pepper_bytes(text: str) -> bytes:
    """Decode a pepper; hexadecimal digits are decoded as such, so that a pepper file's content means the same in a
    variable.
    """
    if _HEXADECIMAL.match(text):
        return bytes.fromhex(text)
    return text.encode()
