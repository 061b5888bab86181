# ruff: noqa: INP001 - run by its path alone, in the image
"""List the packages of Python beside this interpreter with their licences, as their authors state them. Ends with 1 where one states none,
or one under which we could not be passed on. Run inside the image by .ci/sbom.
"""

import importlib.metadata
import re
import sys

_REFUSED = re.compile(r"\b(A?GPL|GNU (Affero )?General Public|SSPL|BUSL|proprietary)", re.IGNORECASE)
_CLASSIFIER = "License :: "


def licence(package: importlib.metadata.Distribution) -> str:
    stated = package.metadata
    classified = [
        each.rpartition(" :: ")[2] for each in stated.get_all("Classifier") or () if each.startswith(_CLASSIFIER)
    ]
    # Some have the whole text here, of which the first line is the name.
    text = (stated.get("License") or "").strip().partition("\n")[0]
    return stated.get("License-Expression") or ", ".join(each for each in classified if each != "OSI Approved") or text


def main() -> int:
    """Print a line for each package."""
    refused = 0
    for package in sorted(importlib.metadata.distributions(), key=lambda each: each.metadata["Name"].lower()):
        stated = licence(package)
        wrong = not stated or _REFUSED.search(stated) is not None
        refused += wrong
        sys.stdout.write(
            f"{package.metadata['Name']}\t{package.version}\t{stated or 'none stated'}{'  <-- refused' if wrong else ''}\n"
        )
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
