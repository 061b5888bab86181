"""What unreadable bytes raise has one name, and it is complete."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from settings.decoding import DECODE_ERRORS

_OF_MSGSPEC = {"DecodeError", "MsgspecError", "ValidationError"}
_BESIDE_IT = {"UnicodeDecodeError", "UnicodeEncodeError", "UnicodeError", "RecursionError"}


@pytest.mark.parametrize("told", [b"{", b"\xff", b'"\xff"', "\ud800", b"[" * 100_000, b'{"a":' * 100_000])
def test_whatever_cannot_be_read_is_one_of_them(told: bytes | str) -> None:
    """Broken JSON, bytes that are no UTF-8, half a surrogate pair, and nesting without end."""
    with pytest.raises(DECODE_ERRORS):
        msgspec.json.decode(told)


def _may_list(text: str) -> bool:
    """Spare most modules the parsing."""
    return any(each in text for each in _BESIDE_IT) and any(f"msgspec.{each}" in text for each in _OF_MSGSPEC)


def _lists(tree: ast.AST) -> Iterator[int]:
    """Lines of lists that name what msgspec raises beside what Python does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple | ast.Call):
            each = node.elts if isinstance(node, ast.Tuple) else node.args
            msgspecs = {
                one.attr for one in each if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "msgspec"
            }
            if msgspecs & _OF_MSGSPEC and {one.id for one in each if isinstance(one, ast.Name)} & _BESIDE_IT:
                yield node.lineno


def test_no_module_lists_them_again() -> None:
    """A list beside it would sooner or later lack one."""
    names = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout.split()
    texts = {name: Path(name).read_text("utf-8") for name in names if not name.startswith("tests/")}
    del texts["settings/decoding.py"]
    found = [f"{name}:{line}" for name, text in texts.items() if _may_list(text) for line in _lists(ast.parse(text))]
    assert found == []


@pytest.mark.parametrize(
    "written",
    [
        "try: pass\nexcept (UnicodeDecodeError, msgspec.DecodeError): pass",
        "E = (msgspec.ValidationError, KeyError, RecursionError)",
        "with contextlib.suppress(msgspec.MsgspecError, UnicodeError): pass",
    ],
)
def test_a_second_list_is_found(written: str) -> None:
    """In any order, with others among them, in an `except`, a name or a call."""
    assert list(_lists(ast.parse(written)))
