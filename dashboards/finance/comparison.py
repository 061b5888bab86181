"""A provider's own export held against one organisation's books. It reads; posting is a command's (`weighbridge reconcile`)."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.reconcile.anthropic import read_anthropic
from cost.reconcile.books import booked
from cost.reconcile.matching import Matching, OurRow, Reconciliation, compare, days_between
from cost.reconcile.openai import read_openai
from cost.reconcile.statement import Statement
from providers.config import ModelConfig

Exporter = Literal["openai", "anthropic"]
EXPORTERS: Final[tuple[Exporter, ...]] = get_args(Exporter)


def upstream_models(models: Sequence[ModelConfig], providers: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """The providers' targets, each with the names that the provider may know it by."""
    wanted = {name.lower() for name in providers}
    return {
        model.model_id: tuple(
            # litellm's names begin with the provider's.
            dict.fromkeys((each.upstream_model or model.model_id).rpartition("/")[2] for each in model.deployments)
        )
        for model in models
        if model.provider.lower() in wanted
    }


async def compared(
    engine: AsyncEngine,
    organisation_id: str,
    exporter: Exporter,
    files: Sequence[tuple[str, bytes]],
    *,
    providers: frozenset[str],
    models: Mapping[str, tuple[str, ...]],
    same_models: Sequence[tuple[str, str]] = (),
) -> Reconciliation:
    """Their files against what this organisation booked on the days that they tell of. Raises BadExport, TooManyRows.

    `providers` are the names that the configuration has for the exporter; `same_models` pairs of their name and ours.
    """
    matching = Matching(upstream_models=dict(models), models=tuple(same_models), organisation_id=organisation_id)
    # A month's export is some megabytes of JSON: not in the loop that serves requests.
    statement = await asyncio.to_thread(read_openai if exporter == "openai" else read_anthropic, files)
    days = days_between(statement, None, None)
    async with engine.connect() as connection:
        rows = await booked(
            connection,
            first_day_us=days[0],
            last_day_us=days[-1],
            providers=providers,
            organisation_id=organisation_id,
        )
    return await asyncio.to_thread(_compared, statement, rows, matching)


def _compared(statement: Statement, rows: Sequence[OurRow], matching: Matching) -> Reconciliation:
    return compare(statement, rows, matching)
