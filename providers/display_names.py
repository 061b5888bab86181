"""The names that providers print on invoices for their models: the table of `data/display_names.toml`."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    provider: str
    ids: list[str]
    names: list[str]
    source: list[str]
    """Keys of the table's sources."""


class _Read(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    read: Any


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: list[_Row]
    sources: dict[str, str]
    read: _Read


def _load() -> Mapping[str, tuple[str, ...]]:
    text = Path(__file__).with_name("data").joinpath("display_names.toml").read_text(encoding="utf-8")
    table = msgspec.convert(tomllib.loads(text), _Table)
    rows = table.models
    if unknown := {name for row in rows for name in row.source} - table.sources.keys():
        raise ValueError(f"display_names.toml: no source is named {', '.join(sorted(unknown))}")
    return {model_id: tuple(row.names) for row in rows for model_id in row.ids}


_NAMES: Final = _load()


def display_names(model_id: str) -> tuple[str, ...]:
    """Return the names that a model is billed under, by its id without the date of a snapshot; none for an unknown one."""
    return _NAMES.get(model_id, ())
