"""The table of what is kept where is equal to the schema and to the data folder: what is new has to be named before it is merged."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import JSON, LargeBinary, String

from api.erasure.holdings import CODE, Holding, holdings
from gateway.configuration.gateway_config import GatewayConfig
from gateway.database import metadata
from settings.types import is_kept


def texts_of(table: str) -> set[str]:
    """Return the columns that may hold words or bytes. A number names nobody."""
    columns = metadata.tables[table].columns
    return {each.name for each in columns if isinstance(each.type, String | LargeBinary | JSON)}


@pytest.mark.parametrize("table", sorted(metadata.tables))
def test_every_column_of_text_is_named(table: str) -> None:
    """Whoever adds one to the schema says in `holdings.toml` whether it is a person's or a team's content, and how it is erased."""
    named = holdings().tables[table].columns if table in holdings().tables else ()
    left = texts_of(table) - holdings().plain
    assert left == set(named) - holdings().plain, f"name the columns of {table} in api/erasure/holdings.toml"


def test_nothing_is_named_that_is_not_there() -> None:
    """The table does not outlive what it is about."""
    assert holdings().tables.keys() <= metadata.tables.keys()
    everywhere = {name for table in metadata.tables for name in texts_of(table)}
    assert holdings().plain <= everywhere


def _kept(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        if is_kept(field):
            yield prefix + name
        for kind in _sections(field.annotation):
            yield from _kept(kind, f"{prefix}{name}.")


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for each in getattr(annotation, "__args__", ()) for kind in _sections(each)]


def test_every_place_of_the_data_folder_is_named() -> None:
    """A key of the configuration that says where something is kept is a place; the database is one, too, and so is what a reload asks."""
    assert holdings().places.keys() == {*_kept(GatewayConfig), "database", "serving"}


@pytest.mark.parametrize("name", sorted({**holdings().tables, **holdings().places}))
def test_what_is_not_erased_says_why(name: str) -> None:
    """Nobody has to guess whether it was forgotten."""
    each: Holding = {**holdings().tables, **holdings().places}[name]
    assert each.holds
    assert each.person or each.team or each.kept


def test_months_in_files_are_told() -> None:
    """Whoever erases somebody reads it, as their files are not rewritten."""
    assert "ledger archive" in holdings().kept()["ledger_entry"]


def test_rules_fit_the_schema() -> None:
    """Each names a column that is there, and a team's a column of time."""
    assert {each.table.name for each in holdings().of_person()} == {
        name for name, each in holdings().tables.items() if each.person not in {"", CODE}
    }
    for table, at in holdings().of_team():
        assert {"team_id", at} <= set(table.c.keys())
