"""The search field of requests: its line, with names looked up among the team's keys and the models, as a query."""

from collections.abc import Mapping
from typing import Any

import msgspec

from cost.end_users import booked
from cost.reports.recent import OUTCOMES, RecentQuery, RecentReader, Word
from cost.reports.request_search import MOST_CHARS, Search, called, parse, unknown_outcome
from dashboards.requests.refused import REFUSED
from dashboards.web.view import PageRequest

_OUTCOMES = (*OUTCOMES, REFUSED)


class SearchAsked(msgspec.Struct, frozen=True, kw_only=True):
    """A search as it was read."""

    line: str
    query: RecentQuery
    outcome: str
    """One of the outcomes, or `refused`."""
    request_id: str = ""
    """The id that is asked for, or may be; a request of it is opened at once."""
    problems: tuple[str, ...] = ()
    refusal: str = ""
    """Why nothing is searched."""


async def read_search(
    view: PageRequest, reader: RecentReader, keys: Mapping[str, str], query: RecentQuery
) -> SearchAsked:
    """Return what the address asks for: its line `q`, beside the filters that `query` has. `keys` are the team's, by id."""
    line = view.query.get("q", "")[: MOST_CHARS + 1].strip()
    given = view.query.get("outcome", "")
    found = parse(line, _OUTCOMES, view.now_us)
    outcome = found.fields.get("outcome", given)
    sought = view.query.get("id", "").strip() or found.request_id
    problems = list(found.problems)
    changes: dict[str, Any] = {name: value for name, value in found.fields.items() if name != "outcome"}
    changes["outcome"] = "" if outcome == REFUSED or outcome not in OUTCOMES else outcome
    if outcome == REFUSED:
        # Refused ones have no other order than that of time.
        changes |= {"order": "", "page": 1}
    targets = {name: name for name in view.gateway.rules().catalog.targets}
    changes |= _named(found, keys, targets, problems)
    words, end_user = [], ""
    for text in found.words:
        word = Word(text, booked(text), called(text, keys), called(text, targets))
        if not (word.keys or word.targets or end_user or "end_user" in changes) and await reader.knows_end_user(
            query.scope, word.end_user
        ):
            # Found by its index, however long ago it called.
            end_user = word.end_user
        else:
            words.append(word)
    if end_user:
        changes["end_user"] = end_user
    if not sought and len(found.words) == 1 and not found.fields:
        sought = found.words[0]
    if view.query.get("id", "").strip() or found.request_id:
        problems.append(
            f"There is no request `{sought[:80]}` of this team. An id is written as in the reply's header x-request-id."
        )
    return SearchAsked(
        line=line,
        query=msgspec.structs.replace(query, words=tuple(words), **changes),
        outcome=outcome if outcome in _OUTCOMES else "",
        request_id=sought if sought.isprintable() else "",
        problems=tuple(problems),
        refusal=found.refusal or ("" if given in _OUTCOMES else unknown_outcome(given, _OUTCOMES)),
    )


def _named(
    found: Search, keys: Mapping[str, str], targets: Mapping[str, str], problems: list[str]
) -> dict[str, tuple[str, ...]]:
    changes = {}
    for field, text, names, what in (
        ("keys", found.key, keys, "key of this team"),
        ("targets", found.model, targets, "model"),
    ):
        if text:
            # A model that is configured no more is still in the books, by its whole name.
            changes[field] = called(text, names) or ((text,) if field == "targets" else ())
            if not called(text, names):
                problems.append(f"No {what} is called `{text[:80]}`.")
    return changes
