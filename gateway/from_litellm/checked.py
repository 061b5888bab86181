"""The proof that what was written can be served: it is loaded as any configuration is, and what is refused is taken out and told."""

import re
import tempfile
from pathlib import Path
from typing import Any, Final

from gateway.configuration.environment import Environment
from gateway.configuration.file import ConfigError, Problem
from gateway.configuration.places import DATA
from gateway.configuration.settings import load
from gateway.from_litellm.configuration import as_yaml
from gateway.from_litellm.told import Account

_ROUNDS: Final = 8
_MODEL: Final = re.compile(r"providers\.models\[(\d+)\]")


def sound(written: dict[str, Any], environment: Environment, account: Account) -> dict[str, Any]:
    """Return the configuration without what `load` refuses. Raises ConfigError where that leaves nothing sound."""
    for _ in range(_ROUNDS):
        problems = _problems(written, environment)
        if not problems:
            return written
        gone: set[int] = set()
        for problem in problems:
            account.note("", 0, problem.key, "not possible", f"left out: {problem.message}")
            found = _MODEL.match(problem.key)
            if found is not None:
                gone.add(int(found[1]))
            else:
                _take_out(written, problem.key)
        models = written["providers"]["models"]
        written["providers"]["models"] = [each for place, each in enumerate(models) if place not in gone]
        if not written["providers"]["models"]:
            raise ConfigError(list(problems))
    raise ConfigError(list(_problems(written, environment)))


def _problems(written: dict[str, Any], environment: Environment) -> tuple[Problem, ...]:
    with tempfile.TemporaryDirectory(prefix="weighbridge-import-") as folder:
        path = Path(folder) / "weighbridge.yaml"
        path.write_text(as_yaml(written), encoding="utf-8")
        # What lies in this folder's `var` is where an earlier run left it: it was not lost on the way to the temporary file.
        environment = environment.model_copy(update={"data_dir": Path.cwd() / DATA})
        try:
            load(path, environment, secrets_from=None)
        except ConfigError as error:
            return error.problems
    return ()


def _take_out(written: dict[str, Any], key: str) -> None:
    """Take a key out of a section, or the section where it has no such key; an element of a list takes the list with it."""
    section, _, rest = key.partition(".")
    inner = written.get(section)
    name = rest.partition("[")[0]
    if section == "policy" and isinstance(inner, dict):
        kind, _, alias = rest.partition(".")
        within = inner.get(kind)
        if isinstance(within, dict) and within:
            chosen = max(
                (each for each in within if alias == each or alias.startswith((f"{each}[", f"{each}."))),
                key=len,
                default=None,
            )
            within.pop(chosen if chosen is not None else next(iter(within)))
            return
    if isinstance(inner, dict) and name.partition(".")[0] in inner:
        inner.pop(name.partition(".")[0])
        if not inner:
            del written[section]
    elif section != "providers":
        written.pop(section, None)
