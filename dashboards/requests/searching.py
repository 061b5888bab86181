"""The search field of requests: its line, with names looked up among the team's keys and the models, as a query."""

from collections.abc import Mapping
from typing import Any

import msgspec

from cost.reports.recent import OUTCOMES, RecentQuery, RecentReader
from cost.reports.request_search import MOST_CHARS, parse, unknown_outcome
from cost.reports.searched import narrowed
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
    found = parse(line, _OUTCOMES)
    outcome = found.fields.get("outcome", given)
    sought = view.query.get("id", "").strip() or found.request_id
    problems = list(found.problems)
    changes: dict[str, Any] = {name: value for name, value in found.fields.items() if name != "outcome"}
    changes["outcome"] = "" if outcome == REFUSED or outcome not in OUTCOMES else outcome
    if outcome == REFUSED:
        # Refused ones have no other order than that of time.
        changes |= {"order": "", "page": 1}
    targets = {name: name for name in view.gateway.rules().catalog.targets}
    query, untold = await narrowed(reader, found, msgspec.structs.replace(query, **changes), keys, targets)
    problems += untold
    if not sought and len(found.words) == 1 and not found.fields:
        sought = found.words[0]
    if view.query.get("id", "").strip() or found.request_id:
        problems.append(
            f"There is no request `{sought[:80]}` of this team. An id is written as in the reply's header x-request-id."
        )
    return SearchAsked(
        line=line,
        query=query,
        outcome=outcome if outcome in _OUTCOMES else "",
        request_id=sought if sought.isprintable() else "",
        problems=tuple(problems),
        refusal=found.refusal or ("" if given in _OUTCOMES else unknown_outcome(given, _OUTCOMES)),
    )
