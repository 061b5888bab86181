"""What an entry of the configuration leaves out because its provider is known by name: pure functions over what was written."""

from collections.abc import Mapping
from typing import Any, Final, get_args

from providers.known_providers import Provider, known_providers, nearest_provider, provider_at, provider_named
from providers.target import OWN_ENGINES, DeploymentKind, DesktopEngine

Written = Mapping[str, Any]

_KINDS: Final = frozenset(get_args(DeploymentKind))
_ADDRESSED: Final = _KINDS - frozenset(get_args(DesktopEngine))
"""Kinds that say nothing of an address: whoever writes one means some host."""
_SHARED: Final = frozenset({"provider"})
"""Keys of an entry and of its deployment that mean the same."""


def whole_model(written: Written, deployment_keys: frozenset[str]) -> Written:
    """Return an entry of a model with its deployments spelt out. Raises ValueError with what to write.

    `model` makes the entry its own only deployment: what belongs to one may then stand beside it.
    """
    entry = dict(written)
    if "model" in entry:
        _spell_out(entry, deployment_keys)
    deployments = entry.get("deployments")
    if isinstance(deployments, list | tuple):
        entry["deployments"] = [_of_entry(each, entry) if isinstance(each, Mapping) else each for each in deployments]
        if "provider" not in entry and (named := _first_provider(entry["deployments"])) is not None:
            entry["provider"] = named
    return entry


def name_of_entry(entry: Written) -> str | None:
    """Return the name that callers send for an entry as it is written; None where it says none."""
    name = entry.get("model_id", entry.get("model"))
    return None if name is None else str(name)


def _spell_out(entry: dict[str, Any], deployment_keys: frozenset[str]) -> None:
    name = entry.pop("model")
    if "deployments" in entry:
        raise ValueError(
            "`model` is for an entry that is its own only deployment; among `deployments` it is `upstream_model`"
        )
    if "upstream_model" in entry:
        raise ValueError("`model` and `upstream_model` are the same here: write one of them")
    if not isinstance(name, str) or not name.strip("/ "):
        raise ValueError("`model` must be the model's name at its provider, such as gpt-5-mini")
    deployment = {key: entry.pop(key) for key in deployment_keys - _SHARED & entry.keys()}
    entry.setdefault("model_id", name)
    named = entry.get("provider")
    row = provider_named(named) if isinstance(named, str) else None
    if named is None and "kind" not in deployment:
        # litellm's way: its provider first.
        prefix, _, rest = name.partition("/")
        row = provider_named(prefix) if rest else None
        if row is None:
            raise ValueError(
                f"nothing says whose {name[:80]!r} is: write `provider:` beside it, one of {_names()}, or `kind` and `base_url`"
            )
        named = row.name
    if row is not None or "kind" not in deployment:
        deployment["provider"] = named
    entry["deployments"] = [deployment | {"upstream_model": name if row is None else row.bare_name(name)}]


def _of_entry(written: Written, entry: Written) -> Written:
    """Return a deployment with what its entry says of it: the provider, and litellm's name of the model."""
    deployment = dict(written)
    if "kind" not in deployment and "provider" not in deployment and "provider" in entry:
        deployment["provider"] = entry["provider"]
    row = _row_of(deployment)
    model_id = entry.get("model_id")
    if row is not None and row.litellm and _is_called(deployment, row, "litellm"):
        name = deployment.get("upstream_model") or (model_id if isinstance(model_id, str) else "")
        if isinstance(name, str) and name:
            whole = name.startswith(f"{row.litellm}/")
            deployment["upstream_model"] = name if whole else f"{row.litellm}/{upstream_pattern(name)}"
    return deployment


def upstream_pattern(name: str) -> str:
    """Return the upstream's name for a model_id: of `openai/*` what the `*` stands for, of `gpt-*` all of it."""
    return "*" if name == "*" or name.endswith("/*") else name


def whole_deployment(written: Written) -> Written:
    """Return a deployment with what its provider's row says and it does not. Raises ValueError for a provider that nobody knows."""
    row, named = _row_of(written), written.get("provider")
    if row is None:
        if isinstance(named, str):
            raise _unknown(named)
        return written
    deployment = dict(written)
    if _is_called(deployment, row, row.kind):
        deployment["kind"] = row.kind
    deployment["provider"] = row.name
    address = deployment.get("base_url")
    if not address and deployment["kind"] == row.kind:
        address = deployment["base_url"] = row.base_url
    elif isinstance(address, str) and address and not deployment.get("api_version"):
        deployment["base_url"] = row.whole_address(address)
    # A key goes to its provider without being asked for, and to no other address.
    if row.keys and "api_key" not in deployment and (not address or row.is_at(str(address))):
        deployment["api_key"] = f"env:{row.keys[0]}"
    return deployment


def _row_of(deployment: Written) -> Provider | None:
    """Return the row that a deployment's `provider` names, or a `kind` that is none."""
    named, kind = deployment.get("provider"), deployment.get("kind")
    if isinstance(named, str):
        return provider_named(named)
    return provider_named(kind) if isinstance(kind, str) and kind not in _ADDRESSED else None


def _is_called(deployment: Written, row: Provider, kind: str) -> bool:
    """Return True where a deployment is of this kind: it says so, or names the provider alone."""
    said = deployment.get("kind", kind)
    return said == kind or (isinstance(said, str) and said not in _KINDS and provider_named(said) is row)


def _unknown(name: str) -> ValueError:
    near = nearest_provider(name)
    meant = f"; did you mean `{near}`?" if near else f"; there are {_names()}."
    return ValueError(
        f"no provider is called `{name[:64]}`{meant} For a host that speaks OpenAI's API write `kind: openai` and its `base_url`"
    )


def _first_provider(deployments: list[Any]) -> str | None:
    """Return the name of the first provider that a deployment names, or that its engine or address is, for finance."""
    for each in deployments:
        if isinstance(each, Mapping):
            kind, address = each.get("kind"), each.get("base_url")
            engine = isinstance(kind, str) and kind in OWN_ENGINES
            row = _row_of(each) or (provider_named(str(kind)) if engine else provider_at(str(address)))
            if row is not None:
                return row.name
    return None


def _names() -> str:
    return ", ".join(each.name for each in known_providers())
