"""Change one thing of a module at a time, and see whether its tests notice: `python -m tests.mutation.mutate [SEED [MOST [MODULE]]]`.

Each change is tried in a process of its own, whose import of the module is answered with the changed one; no file is written. `MODULES` says by
which tests a module is held, `survivors.toml` beside it why a change that no test notices is none.
"""

import ast
import importlib.machinery
import importlib.util
import os
import random
import subprocess
import sys
import tomllib
from pathlib import Path
from types import CodeType
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_LONGEST_S: Final = 120
MODULES: Final = {
    "cost.amounts": ("tests/cost/test_amounts.py", "tests/cost/test_prices.py"),
    "cost.prices": ("tests/cost/test_prices.py", "tests/cost/test_meters.py"),
    "cost.usage": ("tests/cost/test_usage.py", "tests/cost/test_meters.py"),
    "cost.budgets.periods": ("tests/cost/budgets/test_periods.py",),
    "cost.ledger.rollups": ("tests/cost/ledger/test_rollups.py",),
    "proxy.admit.limits.bucket": ("tests/proxy/admit/limits/test_bucket.py",),
}
_INSTEAD: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Div: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def _changes(source: str) -> tuple[ast.Module, list[tuple[ast.AST, str]]]:
    """Return the places that may be changed, with what they are told as: line, and what in it."""
    tree, lines = ast.parse(source), source.splitlines()
    found: list[tuple[ast.AST, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in _INSTEAD and not _is_type(node):
                found.append((node, f"{node.lineno}: {type(op).__name__} in {ast.unparse(node)}"))
            case ast.Compare(ops=[op]) if type(op) in _INSTEAD:
                found.append((node, f"{node.lineno}: {type(op).__name__} in {ast.unparse(node)}"))
            case ast.Constant(value=int(value)):
                found.append(
                    (node, f"{node.lineno}: {value!r} at {node.col_offset} in {lines[node.lineno - 1].strip()}")
                )
            case _:
                pass
    return tree, found


def _is_type(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


def _change(node: ast.AST) -> None:
    match node:
        case ast.BinOp() | ast.BoolOp():
            node.op = _INSTEAD[type(node.op)]()  # type: ignore[assignment]
        case ast.Compare():
            node.ops = [_INSTEAD[type(node.ops[0])]()]  # type: ignore[list-item]
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value)):
            node.value = value + 1
        case _:
            raise AssertionError(node)


def _path(module: str) -> Path:
    return _ROOT / f"{module.replace('.', '/')}.py"


def changes_of(module: str) -> list[str]:
    """Return what each change of a module is told as."""
    return [told for _, told in _changes(_path(module).read_text())[1]]


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads a module with one change in it."""

    def __init__(self, module: str, number: int) -> None:
        super().__init__(module, str(_path(module)))
        self._number = number

    def get_code(self, fullname: str) -> CodeType:
        tree, places = _changes(_path(fullname).read_text())
        _change(places[self._number][0])
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


class _Finder:
    """Answers for one module alone."""

    def __init__(self, module: str, number: int) -> None:
        self._module, self._loader = module, _Changed(module, number)

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self._loader) if name == self._module else None


def survives(module: str, number: int) -> bool:
    """Return True where no test notices a change."""
    command = [sys.executable, "-m", "tests.mutation.mutate", "child", module, str(number), *MODULES[module]]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=_ROOT, env=environment, check=False, capture_output=True, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _child(module: str, number: str, *tests: str) -> int:
    sys.meta_path.insert(0, _Finder(module, int(number)))
    import pytest

    return int(pytest.main(["-n", "0", "-q", "-x", "-p", "no:cacheprovider", *tests]))


def main(arguments: list[str]) -> int:
    """Try changes in an order of chance, and tell those that survive without a reason. Returns 1 where there is one."""
    if arguments[:1] == ["child"]:
        return _child(*arguments[1:])
    chance = random.Random(int(arguments[0]) if arguments else 0)
    explained = tomllib.loads((Path(__file__).parent / "survivors.toml").read_text())
    tried = [
        (module, number, told) for module in arguments[2:] or MODULES for number, told in enumerate(changes_of(module))
    ]
    chance.shuffle(tried)
    tried = tried[: int(arguments[1])] if len(arguments) > 1 else tried
    left = 0
    for module, number, told in tried:
        known = told.partition(": ")[2] in explained.get(module, {})
        if not known and survives(module, number):
            left += 1
            print(f"survives: {module}:{told}", flush=True)
    print(f"{len(tried)} changes, {left} that no test notices")
    return int(left > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
