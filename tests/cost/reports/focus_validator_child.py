"""Runs the public focus-validator; `.venv-focus/bin/python focus_validator_child.py ARGUMENTS OF focus-validator`.

Release 2.2.1 has a backslash in one f-string, which Python before 3.12 cannot parse: there that one expression is
replaced by its equal while the module is loaded. And it looks for its own tables beneath the working directory, so
it gets one with a link to itself.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

_MODULE: Final = "focus_validator.config_objects.focus_to_duckdb_converter"
_ASKS_FOR_3_12: Final = rb"""f"'{k.replace('\"', '\"\"')}'" for k in ignore_keys"""
_EQUAL: Final = rb"""("'" + k.replace('"', '""') + "'") for k in ignore_keys"""


class _Loader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]  # It is no static method here.
        if data.count(_ASKS_FOR_3_12) != 1:
            raise SystemExit(f"{_MODULE} is another release's: is the replacement still needed?")
        code: CodeType = super().source_to_code(data.replace(_ASKS_FOR_3_12, _EQUAL), path)
        return code


class _Finder:
    """Finds the one module as usual, and lets the loader above load it."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


def main() -> None:
    if sys.version_info < (3, 12):
        sys.meta_path.insert(0, _Finder)
    found = importlib.util.find_spec("focus_validator")
    if found is None or found.origin is None:
        raise SystemExit("focus-validator is not installed here")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "focus_validator").symlink_to(Path(found.origin).parent)
        os.chdir(folder)
        importlib.import_module("focus_validator.main").main()


if __name__ == "__main__":
    main()
