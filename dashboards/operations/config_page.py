"""/dashboard/operations/config: the configuration in force, key by key, with every secret masked."""

import os
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.operations.masked import ConfigLine, environment_lines, lines
from dashboards.operations.overview_page import HOME
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest

router: Final = APIRouter(include_in_schema=False)
_MOST_MISSING: Final = 20
_ENVIRONMENT: Final = "environment"
COLUMNS: Final = (
    Column("key", "Key", "path"),
    Column("value", "Value"),
    Column("origin", "From", "badge"),
    Column("meaning", "What it does"),
)


@router.get(f"{HOME}/config")
async def show_config(view: Annotated[PageRequest, Depends(allowed("operations.read"))]) -> Response:
    """Show the configuration of this process, after the last reload, with environment variables applied."""
    section, defaults = view.query.get("section", ""), view.query.get("defaults", "") == "yes"
    config, environment = view.gateway.every_setting()
    everything = lines(config, os.environ) + ([] if environment is None else environment_lines(environment))
    names = (*type(config).model_fields, _ENVIRONMENT)
    found = [line for line in everything if section in {"", line.section} and (defaults or not line.is_default)]
    table = Table.of(
        COLUMNS,
        [_row(line) for line in found],
        view.query,
        name="config",
        caption="Configuration",
        page_rows=100,
        search=("key", "value", "meaning"),
        empty="There is no such section." if defaults else "Nobody set anything here; the defaults hold.",
    )
    file = view.csv_asked("configuration", table)
    if file is not None:
        return file
    kept = "&defaults=yes" if defaults else ""
    missing = {line.value: line.path for line in reversed(everything) if line.is_secret and "NOT SET" in line.value}
    return view.page(
        "operations/config.html",
        title="Configuration",
        table=table,
        sections=[("All", f"?{kept[1:]}", not section)]
        + [(name, f"?section={name}{kept}", name == section) for name in names],
        defaults=defaults,
        section=section if section in names else "",
        missing=sorted(missing.items())[:_MOST_MISSING],
    )


def _row(line: ConfigLine) -> dict[str, Any]:
    origin = ("Secret", "info") if line.is_secret else ("Default", "quiet") if line.is_default else ("Set", "good")
    return {"key": line.path, "value": line.value, "origin": origin, "meaning": line.meaning.replace("`", "")}
