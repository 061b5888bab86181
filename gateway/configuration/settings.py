"""Loading of the configuration: `load` either gives one that can be served, or raises one ConfigError that names every problem."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel

from gateway.configuration.cross_checks import (
    ability_problems,
    plugin_problems,
    pool_problems,
    price_problems,
    redis_problems,
    report_problems,
    shared_gpu_problems,
)
from gateway.configuration.environment import Environment
from gateway.configuration.extras import extra_problems
from gateway.configuration.file import ConfigError, Document, Problem, read_document
from gateway.configuration.foreign import foreign_problem
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.places import moved, placed
from gateway.configuration.problems import check
from gateway.configuration.references import as_mapping, dangling
from providers.secret_references import secrets_in
from settings.types import is_reloadable

_NO_CONFIG = (
    "no configuration: pass --config FILE or set WEIGHBRIDGE_CONFIG "
    "(config/minimal.yaml is the smallest that works, config/gateway.yaml shows everything)"
)


class Reloaded(msgspec.Struct, frozen=True):
    """The result of a reload: the configuration to go on with, in which keys that need a restart are as they were. When
    `refused` is set, it is the previous one.
    """

    config: GatewayConfig
    refused: ConfigError | None = None
    changed: tuple[str, ...] = ()
    """Keys whose new values are in `config`."""
    needs_restart: tuple[str, ...] = ()
    """Keys that the file has otherwise than this process, which goes on with its own until a restart."""


class Outcome(msgspec.Struct, frozen=True):
    """What a process made of its configuration."""

    refused: str = ""
    """Why nothing was taken over; empty when it was."""
    changed: tuple[str, ...] = ()
    """Keys that have other values now."""
    needs_restart: tuple[str, ...] = ()
    """Keys that the file has otherwise, and that stay as they were."""
    at_start: tuple[str, ...] = ()
    """References to secrets that were read at the start, and are not read again."""


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
    if (foreign := foreign_problem(document)) is not None:
        raise ConfigError([foreign])
    # A section whose lines are all commented out is the same as one that is not there.
    document = msgspec.structs.replace(
        document, values={key: value for key, value in document.values.items() if value is not None}
    )
    config, problems = check(GatewayConfig, document)
    problems += dangling(document)
    environment = environment.model_copy(update={"config": chosen})
    if config is not None:
        unused = ("accounts", "pepper_file") if config.accounts.peppers or environment.pepper is not None else None
        problems += moved(config, environment.places, document, without=unused)
        has_files = config.batch.enabled and config.batch.s3 is None and config.batch.folder is None
        problems += environment.moved_data(has_files=has_files)
        config = placed(config, environment.places)
    if config is not None:
        problems += price_problems(config.providers, document)
        problems += ability_problems(config.providers, config.classifier, document)
        problems += report_problems(config, document)
        problems += pool_problems(config, document)
        problems += shared_gpu_problems(config, document)
        problems += plugin_problems(config, document)
    if config is not None and secrets_from is not None:
        problems += [
            document.problem(secret.key, f"refers to {secret.name}, which is not set")
            for secret in secrets_in(config, secrets_from)
            if not secret.is_set
        ]
        problems += redis_problems(config, document, secrets_from)
        problems += extra_problems(config, document)
    if config is None or problems:
        raise ConfigError(problems)
    server = config.server.model_copy(update=environment.server_overrides())
    return config.model_copy(update={"server": server})


def not_installed(path: Path, config: GatewayConfig) -> list[Problem]:
    """Return a problem for each optional package that the configuration of this file needs and that is not here."""
    return list(extra_problems(config, read_document(path)))


def without_effect(path: Path) -> list[Problem]:
    """Return warnings about accepted keys that no longer have an effect."""
    document = read_document(path)
    return [
        document.problem((section, key), f"has no effect any more, and can be removed: {why}")
        for section, keys in _WITHOUT_EFFECT.items()
        for key, why in keys.items()
        if key in as_mapping(document.values.get(section))
    ]


def _effective(document: Document) -> Document:
    """Return the document without keys that no longer have an effect."""
    effective = {
        section: {key: value for key, value in as_mapping(document.values.get(section)).items() if key not in keys}
        for section, keys in _WITHOUT_EFFECT.items()
        if not keys.keys().isdisjoint(as_mapping(document.values.get(section)))
    }
    return msgspec.structs.replace(document, values={**document.values, **effective})


def reload(current: GatewayConfig, path: Path | None, environment: Environment) -> Reloaded:
    """Read the file again. An invalid one is rejected as a whole, and the current configuration stays."""
    try:
        fresh = load(path, environment)
    except ConfigError as refused:
        return Reloaded(current, refused=refused)
    changed: list[str] = []
    effective, needs_restart = _adopted(current, fresh, changed)
    return Reloaded(effective, changed=tuple(changed), needs_restart=tuple(needs_restart))


_Adopting = TypeVar("_Adopting", bound=BaseModel)


def _adopted(current: _Adopting, fresh: _Adopting, changed: list[str], prefix: str = "") -> tuple[_Adopting, list[str]]:
    """Return the section with the reloadable keys of `fresh` and all others of `current`, and the paths of those others
    that differ. The paths of what was taken over are added to `changed`.
    """
    adopted: dict[str, Any] = {}
    differ: list[str] = []
    for name, field in type(current).model_fields.items():
        old, new = getattr(current, name), getattr(fresh, name)
        if old == new:
            continue
        if is_reloadable(field):
            adopted[name] = new
            changed.append(prefix + name)
        elif isinstance(old, BaseModel) and isinstance(new, type(old)):
            adopted[name], below = _adopted(old, new, changed, f"{prefix}{name}.")
            differ += below
        else:
            differ.append(prefix + name)
    return current.model_copy(update=adopted), differ


_WITHOUT_EFFECT = {"classifier": {"second_weigher": "there is no second weigher"}}
"""Keys by section that files may still have, and why they have no effect."""
