# ruff: noqa: INP001 - run by its path alone
"""Part of a lock: what some packages, or some extras of this project, need of it. `python requirements/select.py LOCK NAME…`.

A lock says of each package by which others it came (`# via`), so that nothing has to be resolved anew, and every hash stays.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[1]
_ENTRY: Final = re.compile(r"^(?=[a-z0-9])", re.MULTILINE)
_NAME: Final = re.compile(r"[a-z0-9._-]+")
_CAME_BY: Final = re.compile(r"^ +# +(?:via )?([a-z0-9._-]+)$", re.MULTILINE)


def selected(lock: str, names: set[str], extras: dict[str, list[str]]) -> list[str]:
    """Return the entries of `names`, and of all that came by them. Raises SystemExit for a name that the lock does not have."""
    found = [entry for entry in _ENTRY.split(lock) if "==" in entry]
    wanted = {each for name in names for each in map(_name, extras.get(name, [name]))}
    if unknown := wanted - set(map(_name, found)):
        raise SystemExit(f"not in the lock: {', '.join(sorted(unknown))}")
    before = 0
    while before != len(wanted):
        before = len(wanted)
        wanted |= {_name(entry) for entry in found if wanted & set(_CAME_BY.findall(entry))}
    return [entry for entry in found if _name(entry) in wanted]


def _name(requirement: str) -> str:
    found = _NAME.match(requirement.lower())
    return "" if found is None else re.sub(r"[._]", "-", found[0])


def main() -> None:
    """Print the part."""
    lock, *names = sys.argv[1:]
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    entries = selected(Path(lock).read_text(), set(names), project["optional-dependencies"])
    sys.stdout.write("".join(entries))


if __name__ == "__main__":
    main()
