"""The table of what is kept where (`holdings.toml`), and what becomes of it in an erasure."""

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
from sqlalchemy import Table
from sqlmodel import SQLModel

Verb = Literal["delete", "blank", "scrub"]
Value = Literal["person_id", "principal", "end_user", "spender", "request", "response"]
CODE: Final = "code"
_FILE: Final = Path(__file__).with_name("holdings.toml")


class Holding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept in one table or place, and what becomes of it."""

    holds: str
    columns: tuple[str, ...] = ()
    person: str = ""
    team: str = ""
    kept: str = ""


class Action(msgspec.Struct, frozen=True):
    """What is done to a table's rows where a person is erased."""

    table: Table
    verb: Verb
    column: str
    value: Value | None = None
    """What the column is compared with; None where it is searched."""


class Holdings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table."""

    plain: frozenset[str]
    tables: Mapping[str, Holding]
    places: Mapping[str, Holding]

    def of_person(self) -> list[Action]:
        """Return the actions that are no code, in the order of the file."""
        return [_action(name, each.person) for name, each in self.tables.items() if each.person and each.person != CODE]

    def of_team(self) -> list[tuple[Table, str]]:
        """Return the tables whose rows of a team are deleted, each with its column of time."""
        rules = [(name, each.team.split()) for name, each in self.tables.items() if each.team and each.team != CODE]
        return [(SQLModel.metadata.tables[name], rule[1]) for name, rule in rules]

    def kept(self) -> dict[str, str]:
        """Return what stays after an erasure of one kind or the other, and why; without what is nobody's."""
        every = {**self.tables, **self.places}
        return {name: each.kept for name, each in every.items() if each.kept and (each.person or each.team)}


@functools.cache
def holdings() -> Holdings:
    """Return the table."""
    return msgspec.convert(tomllib.loads(_FILE.read_text()), Holdings)


def _action(table: str, rule: str) -> Action:
    verb, column, *value = rule.split()
    return msgspec.convert({"verb": verb, "column": column, "value": value[0] if value else None}, _Rule).of(
        SQLModel.metadata.tables[table]
    )


class _Rule(msgspec.Struct):
    verb: Verb
    column: str
    value: Value | None

    def of(self, table: Table) -> Action:
        if (self.value is None) != (self.verb == "scrub") or self.column not in table.c:
            raise ValueError(f"{table.name}: {self.verb} {self.column} {self.value} is no rule")
        return Action(table, self.verb, self.column, self.value)
