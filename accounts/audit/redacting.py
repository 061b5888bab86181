"""What is taken out of an audit entry when a person is erased: names and addresses, never who did what.

A person's id stays: it is random, and once the person is erased nothing says whose it was.
"""

import json
import re
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, SQLColumnExpression, func, or_
from sqlmodel import col

from accounts.audit.chain import canonical
from accounts.audit.entry import Entry
from accounts.audit.tables import AuditEntryRow

ERASED: Final = "erased"
_OF_PERSON: Final = frozenset({"email", "name", "subject", "address", "agent"})
"""Fields of a person's own entries, whatever they say: an earlier name is one, too."""
_WORDS: Final = frozenset(
    {"role", "source", "scope", "kind", "period", "status", "type", "learning", "escalation", "cache", "on_exhausted"}
)
"""Fields of our own words: an end user may be called `admin`, too."""
_SEARCHED: Final = ("actor_name", "object_id", "reason", "before", "after")


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The person whose data is looked for in entries."""

    person_id: str = ""
    """Of somebody who signs in; empty for an end user."""
    anywhere: tuple[str, ...] = ()
    """Texts that are taken out wherever they stand, in any case: mail addresses."""
    whole: tuple[str, ...] = ()
    """Texts that are taken out where they are the whole value: names, ids of end users."""

    def within(self, column: SQLColumnExpression[Any]) -> list[ColumnElement[bool]]:
        """Return conditions one of which holds where the column has something of the person's."""
        found = [func.lower(column).contains(text.lower(), autoescape=True) for text in self.anywhere]
        # As it stands in JSON, too: a quote or backslash in a name is written otherwise there.
        texts = {text for each in self.whole for text in (each, json.dumps(each, ensure_ascii=False)[1:-1])}
        return found + [column.contains(text, autoescape=True) for text in sorted(texts)]

    def may_be_in(self) -> ColumnElement[bool]:
        """Return the condition of rows that may have something of the person; all others have nothing."""
        row = AuditEntryRow
        found: list[ColumnElement[bool]] = []
        if self.person_id:
            found += [col(row.actor_id) == self.person_id, col(row.object_id) == self.person_id]
        for name in _SEARCHED:
            found += self.within(col(getattr(row, name)))
        return or_(*found)

    def names_in(self, entry: Entry) -> set[str]:
        """Return the mail addresses and names that an entry about the person gives: they may be earlier ones."""
        if not self.person_id or entry.object_kind != "person" or entry.object_id != self.person_id:
            return set()
        states = [_state(entry.before), _state(entry.after)]
        found = {state.get(name) for state in states if isinstance(state, dict) for name in ("email", "name")}
        return {each for each in found if isinstance(each, str) and each and each != ERASED}

    def taken_out(self, entry: Entry) -> Entry:
        """Return the entry without the person's data; an equal one where it has none."""
        is_actor = bool(self.person_id) and entry.actor_id == self.person_id
        is_object = bool(self.person_id) and entry.object_kind == "person" and entry.object_id == self.person_id
        return msgspec.structs.replace(
            entry,
            actor_name=ERASED if is_actor else self.text_without(entry.actor_name),
            address="" if is_actor else entry.address,
            object_id=self.text_without(entry.object_id),
            reason=self.text_without(entry.reason),
            before=self.json_without(entry.before, of_person=is_object),
            after=self.json_without(entry.after, of_person=is_object),
        )

    def text_without(self, text: str) -> str:
        """Return a text without the person's data."""
        if text in self.whole:
            return ERASED
        for each in self.anywhere:
            text = _without(text, each)
        for each in self.whole:
            # A full name is one within a sentence, too; a word such as `will` may be none.
            if " " in each or "/" in each:
                text = text.replace(each, ERASED)
        return text

    def json_without(self, text: str, *, of_person: bool = False) -> str:
        """Return a JSON text, or another one, without the person's data."""
        state = _state(text)
        if state is None:
            return self.text_without(text)
        return canonical(self._value(state, of_person=of_person))

    def _value(self, value: Any, *, of_person: bool) -> Any:
        match value:
            case str():
                return self.text_without(value)
            case dict():
                return {
                    self.text_without(name): self._member(name, each, of_person=of_person)
                    for name, each in value.items()
                }
            case list():
                return [self._value(each, of_person=of_person) for each in value]
            case _:
                return value

    def _member(self, name: str, value: Any, *, of_person: bool) -> Any:
        if of_person and name in _OF_PERSON and value:
            return ERASED
        return value if name in _WORDS and isinstance(value, str) else self._value(value, of_person=of_person)


def _without(text: str, address: str) -> str:
    """Return the text with the mail address, in any case, replaced; of `joann@example.com` nothing is `ann@example.com`'s."""
    whole = rf"(?<![\w.+-]){re.escape(address)}(?![\w-]|\.\w)"
    return re.sub(whole, ERASED, text, flags=re.IGNORECASE) if address else text


def _state(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        # It was tampered with; it is searched as a text.
        return None
