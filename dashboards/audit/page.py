"""/dashboard/audit: the organisation's audit log, with actor, address, time, and the object before and after each
change.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.audit.entry import Entry
from accounts.audit.log import Filters, Scope
from api.audit.admin import export_reply
from api.audit.listing import FILTERS, BadFilter, filters_from, name_of
from api.web.changing import looking
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest
from proxy.errors import AuditEntryNotFound

router: Final = APIRouter(include_in_schema=False)

PAGE_ROWS: Final = 50
_LOOK_S: Final = 0.05
"""Longest search of one page; where it found none, it looks further back by itself, and shows meanwhile how far it is."""
_MAX_NUMBER_DIGITS: Final = 18
_SHOWN_CHANGES: Final = 3
_SHOWN_CHARS: Final = 60
_HERE: Final = "/dashboard/audit"
_KINDS: Final = {
    "person": ("person", "info"),
    "key": ("API key", "quiet"),
    "console": ("command line", "warn"),
    "gateway": ("gateway", "quiet"),
}
_COLUMNS: Final = (
    Column("at", "When", "time", sortable=False),
    Column("who", "Who", sortable=False),
    Column("action", "What", "link", sortable=False),
    Column("of", "On what", sortable=False),
    Column("team", "Team", sortable=False, usual=False),
    Column("changed", "Changed", sortable=False),
    Column("reason", "Why", sortable=False),
)


@router.get(_HERE)
async def show_log(view: Annotated[PageRequest, Depends(allowed("audit.read"))]) -> Response:
    """Show the entries that match the filters, newest first, with links to the neighbouring pages; or all of them as a CSV."""
    try:
        filters, problem = filters_from(view.query), None
    except BadFilter as error:
        filters, problem = Filters(), error
    scope = Scope(organisation_id=view.principal.organisation_id)
    if view.query.get("format") == "csv" and problem is None:
        return export_reply(view.gateway, scope, filters, "csv")
    async with looking(), view.gateway.finance.reads:
        names = await view.gateway.identity.accounts.team_names(view.principal.organisation_id)
        page = await _page(view, scope, filters)
    asked = {name: view.query.get(name, "") for name in FILTERS if view.query.get(name, "")}
    table = Table.paged(
        _COLUMNS,
        [_row(entry, names) for entry in page.entries],
        caption="Audit log",
        previous_href=None if page.newer is None else _href(asked, after=page.newer),
        next_href=None if page.older is None else _href(asked, before=page.older),
        csv_href=_href(asked, format="csv"),
        empty=_empty(asked, page),
    )
    return view.page(
        "audit/log.html",
        title="Audit log",
        status=200 if problem is None else 400,
        table=table,
        # Nothing was found so far: the page looks further back by itself.
        further=_href(asked, before=page.older) if page.older is not None and not page.entries else None,
        asked={name: asked.get(name, "") for name in FILTERS},
        is_filtered=bool(asked),
        errors={} if problem is None else {problem.param: f"{problem}."},
        teams=[("", "Any team"), *sorted(names.items(), key=lambda item: item[1].casefold())],
    )


@router.get(f"{_HERE}/{{number}}")
async def show_entry(view: Annotated[PageRequest, Depends(allowed("audit.read"))], number: str) -> Response:
    """Show one entry in full. Raises AuditEntryNotFound, also for another organisation's."""
    scope = Scope(organisation_id=view.principal.organisation_id)
    wanted = _number(number)
    async with looking():
        entry = None if wanted is None else await view.gateway.identity.audit.entry(scope, wanted)
    if entry is None:
        raise AuditEntryNotFound(f"There is no entry {number[:_MAX_NUMBER_DIGITS]} in your organisation's log.")
    return view.page(
        "audit/entry.html",
        title=f"{entry.action} · {entry.object_id}",
        entry=entry,
        kind=_KINDS.get(entry.actor_kind, (entry.actor_kind, "quiet")),
        rows=[(each.name, _as_text(each.before), _as_text(each.after)) for each in entry.differences()],
    )


class _Page(NamedTuple):
    """Entries of one page, and the numbers from which the pages of newer and of older entries continue."""

    entries: Sequence[Entry]
    newer: int | None
    older: int | None


async def _page(view: PageRequest, scope: Scope, filters: Filters) -> _Page:
    """Read one entry more than is shown, to know whether there is a further page."""
    log = view.gateway.identity.audit
    before, after = _number(view.query.get("before", "")), _number(view.query.get("after", ""))
    more = PAGE_ROWS + 1
    if after is not None and before is None:
        found = await log.search(scope, filters, after_number=after, limit=more, most_s=_LOOK_S)
        entries = found.entries[-PAGE_ROWS:]
        newest = entries[0].number if len(found.entries) == more else found.reached
        return _Page(entries, newest, entries[-1].number if entries else after + 1)
    found = await log.search(scope, filters, before_number=before, limit=more, most_s=_LOOK_S)
    entries = found.entries[:PAGE_ROWS]
    newest = None if before is None else entries[0].number if entries else before - 1
    return _Page(entries, newest, entries[-1].number if len(found.entries) == more else found.reached)


def _empty(asked: Mapping[str, str], page: _Page) -> str:
    if not asked:
        return "Nothing was changed yet."
    if page.older is None and page.newer is not None:
        return "None among these entries and all older ones; newer ones are a page back."
    if page.older is not None:
        return "None among the entries that were looked through so far; there are older ones."
    return "Nothing fits; clear the filters to see everything."


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_NUMBER_DIGITS else None


def _href(asked: Mapping[str, str], **more: str | int) -> str:
    return f"?{urlencode({**asked, **more})}"


def _row(entry: Entry, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "at": entry.at_us,
        "who": _actor_label(entry),
        "action": entry.action,
        "action_href": f"{_HERE}/{entry.number}",
        "of": name_of(entry),
        "team": names.get(entry.team_id, entry.team_id) or None,
        "changed": _changes_line(entry),
        "reason": entry.reason.partition("\n")[0] or None,
    }


def _actor_label(entry: Entry) -> str:
    """Return the actor's name, with its kind unless it is a person: a key may have the same name as a person."""
    kind, _ = _KINDS.get(entry.actor_kind, (entry.actor_kind, ""))
    return entry.actor_name if entry.actor_kind == "person" else f"{entry.actor_name} ({kind})"


def _changes_line(entry: Entry) -> str | None:
    """Return the first differences in one line; None when nothing differs."""
    found = entry.differences()
    if not found:
        return None
    if not entry.before or not entry.after:
        return "new" if entry.after else "gone"
    told = [f"{each.name}: {_cut(each.before)} → {_cut(each.after)}" for each in found[:_SHOWN_CHANGES]]
    return "; ".join([*told, f"{len(found) - _SHOWN_CHANGES} more"] if len(found) > _SHOWN_CHANGES else told)


def _cut(text: str | None) -> str:
    shown = _as_text(text) or "nothing"
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"


def _as_text(text: str | None) -> str:
    """Return a value as text; absent and null values are empty."""
    return "" if text is None or text == "null" else text
