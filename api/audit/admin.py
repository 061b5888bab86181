"""GET /v1/admin/audit: the organisation's audit log, paged as JSON, or complete as CSV or NDJSON."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.audit.log import MAX_PAGE, Filters, Scope
from api.audit.listing import MAX_EXPORT, BadFilter, entry_as_json, filters_from, pieces
from api.web.admin_access import AdminRequest, admin
from api.web.changing import looking
from api.web.gateway import Gateway
from api.web.openapi import PREFIX, described
from api.web.parameters import Parameters, day, one_of, text, whole
from api.web.patience import patience
from api.web.reading import Export
from proxy.errors import BadRequest

router = APIRouter(tags=["audit"])

KINDS: Final = {"csv": "text/csv; charset=utf-8; header=present", "ndjson": "application/x-ndjson"}
_USUAL: Final = 50
_MAX_NUMBER_DIGITS: Final = 18
_PATIENCE_S: Final = 10.0
_QUERY: Final = {
    "actor": text("Who: an id, or a part of a name."),
    "action": text("What: such as `key.revoked`, or only `key`."),
    "object": text("On what: an id, or a kind such as `budget`."),
    "team": text("In which team."),
    "from": day("The first UTC day."),
    "to": day("The last UTC day."),
    "before": whole("Only entries before this number: the `next_before` of the page before.", least=1),
    "limit": whole(
        f"Entries on a page, {_USUAL} unless it is said; in a file the oldest so many, without it all.",
        least=1,
        most=MAX_PAGE,
    ),
    "format": one_of(
        "`csv` or `ndjson` gives entries, the oldest first, as a file; ndjson can be verified later.",
        ("json", *KINDS),
        "json",
    ),
}


class ActorOut(msgspec.Struct, frozen=True, kw_only=True):
    """Actor of an entry: a person, a key, the command line, or the gateway itself."""

    kind: str
    id: str
    name: str
    address: str | None


class AuditEntryOut(msgspec.Struct, frozen=True, kw_only=True):
    """One change: actor, address, object, and its state before and after. Secrets are masked."""

    number: int
    at: str
    organisation_id: str
    team_id: str | None
    actor: ActorOut
    action: str
    object_kind: str
    object_id: str
    reason: str | None
    before: Any
    after: Any
    previous_hash: str
    hash: str
    object: str = "audit.entry"


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Entries, newest first. `next_before` continues, also where a search found less than a page; null on the last
    page.
    """

    data: list[AuditEntryOut]
    next_before: int | None
    object: str = "list"


@router.get(
    f"{PREFIX}/audit",
    **described(
        "Read the organisation's audit log",
        gives={200: AuditPage},
        query=_QUERY,
        files=("text/csv", "application/x-ndjson"),
    ),
)
async def read_audit(desk: Annotated[AdminRequest, Depends(admin("audit.read"))]) -> Response:
    """Return the organisation's own entries. Numbers are shared by all organisations, so they have gaps."""
    asked = Parameters(desk.request.query_params, _QUERY)
    query = {name: asked.text(name) or "" for name in _QUERY}
    filters = asked_filters(query)
    scope = Scope(organisation_id=desk.organisation_id)
    kind = query["format"] or "json"
    most = _whole_number(query, "limit", MAX_PAGE)
    if kind in KINDS:
        if query["before"]:
            raise BadRequest("`before` is for pages: a file begins with the oldest entry.", param="before")
        return export_reply(desk.gateway, scope, filters, kind, most)
    if kind != "json":
        raise BadRequest("`format` is json, csv or ndjson.", param="format")
    limit = most or _USUAL
    before = _whole_number(query, "before", 10**_MAX_NUMBER_DIGITS)
    async with looking(), desk.gateway.finance.reads:
        found = await desk.gateway.identity.audit.search(scope, filters, before_number=before, limit=limit + 1)
    page = found.entries[:limit]
    next_before = page[-1].number if len(found.entries) > limit else found.reached
    return desk.reply({"object": "list", "data": [entry_as_json(each) for each in page], "next_before": next_before})


def asked_filters(query: Mapping[str, str]) -> Filters:
    """Read the filters of an address's parameters. Raises BadRequest."""
    try:
        return filters_from(query)
    except BadFilter as error:
        raise BadRequest(f"`{error.param}` is not valid: {error}.", param=error.param) from error


def export_reply(gateway: Gateway, scope: Scope, filters: Filters, kind: str, most: int | None = None) -> Response:
    """Return a streamed download of every entry that matches, or of the oldest `most`."""
    headers = {
        "content-disposition": f'attachment; filename="audit.{kind}"',
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
    found = pieces(gateway.identity.audit, scope, filters, kind, most or MAX_EXPORT)
    return Export(_with_timeout(found, gateway.finance.reads), media_type=KINDS[kind], headers=headers)


async def _with_timeout(found: AsyncIterator[bytes], reads: asyncio.Semaphore) -> AsyncIterator[bytes]:
    """Yield the pieces of an export, each read within `_PATIENCE_S`. A failure raises, which cuts the connection, so
    that a truncated file is not taken for a complete one. Few exports read at a time, because requests need database
    connections too.
    """
    while True:
        async with patience(_PATIENCE_S), reads:
            piece = await anext(found, None)
        if piece is None:
            return
        yield piece


def _whole_number(query: Mapping[str, str], name: str, most: int) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    digits = text.isascii() and text.isdigit() and len(text) <= _MAX_NUMBER_DIGITS
    if not digits or not 1 <= int(text) <= most:
        raise BadRequest(f"`{name}` is a whole number from 1 to {most:,}.", param=name)
    return int(text)
