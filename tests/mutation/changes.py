"""What of a module may be changed, one thing at a time, and which statement and function it stands in."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).parents[2]
_INSTEAD: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Div: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_NAMES_INSTEAD: Final = {"min": "max", "max": "min", "in_": "not_in", "not_in": "in_", "where": "", "filter": ""}
"""Names of what is called, with the one that is called instead; where there is none, what it is called on stays as it is."""
_SAID_OF_KINDS: Final = ("frozen", "kw_only", "maxsize", "strict")
"""Arguments that reckon nothing: they refuse what no code of ours does."""
_LUA: Final = re.compile(
    r"--.*|'[^']*'|math\.(?:min|max)|<=|>=|==|~=|\b(?:and|or|not)\b|(?<= )[-+*/<>](?= )|\b\d+(?:\.\d+)?\b"
)
_LUA_INSTEAD: Final = {
    "math.min": "math.max", "math.max": "math.min", "<=": "<", "<": "<=", ">=": ">", ">": ">=", "==": "~=", "~=": "==",
    "and": "or", "or": "and", "not": "", "-": "+", "+": "-", "*": "/", "/": "*",
}  # fmt: skip
_Functions = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """One thing that may be changed."""

    told: str
    """Line, and what in it."""
    statement: int
    """Line where its statement begins: what reaches that runs what may be changed."""
    function: str
    """Qualified name of the outermost function that it stands in; empty outside of all."""
    change: Callable[[], None]
    """Changes the tree that the place was found in."""

    @property
    def what(self) -> str:
        """What is changed, without the line, which every edit above it moves."""
        return self.told.partition(": ")[2]


IN_LUA: Final = "a script"
"""What stands for the function of what is changed in a script."""


def path_of(module: str) -> Path:
    """Return a module's file, which may be a script of Redis."""
    name, is_lua, _ = module.partition(".lua")
    return _ROOT / f"{name.replace('.', '/')}{'.lua' if is_lua else '.py'}"


def places_of(module: str) -> list[Place]:
    """Return what of a module or a script may be changed."""
    source = path_of(module).read_text()
    if module.endswith(".lua"):
        return [Place(told, 0, IN_LUA, lambda: None) for told, _ in lua_changes(source)]
    return places_in(source)[1]


def lua_changes(source: str) -> list[tuple[str, str]]:
    """Return what of a script may be changed, with the script so changed."""
    found: list[tuple[str, str]] = []
    lines = source.splitlines(keepends=True)
    for index, line in enumerate(lines):

        def changed_to(text: str, index: int = index) -> str:
            return "".join((*lines[:index], text, *lines[index + 1 :]))

        code = line.strip()
        if code.startswith("redis.call("):
            found.append((f"{index + 1}: left out: {code}", changed_to("\n")))
        for each in _LUA.finditer(line):
            word = each[0]
            other = str(int(word) + 1) if word.isdigit() else _LUA_INSTEAD.get(word)
            if other is not None:
                told = f"{index + 1}: {word} at {each.start()} in {code}"
                found.append((told, changed_to(line[: each.start()] + other + line[each.end() :])))
    return found


def places_in(source: str) -> tuple[ast.Module, list[Place]]:
    """Return a source's tree, and what of it may be changed, in the order of its lines."""
    tree, lines = ast.parse(source), source.splitlines()
    found: list[Place] = []
    for node, statement, function in _nodes(tree, 0, "", ""):
        for what, change in _changes(node, lines):
            line = getattr(node, "lineno", statement)
            found.append(Place(f"{line}: {what}", statement, function, change))
    return tree, found


def _nodes(node: ast.AST, statement: int, function: str, within: str) -> Iterator[tuple[ast.AST, int, str]]:
    """Yield all that runs, with its statement and function. What is said of types does not run."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or (isinstance(child, ast.keyword) and child.arg in _SAID_OF_KINDS):
                continue
            at = child.lineno if isinstance(child, ast.stmt) else statement
            yield child, at, function
            inner, name = function, within
            # What decorators and defaults say runs where the function is made.
            if isinstance(node, _Functions) and field in ("args", "decorator_list"):
                inner = "" if function == within.removesuffix(".") else function
            if isinstance(child, _Functions | ast.ClassDef):
                name = f"{within}{child.name}."
            yield from _nodes(child, at, _outermost(child, inner, name), name)


def _outermost(child: ast.AST, function: str, within: str) -> str:
    return function or (within.removesuffix(".") if isinstance(child, _Functions) else "")


def _changes(node: ast.AST, lines: list[str]) -> Iterator[tuple[str, Callable[[], None]]]:  # noqa: C901 - a table
    match node:
        case ast.BinOp(op=ast.BitOr()):
            pass
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in _INSTEAD:
            yield f"{type(op).__name__} in {ast.unparse(node)}", _setting(node, "op", _INSTEAD[type(op)]())
        case ast.Compare(ops=ops):
            for index, compared in enumerate(ops):
                which = f" {index + 1}" if len(ops) > 1 else ""
                if type(compared) in _INSTEAD:
                    others: list[ast.AST] = [*ops[:index], _INSTEAD[type(compared)](), *ops[index + 1 :]]
                    yield f"{type(compared).__name__}{which} in {ast.unparse(node)}", _setting(node, "ops", others)
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub() as op):
            yield (
                f"{type(op).__name__} in {ast.unparse(node)}",
                _setting(node, "op", ast.UAdd() if isinstance(op, ast.USub) else None),
            )
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES_INSTEAD:
            yield f"{name} in {ast.unparse(node)}", _setting(node.func, "id", _NAMES_INSTEAD[name])
        case ast.Call(func=ast.Attribute(attr=name)) if name in _NAMES_INSTEAD:
            yield f"{name} in {ast.unparse(node)}", _setting(node.func, "attr", _NAMES_INSTEAD[name])
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            pass
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield f"left out: {ast.unparse(node)}", _setting(node, "value", ast.Constant(None))
        case ast.Constant(value=int(value)):
            other = not value if isinstance(value, bool) else value + 1
            line = lines[node.lineno - 1].strip()
            yield f"{value!r} at {node.col_offset} in {line}", _setting(node, "value", other)
        case _:
            pass


def _setting(node: ast.AST, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(node, name, value)


class _Bare(ast.NodeTransformer):
    """Leaves out what a change has emptied."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        op: ast.unaryop | None = node.op
        return node if op is not None else ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.func.value if isinstance(node.func, ast.Attribute) and not node.func.attr else node


def changed(source: str, number: int) -> ast.Module:
    """Return a source's tree with one place changed."""
    tree, places = places_in(source)
    places[number].change()
    _Bare().visit(tree)
    return ast.fix_missing_locations(tree)


def told_of(source: str, call: str) -> ast.Module:
    """Return a source's tree that tells a function, a name of builtins, each line where a statement begins, before it runs."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                setattr(node, field, list(_telling(body, call)))
    return ast.fix_missing_locations(tree)


def _telling(body: list[ast.stmt], call: str) -> Iterator[ast.stmt]:
    for index, statement in enumerate(body):
        is_first = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and index == 0
        if not is_first and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            told = ast.Expr(ast.Call(ast.Name(call, ast.Load()), [ast.Constant(statement.lineno)], []))
            yield ast.fix_missing_locations(ast.copy_location(told, statement))
        yield statement
