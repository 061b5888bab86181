# ruff: noqa: INP001 - run by its path alone
"""List what an installation brings: package, version, licence, whether the base or an extra wants it, and which requirements pull it.

Licences are those of what is installed beside this interpreter, as their authors state them. How old a release is, and whether a hole is known in
it, no lock says: run a scanner of vulnerabilities over requirements/*.txt where there is a network.
"""

import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Final

from licences import licence

_ENTRY: Final = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\\n]+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_VIA: Final = re.compile(r"^    # +(?:via +)?(?!via)([^\n]+)$", re.MULTILINE)
_OURS: Final = "weighbridge (pyproject.toml)"


def _why(entry: str) -> str:
    found = [each for each in _VIA.findall(entry) if not each.startswith("-c ") and each != "via"]
    return ", ".join("asked for" if each == _OURS else each for each in found)


def _licence_here(name: str) -> str:
    try:
        return licence(importlib.metadata.distribution(name)) or "none stated"
    except importlib.metadata.PackageNotFoundError:
        return "not installed here"


def main() -> None:
    """Print a line for each package."""
    requirements = Path(__file__).parents[1] / "requirements"
    told: dict[tuple[str, str], tuple[str, str]] = {}
    for lock in ("base", "extras"):
        for name, version, entry in _ENTRY.findall((requirements / f"{lock}.txt").read_text()):
            told.setdefault((name, version), (lock, _why(entry)))
    for (name, version), (lock, why) in sorted(told.items()):
        sys.stdout.write(f"{name}\t{version}\t{_licence_here(name)}\t{lock}\t{why}\n")


if __name__ == "__main__":
    main()
