"""LiteLLM's configuration as one of ours, with the sentence that heads it."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec
import yaml

from gateway.configuration.file import Value
from gateway.from_litellm.deployments import Translator
from gateway.from_litellm.key_words import tell_by_table
from gateway.from_litellm.models import Models, translate_models
from gateway.from_litellm.secrets import Secrets
from gateway.from_litellm.settings import SECTIONS, Settings, by_rpm, translate_settings
from gateway.from_litellm.source import Source, Variables
from gateway.from_litellm.told import Account, Item

_READ: Final = frozenset({"model_list", "credential_list", "environment_variables", *SECTIONS})
_HEAD: Final = """\
# Written by `weighbridge import litellm`. What became of each line of LiteLLM's file it told when it was run.
"""


class Translated(msgspec.Struct, frozen=True, kw_only=True):
    """Our configuration as plain values, and the models behind LiteLLM's names."""

    written: dict[str, Any]
    models: Models
    settings: Settings


def translate(source: Source, account: Account, secrets: Secrets, variables: Variables) -> Translated:
    """Return our configuration for LiteLLM's. What became of each of its lines is told."""
    secrets.keep_free(source.references())
    _tell_sections(source, account)
    _tell_variables(source, account, variables)
    translator = Translator(account, secrets, variables, _credentials(source, account))
    models = translate_models(source, account, translator, variables, by_rpm=by_rpm(source, variables))
    settings = translate_settings(source, account, secrets, variables, models)
    if not models.written:
        file = source.documents[0].file if source.documents else ""
        words = f"no model came of it, and a configuration has one: `{_NO_MODEL['model']}` stands there, write yours in its place"
        account.note(file, 0, "providers.models", "not possible", words)
    return Translated(written=_written(models, settings), models=models, settings=settings)


def as_yaml(written: Mapping[str, Any]) -> str:
    """Return a configuration's text. Money is written as it is, never as a binary fraction."""
    return _HEAD + yaml.dump(written, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _tell_sections(source: Source, account: Account) -> None:
    for item in source.places():
        key = str(item.path[0])
        if item.value in (None, {}, []):
            account.tell(item, "not needed", "empty")
        elif key not in _READ and key != "include":
            tell_by_table(account, "top", key, item)
        elif key in _READ and not isinstance(item.value, list | dict):
            account.tell(item, "not possible", "no list and no mapping; nothing was made of it")


def _tell_variables(source: Source, account: Account, variables: Variables) -> None:
    for name, item in source.section("environment_variables").items():
        if variables.literal(name) is None:
            account.tell(item, "not needed", "it stands in the environment")
        else:
            account.tell(item, "changed", f"set {name} in the gateway's environment, if anything refers to it")


def _credentials(source: Source, account: Account) -> dict[str, dict[str, Item]]:
    """Return the values of LiteLLM's named credentials."""
    found: dict[str, dict[str, Item]] = {}
    for item in source.items("credential_list"):
        name = item.value.get("credential_name") if isinstance(item.value, dict) else None
        values = item.value.get("credential_values") if isinstance(item.value, dict) else None
        if not isinstance(name, str) or not isinstance(values, dict):
            account.tell(item, "not possible", "a credential has `credential_name` and `credential_values`")
            continue
        found[name] = {key: item.at("credential_values", key, value=value) for key, value in values.items()}
        account.tell(item, "changed", "its values stand with the entries that name it")
    return found


def _written(models: Models, settings: Settings) -> dict[str, Any]:
    written: dict[str, Any] = {"accounts": {"pepper_file": "var/pepper", "imported_keys": True}}
    rest = dict(settings.written)
    written["providers"] = {"models": models.written or [_NO_MODEL], **rest.pop("providers", {})}
    written["cost"] = {"unpriced": "book"}
    aliases = models.aliases | settings.aliases
    fallbacks: dict[str, list[str]] = {}
    for name, others in settings.fallbacks.items():
        own = models.names[name]
        if len(own) > 1:
            # A name of several models is a list in order: what comes after them stands at its end.
            aliases[name] = list(dict.fromkeys([*own, *others]))
        else:
            fallbacks[own[0]] = [each for each in others if each != own[0]]
    policy = {
        name: found
        for name, found in (("aliases", aliases), ("fallbacks", {key: each for key, each in fallbacks.items() if each}))
        if found
    }
    if policy:
        written["policy"] = policy
    return written | rest


_NO_MODEL: Final[dict[str, Value]] = {"model_id": "openai/*", "provider": "openai", "model": "openai/*"}
"""What stands in a configuration of which LiteLLM's had no model: ours needs one."""


class _Dumper(yaml.SafeDumper):
    """Writes decimals as they are, and no anchors: a configuration of ours has few."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base's signature
        return True


def _decimal(dumper: yaml.SafeDumper, value: Decimal) -> yaml.ScalarNode:
    text = f"{value.normalize():f}"
    return dumper.represent_scalar("tag:yaml.org,2002:float" if "." in text else "tag:yaml.org,2002:int", text)


_Dumper.add_representer(Decimal, _decimal)
