"""GET /v1/focus: the FOCUS 1.2 dataset of a range of days, as CSV."""

from collections.abc import AsyncIterator
from typing import Final

from fastapi import APIRouter, Request
from starlette.datastructures import QueryParams
from starlette.responses import Response

from api.focus.focus_export import focus_export
from api.web.accept import best_kind
from api.web.gateway import FinanceReader, Gateway, gateway_of
from api.web.openapi import described
from api.web.parameters import Parameters, day, listed
from api.web.reading import Export, reading, sound_query
from cost.calendars import calendar_of
from cost.reports.focus import FocusQuery
from cost.reports.scope import ReadScope
from proxy.errors import BadRequest, UsageUnavailable

router = APIRouter(tags=["usage"])

_MAX_PIECES: Final = 5_000
_GRANULARITIES: Final = ("day", "hour")
_PARAMETERS: Final = {
    "start": day("The first day.", is_needed=True),
    "end": day("The day after the last one.", is_needed=True),
    "granularity": listed("What a row is of; a day when left out.", _GRANULARITIES),
}


@router.get(
    "/v1/focus",
    response_class=Response,
    **described("Export FOCUS 1.2", gives={200: "The dataset"}, files=("text/csv",), query=_PARAMETERS),
)
async def focus(request: Request, scope: FinanceReader) -> Response:
    """Return the FOCUS dataset from `start` to before `end`; for a member key, its own team's. `granularity` is `day` or
    `hour`. Days and billing periods are those of the organisation's calendar, and are told in UTC.
    """
    best_kind(request.headers.get("accept"), ("text/csv",))
    return await focus_reply(gateway_of(request), scope, request.query_params)


async def focus_reply(gateway: Gateway, scope: ReadScope, given: QueryParams) -> Response:
    """Return the dataset of a scope that the caller may read. Raises BadRequest."""
    parameters = Parameters(given, _PARAMETERS)
    start, end = parameters.day("start"), parameters.day("end")
    if start is None or end is None:
        missing = "start" if start is None else "end"
        raise BadRequest(
            f"`{missing}` is missing: the export is of the days from `start` to before `end`.", param=missing
        )
    by_hour = "hour" in (parameters.listed("granularity", _GRANULARITIES) or ("day",))
    async with reading(gateway):
        calendar = await calendar_of(gateway.database, scope.organisation_id)
    with sound_query():
        query = FocusQuery(scope=scope, start=start, end=end, by_hour=by_hour, calendar=calendar).checked()
    # Read the first rows before the reply starts, so that an unreachable database still gets an error status.
    async with reading(gateway):
        pieces = (await focus_export(gateway.database)).csv(query)
        first = [await anext(pieces), await anext(pieces, "")]
    headers = {"vary": "accept", "content-disposition": f'attachment; filename="focus-{start}-{end}.csv"'}
    return Export(
        _remaining_pieces(gateway, "".join(first), pieces),
        media_type="text/csv; charset=utf-8; header=present",
        headers=headers,
    )


async def _remaining_pieces(gateway: Gateway, first: str, pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
    """Yield the remaining pieces. A failure raises, which cuts the connection, so that a truncated file is not taken for a
    complete one.
    """
    yield first.encode()
    for _ in range(_MAX_PIECES):
        async with reading(gateway, on=True):
            piece = await anext(pieces, None)
        if piece is None:
            return
        yield piece.encode()
    raise UsageUnavailable("These days have more rows than one export may; ask for fewer.")
