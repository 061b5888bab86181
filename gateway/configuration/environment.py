"""The process's environment variables, and the secrets that the configuration finds through them."""

import os
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from accounts.keys import MIN_PEPPER_BYTES
from gateway.configuration.file import ConfigError, Problem
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.places import DATABASE, Places, moved_data
from gateway.database_address import FILES, UnknownDatabase, check_address
from providers.catalog import secret_reader
from providers.connections.address import AddressInvalid
from providers.connections.forward_proxy import ForwardProxy, forward_proxy_of
from proxy.settle.observers.logs import LogForm
from proxy.shared.redis.redis_address import FILES as REDIS_FILES
from proxy.shared.redis.redis_address import address_problem
from proxy.shared.redis.redis_config import RedisSection
from settings.words import closest, in_words

PREFIX = "WEIGHBRIDGE_"


class Environment(BaseSettings):
    """The process's environment variables. They override the file, and the command line overrides both."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, env_ignore_empty=True)

    config: Path | None = Field(default=None, description="The configuration file.")
    database_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("WEIGHBRIDGE_DATABASE_URL", "DATABASE_URL"),
        description="The database; SQLite in the data folder when not set. Plain DATABASE_URL is read too.",
    )
    redis_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("WEIGHBRIDGE_REDIS_URL", "REDIS_URL"),
        description="The shared Redis, instead of `redis.url`; none when neither is set. Plain REDIS_URL is read too.",
    )
    pepper: SecretStr | None = Field(
        default=None, description=f"The secret that keys are stored under, at least {MIN_PEPPER_BYTES} characters."
    )
    data_dir: Path | None = Field(
        default=None, description="The folder of what the gateway keeps, in place of `var` beside the configuration."
    )
    host: str | None = Field(default=None, description="Instead of `server.host`.")
    port: int | None = Field(default=None, ge=0, le=65_535, description="Instead of `server.port`.")
    workers: int | None = Field(default=None, ge=1, le=128, description="Instead of `server.workers`.")
    migrate: bool | None = Field(
        default=None,
        description="Whether `serve` may change the schema. By default it creates an empty database's and upgrades SQLite's, after a "
        "backup; `true`: PostgreSQL's, too; `false`: none.",
    )
    logs: LogForm | None = Field(
        default=None, description="The form of log lines, `json` or `text`; text on a terminal, else JSON."
    )
    otlp_endpoint: str | None = Field(
        default=None,
        validation_alias=AliasChoices("OTEL_EXPORTER_OTLP_ENDPOINT"),
        description="Instead of `telemetry.otlp_endpoint`.",
    )
    https_proxy: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("HTTPS_PROXY"),
        description="A forward proxy for models and [events](events.md) at https addresses: http://[USER:PASSWORD@]HOST[:PORT].",
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

    @property
    def places(self) -> Places:
        """Return what relative paths are resolved against."""
        return Places(self.config, self.data_dir)

    def database(self) -> str:
        """Return the database's address. It may hold a password: never show it. Raises ConfigError."""
        if self.database_url is not None:
            url = self.places.database(self.database_url.get_secret_value())
            return self.places.files_in(url, FILES)
        return f"sqlite+aiosqlite:///{self.places.kept(DATABASE)}"

    def moved_data(self, *, has_files: bool = False) -> list[Problem]:
        """Return a problem for what this gateway keeps and earlier versions kept elsewhere."""
        url = None if self.database_url is None else self.database_url.get_secret_value()
        return moved_data(self.places, url, has_files=has_files)

    def redis(self, section: RedisSection) -> str | None:
        """Return the shared Redis's address, or None. It may hold a password: never show it."""
        if self.redis_url is not None:
            return self.places.files_in(self.redis_url.get_secret_value(), REDIS_FILES)
        return None if section.url is None else self.places.files_in(resolve_secret(section.url), REDIS_FILES)

    def server_overrides(self) -> dict[str, Any]:
        """Return the keys of the `server` section that the environment overrides."""
        given = {"host": self.host, "port": self.port, "workers": self.workers}
        return {name: value for name, value in given.items() if value is not None}

    def variables(self) -> dict[str, str]:
        """Return the settings as environment variables, for a child process that must see what this one was given."""
        logs = {} if self.logs is None else {"logs": self.logs}
        return {f"{PREFIX}{name.upper()}": str(value) for name, value in (self.server_overrides() | logs).items()}


def variables_of(name: str) -> tuple[str, ...]:
    """Return the variables that set a field of Environment, the one that comes first at the front."""
    alias = Environment.model_fields[name].validation_alias
    return tuple(map(str, alias.choices)) if isinstance(alias, AliasChoices) else (PREFIX + name.upper(),)


_VARIABLES = {variable for name in Environment.model_fields for variable in variables_of(name)}


def read_environment(config: Path | None = None) -> Environment:
    """Read the environment, with this configuration file in place of its own. A misspelt WEIGHBRIDGE_* variable is an error, not a
    silent default.
    """
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
        environment = environment if config is None else environment.model_copy(update={"config": config})
    except ValidationError as error:
        problems += [
            Problem("environment", 0, _variable(detail["loc"]), in_words(detail))
            for detail in error.errors(include_input=False, include_url=False)
        ]
        raise ConfigError(problems) from error
    if environment.database_url is not None:
        try:
            url = environment.database_url.get_secret_value()
            check_address(environment.places.files_in(url, FILES))
        except UnknownDatabase as error:
            problems.append(Problem("environment", 0, _set_by("database_url"), str(error)))
    if environment.redis_url is not None:
        wrong = address_problem(environment.redis_url.get_secret_value())
        problems += [] if wrong is None else [Problem("environment", 0, _set_by("redis_url"), wrong)]
    try:
        environment.forward_proxy()
    except AddressInvalid as error:
        problems.append(Problem("environment", 0, "HTTPS_PROXY", str(error)))
    if problems:
        raise ConfigError(problems)
    return environment


def _set_by(name: str) -> str:
    """Return the variable that a field of Environment, which is set, has its value from."""
    given = {each.upper() for each, value in os.environ.items() if value}
    return next((each for each in variables_of(name) if each in given), variables_of(name)[0])


def _variable(location: tuple[int | str, ...]) -> str:
    name = str(location[0]).upper()
    return name if name in _VARIABLES or name.startswith(PREFIX) else PREFIX + name


def _unknown_variable(name: str, allowed: list[str]) -> str:
    guess = closest(name.upper().removeprefix(PREFIX), [known.removeprefix(PREFIX) for known in allowed])
    hint = f"; did you mean {PREFIX}{guess}?" if guess else "."
    return f"is not known{hint} Allowed: {', '.join(allowed)}"


def resolve_secret(reference: str) -> str:
    """Resolve a secret reference. Raises LookupError or OSError when the secret is not there."""
    return secret_reader(os.environ)(reference)


def tells_other_hosts(config: GatewayConfig, environment: Environment) -> bool:
    """Return True where this host tells others through Redis which prompts it sent where."""
    section = config.selfhosted
    return bool(section.pools) and section.tells_other_hosts and environment.redis(config.redis) is not None
