"""The YAML reader: plain values with their lines, exact numbers, and nothing that could blow up."""

import contextlib
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.configuration.file import (
    MAX_ALIASES,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_VALUES,
    ConfigError,
    parse_document,
    read_document,
    spell,
)


def _refusal(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        parse_document(text, "f.yaml")
    return str(refused.value)


def test_values_keep_their_lines() -> None:
    """Each key and each entry of a list knows the line it stands on."""
    document = parse_document("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n", "f.yaml")
    assert document.values == {"a": {"b": 1, "c": ["x", {"y": 2}]}}
    assert document.lines[("a", "b")] == 2
    assert document.lines[("a", "c", 1)] == 5
    assert document.lines[("a", "c", 1, "y")] == 5


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("0.075", Decimal("0.075")),
        ("-1.10", Decimal("-1.10")),
        ("2.", Decimal("2.")),
        ("7", 7),
        ("-7", -7),
        ("007", "007"),
        ("0x10", "0x10"),
        ("12:30", "12:30"),
        ("1e3", "1e3"),
        ("2026-06-01", "2026-06-01"),
        ("no", "no"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("'0.5'", "0.5"),
        ('"true"', "true"),
        ("env:NAME", "env:NAME"),
    ],
)
def test_scalars(written: str, read: object) -> None:
    """A scalar means what it looks like: no octal, no sexagesimal, no Norway, and no binary fractions."""
    value = parse_document(f"k: {written}", "f.yaml").values["k"]
    assert value == read
    assert type(value) is type(read)


@given(st.decimals(min_value=0, max_value=10**6, places=9, allow_nan=False, allow_infinity=False))
def test_prices_are_exact(price: Decimal) -> None:
    """Whatever price is written is the price that is read, digit for digit."""
    assert parse_document(f"price: {price:f}", "f.yaml").values["price"] == price


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("a: 1\nb: !!python/object:os.system x\n", 2, "tag"),
        ("a: !custom 1\n", 1, "tag"),
        ("a: b: c\n", 1, "not valid YAML"),
        ("a: [1, 2\n", 2, "not valid YAML"),
        ("a: *nothing\n", 1, "undefined alias"),
        ("a: 1\n---\nb: 2\n", 2, "one YAML document"),
        ("- a\n- b\n", 1, "must be a mapping"),
        ("just words\n", 1, "must be a mapping"),
        ("a: \x07\n", 1, "character"),
        ("a: &x [*x]\n", 1, "more than"),
        ("a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), 1, "nested deeper"),
        ("a: &x 1\nb: [" + "*x, " * (MAX_ALIASES + 1) + "]\n", 2, "aliases"),
        ("a: [" + "1," * (3 * MAX_VALUES) + "]\n", 1, "more than"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, line: int, part: str) -> None:
    """Tags, further documents, nonsense and endless structures are refused with their line."""
    message = _refusal(text)
    assert message.startswith(f"f.yaml:{line}: ")
    assert part in message


def test_an_alias_bomb_is_refused() -> None:
    """Few aliases that would unfold into very many values are counted as what they unfold to."""
    levels = "\n".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" if level else "a0: &a0 [x, x, x, x, x, x, x, x, x]"
        for level in range(7)
    )
    assert f"{MAX_VALUES} values" in _refusal(levels)


def test_duplicates_and_merge_keys_are_told_together() -> None:
    """Problems of form do not hide each other, and the first of two equal keys counts."""
    document = parse_document("a: 1\na: 2\nb:\n  <<: {x: 1}\n  c: .nan\n", "f.yaml")
    assert [str(problem) for problem in document.problems] == [
        "f.yaml:2: a: stands here twice; the first is on line 1",
        "f.yaml:4: b: merge keys (`<<`) are not understood; write the keys out",
        "f.yaml:5: b.c: must be a finite number",
    ]
    assert document.values["a"] == 1


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing, oversized or binary file is one clear line."""
    large, binary = tmp_path / "large.yaml", tmp_path / "binary.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    binary.write_bytes(b"a: 1\nb: \xff\n")
    for path, part in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "Is a directory"),
        (large, "larger than"),
        (binary, "not UTF-8"),
    ):
        with pytest.raises(ConfigError, match=part):
            read_document(path)


def test_an_empty_file_is_an_empty_document() -> None:
    """Nothing but comments is no error of form; the model then says what is required."""
    assert parse_document("# nothing\n", "f.yaml").values == {}


def test_paths_are_spelt_as_people_write_them() -> None:
    """Names are joined by points, entries are numbered in brackets."""
    assert spell(("providers", "models", 2, "tiers")) == "providers.models[2].tiers"


@given(st.text(max_size=200))
def test_no_text_crashes_the_reader(text: str) -> None:
    """Any text gives values or a ConfigError, and no other error."""
    with contextlib.suppress(ConfigError):
        parse_document(text, "f.yaml")
