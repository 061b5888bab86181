"""A search of requests with its names looked up among keys and models, as a query."""

from collections.abc import Mapping
from typing import Any

import msgspec

from cost.end_users import booked
from cost.reports.recent import RecentQuery, RecentReader, Word
from cost.reports.request_search import Search, called


async def narrowed(
    reader: RecentReader, found: Search, query: RecentQuery, keys: Mapping[str, str], targets: Mapping[str, str]
) -> tuple[RecentQuery, list[str]]:
    """Return the query with a search's names and words, and what was not found among `keys` and `targets`, names by id."""
    problems: list[str] = []
    changes: dict[str, Any] = {}
    for field, text, names, what in (
        ("keys", found.key, keys, "key of this team"),
        ("targets", found.model, targets, "model"),
    ):
        if text:
            # A model that is configured no more is still in the books, by its whole name.
            changes[field] = called(text, names) or ((text,) if field == "targets" else ())
            if not called(text, names):
                problems.append(f"No {what} is called `{text[:80]}`.")
    words, end_user = [], ""
    for text in found.words:
        word = Word(text, booked(text), called(text, keys), called(text, targets))
        is_end_user = not (word.keys or word.targets or end_user or query.end_user)
        if is_end_user and await reader.knows_end_user(query.scope, word.end_user):
            # Found by its index, however long ago it called.
            end_user = changes["end_user"] = word.end_user
        else:
            words.append(word)
    return msgspec.structs.replace(query, words=tuple(words), **changes), problems
