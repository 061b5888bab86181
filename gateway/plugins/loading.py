"""Loading of plug-ins: only what the configuration names, never what is merely installed, sent or stored."""

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from pydantic import BaseModel, ValidationError

from gateway.configuration.plugins_config import PluginConfig
from settings.secret_ref import is_reference
from settings.words import closest
from weighbridge.plugins.checking import class_problem, setting_names, settings_type

GROUP: Final = "weighbridge.plugins"
_MOST_CHARS: Final = 300


class PluginInvalid(Exception):
    """A plug-in cannot be used. The message says why and what to do, without its secrets."""


class Loaded(msgspec.Struct, frozen=True):
    """A plug-in that is ready to be called."""

    config: PluginConfig
    plugin: Any


def load_plugin(config: PluginConfig, resolve_secret: Callable[[str], str]) -> Loaded:
    """Import and make a plug-in. Raises PluginInvalid."""
    made_by = _found(config)
    if (problem := class_problem(made_by, config.kind)) is not None:
        raise PluginInvalid(f"{config.use} {problem}")
    secrets: list[str] = []
    given = _resolved(config.settings, resolve_secret, secrets)
    declared = settings_type(made_by)
    if declared is None and given:
        raise PluginInvalid(f"{config.use} declares no `Settings`, so `settings` has to be left out")
    try:
        plugin = made_by() if declared is None else made_by(_settings(declared, given, config.use))
    except PluginInvalid:
        raise
    except Exception as error:
        raise PluginInvalid(f"{config.use} cannot be made: it raises {told(error, secrets)}") from error
    return Loaded(config, plugin)


def told(error: BaseException, secrets: list[str] | tuple[str, ...] = ()) -> str:
    """Return an error of a plug-in in one line; without its words where they have a secret in them."""
    words = " ".join(str(error).split())[:_MOST_CHARS]
    hides = not words or any(secret and secret in words for secret in secrets)
    return type(error).__name__ if hides else f"{type(error).__name__}: {words}"


def secrets_of(config: PluginConfig, resolve_secret: Callable[[str], str]) -> list[str]:
    """Return the secrets in a plug-in's settings."""
    found: list[str] = []
    _resolved(config.settings, resolve_secret, found)
    return found


def _found(config: PluginConfig) -> Any:
    if ":" not in config.use:
        return _of_entry_point(config.use)
    module_name, _, name = config.use.partition(":")
    module = _imported(module_name, config.use)
    made_by: Any = module
    for part in name.split("."):
        made_by = getattr(made_by, part, None)
    if made_by is None:
        near = closest(name, [each for each in vars(module) if isinstance(vars(module)[each], type)])
        raise PluginInvalid(f"the module {module_name} has no {name}" + (f"; did you mean {near}?" if near else ""))
    return made_by


def _imported(module_name: str, use: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if missing == module_name or module_name.startswith(f"{missing}."):
            raise PluginInvalid(
                f"there is no module {module_name} here: install its package into the gateway's environment, or add its folder to PYTHONPATH"
            ) from error
        raise PluginInvalid(f"{use} needs the package {missing}, which is not installed here") from error
    except Exception as error:
        raise PluginInvalid(f"{use} cannot be imported: it raises {told(error)}") from error


def _of_entry_point(name: str) -> Any:
    found = [each for each in importlib.metadata.entry_points(group=GROUP) if each.name == name]
    if not found:
        there = sorted({each.name for each in importlib.metadata.entry_points(group=GROUP)})
        raise PluginInvalid(
            f"no installed package has an entry point {name} in the group {GROUP}; there are: {', '.join(there) or 'none'}"
        )
    if len({each.value for each in found}) > 1:
        whose = ", ".join(sorted({each.value for each in found}))
        raise PluginInvalid(
            f"several packages have an entry point {name} ({whose}): write the one that is meant in its place"
        )
    module_name, _, attribute = found[0].value.partition(":")
    made_by: Any = _imported(module_name, found[0].value)
    for part in attribute.split("."):
        made_by = getattr(made_by, part, None)
    if made_by is None:
        raise PluginInvalid(f"the entry point {name} leads to {found[0].value}, which is not there")
    return made_by


def _resolved(value: Any, resolve_secret: Callable[[str], str], secrets: list[str]) -> Any:
    """Return settings with their secrets, which are noted."""
    if isinstance(value, Mapping):
        return {name: _resolved(inner, resolve_secret, secrets) for name, inner in value.items()}
    if isinstance(value, list):
        return [_resolved(inner, resolve_secret, secrets) for inner in value]
    if isinstance(value, str) and is_reference(value):
        try:
            secrets.append(resolve_secret(value))
        except (LookupError, OSError, UnicodeDecodeError) as error:
            raise PluginInvalid(f"its settings refer to {value}, which is not set") from error
        return secrets[-1]
    return value


def _settings(declared: Any, given: Mapping[str, Any], use: str) -> Any:
    if isinstance(declared, type) and issubclass(declared, BaseModel):
        try:
            return declared.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise PluginInvalid(f"{use}: its setting {where}: {first['msg']}") from error
    known = setting_names(declared)
    if known is None:
        raise PluginInvalid(f"{use}: its `Settings` is no dataclass, msgspec struct or pydantic model")
    if strangers := sorted(given.keys() - known):
        near = closest(str(strangers[0]), sorted(known))
        raise PluginInvalid(
            f"{use} has no setting {str(strangers[0])[:64]}"
            + (f"; did you mean {near}?" if near else f"; it has: {', '.join(sorted(known)) or 'none'}")
        )
    try:
        return msgspec.convert(given, declared)
    except msgspec.ValidationError as error:
        # Its words have names and types, never the value.
        raise PluginInvalid(f"{use}: its settings are wrong: {error}") from error
    except Exception as error:
        raise PluginInvalid(f"{use}: its settings are refused ({type(error).__name__})") from error
