"""The schemas of custom resources, as their definitions publish them: what packages for Node.js carry."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

_HERE: Final = Path(__file__).parent
_BUILT: Final = _HERE.parents[1] / "build" / "kinds"

needs_kinds = pytest.mark.skipif(
    shutil.which("node") is None or not (_BUILT / "node_modules/@kubernetes-models/gateway-api").exists(),
    reason="needs node and `make build/kinds/.ready`",
)


def refused_by_published_schemas(documents: list[dict[str, Any]]) -> str | None:
    """Return what the schemas have against the first that they do not take; None when nothing."""
    assert documents
    # Modules are looked up from where the script stands.
    script = shutil.copy(_HERE / "validate.mjs", _BUILT / "validate.mjs")
    done = subprocess.run(
        ["node", script], input=json.dumps(documents), capture_output=True, text=True, check=False, timeout=60
    )
    return None if done.returncode == 0 else done.stderr
