"""/dashboard/finance/exports: downloads of the finance APIs' files, authorised by the session instead of a key."""

from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Depends
from starlette.datastructures import QueryParams
from starlette.responses import Response

from api.focus.routes import focus_reply
from api.organization.routes import COMPLETIONS, COSTS, EMBEDDINGS, organization_reply
from api.usage.routes import CSV, NDJSON, usage_export
from api.web.address import base_url
from api.web.reading import reading
from cost.dimensions import ON_PAGES
from dashboards.web.access import allowed
from dashboards.web.headers import SAFE
from dashboards.web.period import Period, period_of, presets, team_names, whole_organisation
from dashboards.web.view import PageRequest
from proxy.errors import BadRequest

router: Final = APIRouter(include_in_schema=False)

PATH: Final = "/dashboard/finance/exports"
_GROUPS: Final = ("day", *ON_PAGES)
_MOST_BUCKETS: Final = 31
"""Most days of a file in OpenAI's format: it is one page, without a next one."""
_MOST_COST_BUCKETS: Final = 180
_OPENAI: Final = {
    "costs": (COSTS, _MOST_COST_BUCKETS, "project_id,line_item"),
    "completions": (COMPLETIONS, _MOST_BUCKETS, "project_id,api_key_id,model"),
    "embeddings": (EMBEDDINGS, _MOST_BUCKETS, "project_id,api_key_id,model"),
}
"""Files in OpenAI's format: what is asked, its most days, and what it is grouped by."""


@router.get(PATH)
async def show(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Show the exports on offer for the chosen days."""
    now_us = view.now_us
    async with reading(view.gateway, on=True):
        period = period_of(view.query, now_us, await view.calendar())
        teams = await team_names(view)
    days = urlencode({"from": period.first, "to": period.last})
    return view.page(
        "finance/exports.html",
        title="Exports",
        period=period,
        presets=presets(view.query, now_us, period),
        groups=_GROUPS,
        days=days,
        teams=[("", "All teams"), *sorted(teams.items(), key=lambda each: each[1].casefold())],
        fits_usage=period.days <= _MOST_BUCKETS,
        fits_costs=period.days <= _MOST_COST_BUCKETS,
        address=base_url(view.request, view.gateway.config().sign_in.public_url),
    )


@router.get(f"{PATH}/usage")
async def usage(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Send tokens and cost, grouped as the form chooses, as CSV or NDJSON."""
    period = await _valid_period(view)
    given = [("start", period.first), ("end", period.end)]
    given += [("group_by", each) for each in view.query.getlist("group_by")]
    if view.query.get("team_id"):
        given.append(("team_id", view.query["team_id"]))
    is_lines = view.query.get("format") == "ndjson"
    reply = await usage_export(view.gateway, whole_organisation(view), QueryParams(given), NDJSON if is_lines else CSV)
    return _as_download(reply, f"usage-{period.first}-{period.last}.{'ndjson' if is_lines else 'csv'}")


@router.get(f"{PATH}/focus.csv")
async def focus(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Send the FOCUS 1.2 dataset as CSV."""
    period = await _valid_period(view)
    given = {"start": period.first, "end": period.end, "granularity": view.query.get("granularity", "day")}
    reply = await focus_reply(view.gateway, whole_organisation(view), QueryParams(given))
    return _as_download(reply, f"focus-{period.first}-{period.last}.csv")


@router.get(f"{PATH}/costs.json")
@router.get(f"{PATH}/completions.json")
@router.get(f"{PATH}/embeddings.json")
async def as_openai(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Send costs or usage in OpenAI's format, by day, project and what else each has."""
    name = view.request.url.path.rpartition("/")[2].removesuffix(".json")
    kind, most, group_by = _OPENAI[name]
    period = await _valid_period(view)
    given = QueryParams(_buckets(period, most, group_by))
    reply = await organization_reply(kind, view.gateway, whole_organisation(view), given)
    return _as_download(reply, f"{name}-{period.first}-{period.last}.json")


async def _valid_period(view: PageRequest) -> Period:
    """Return the period of the address. Raises BadRequest instead of falling back to the usual days, which a file would not
    reveal.
    """
    async with reading(view.gateway, on=True):
        calendar = await view.calendar()
    period = period_of(view.query, view.now_us, calendar)
    if period.problem:
        raise BadRequest(period.problem.partition(". ")[0] + ".", param="from")
    return period


def _buckets(period: Period, most: int, group_by: str) -> Mapping[str, str]:
    """Return the parameters that ask for the whole period in one page. Raises BadRequest when it has more than `most`
    days.
    """
    if period.days > most:
        raise BadRequest(
            f"One such file has at most {most} days; choose fewer, or ask the API page by page.", param="to"
        )
    return {
        # OpenAI's buckets are UTC days.
        "start_time": str(period.span.marks.start // 1_000_000),
        "end_time": str(period.span.marks.stop // 1_000_000),
        "bucket_width": "1d",
        "group_by": group_by,
        "limit": str(most),
    }


def _as_download(reply: Response, name: str) -> Response:
    """Return the reply as an attachment that no cache stores."""
    for header, value in SAFE.items():
        reply.headers[header] = value
    reply.headers["content-disposition"] = f'attachment; filename="{name}"'
    reply.headers["cache-control"] = "no-store"
    return reply
