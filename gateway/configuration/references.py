"""References of the configuration to targets that the catalog does not have."""

from collections.abc import Iterator

from gateway.configuration.file import Document, KeyPath, Problem, Value
from providers.shorthand import name_of_entry
from proxy.parse.chat_request import AUTO
from settings.words import closest


def dangling(document: Document) -> list[Problem]:
    """Return problems for references to targets that the catalog does not have.

    It reads the plain values, so that these are reported together with all other problems.
    """
    models = as_mapping(document.values.get("providers")).get("models")
    names = [name for model in _list(models) if (name := name_of_entry(as_mapping(model))) is not None]
    if not names:
        return []
    reserved = f"`{AUTO}` is reserved: it lets the gateway choose"
    aliases = as_mapping(as_mapping(document.values.get("policy")).get("aliases"))
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
    if AUTO in as_mapping(as_mapping(values.get("policy")).get("aliases")):
        yield "policy", "aliases", AUTO
    for index, model in enumerate(_list(as_mapping(values.get("providers")).get("models"))):
        entry = as_mapping(model)
        if name_of_entry(entry) == AUTO:
            yield "providers", "models", index, "model_id" if "model_id" in entry else "model"


def _unknown_limited(document: Document, targets: list[str]) -> Iterator[tuple[KeyPath, str, list[str]]]:
    """Yield models with limits that no caller can name, with path and known names; each would limit nothing."""
    known = [*targets, *as_mapping(as_mapping(document.values.get("policy")).get("aliases")), AUTO]
    for name in as_mapping(as_mapping(document.values.get("limits")).get("models")):
        if name not in known and not _stands_for(targets, name):
            yield ("limits", "models", name), name, known


def _references(values: dict[str, Value]) -> Iterator[tuple[KeyPath, str]]:
    policy = as_mapping(values.get("policy"))
    yield from _names(policy.get("auto"), ("policy", "auto"))
    for alias, targets in as_mapping(policy.get("aliases")).items():
        if targets != AUTO:
            yield from _names(targets, ("policy", "aliases", alias))
        yield from _names(as_mapping(targets).get("auto"), ("policy", "aliases", alias, "auto"))
    for target, others in as_mapping(policy.get("fallbacks")).items():
        yield ("policy", "fallbacks", target), target
        yield from _names(others, ("policy", "fallbacks", target))
    yield from _names(as_mapping(values.get("cost")).get("reference_target"), ("cost", "reference_target"))
    for index, pool in enumerate(_list(as_mapping(values.get("cost")).get("pools"))):
        yield from _names(as_mapping(pool).get("targets"), ("cost", "pools", index, "targets"))
    for queue, section in as_mapping(values.get("queues")).items():
        yield from _names(as_mapping(section).get("targets"), ("queues", queue, "targets"))
    for index, pool in enumerate(_list(as_mapping(values.get("selfhosted")).get("pools"))):
        yield from _names(as_mapping(pool).get("targets"), ("selfhosted", "pools", index, "targets"))
        for number, adapter in enumerate(_list(as_mapping(pool).get("adapters"))):
            where = ("selfhosted", "pools", index, "adapters", number, "target")
            yield from _names(as_mapping(adapter).get("target"), where)
    for target, host in as_mapping(as_mapping(values.get("cost")).get("hosted")).items():
        yield ("cost", "hosted", target), target
        yield from _names(host, ("cost", "hosted", target))
    shadow = as_mapping(as_mapping(values.get("classifier")).get("shadow"))
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


def as_mapping(value: Value) -> dict[str, Value]:
    return value if isinstance(value, dict) else {}


def _list(value: Value) -> list[Value]:
    return value if isinstance(value, list) else []
