"""Comparison of a provider's export with one organisation's books. Read-only; posting is a command's (`weighbridge
reconcile`).
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.reconcile.anthropic import read_anthropic
from cost.reconcile.ledger_side import booked
from cost.reconcile.matching import Matching, OurRow, Reconciliation, compare, days_between, without_snapshot
from cost.reconcile.openai import read_openai
from cost.reconcile.statement import Statement
from providers.config import ModelConfig
from providers.display_names import display_names

Exporter = Literal["openai", "anthropic"]
EXPORTERS: Final[tuple[Exporter, ...]] = get_args(Exporter)


def upstream_models(models: Sequence[ModelConfig], providers: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """Return the targets served by these providers, each with the model names that the provider may bill it under: its upstream's, as
    its API and as its invoices have it, and its own unless that is another one's upstream.
    """
    wanted = {name.lower() for name in providers}
    named = {
        # litellm's names begin with the provider's.
        model.model_id: [(each.upstream_model or model.model_id).rpartition("/")[2] for each in model.deployments]
        for model in models
        if model.provider.lower() in wanted
    }
    taken = {name for names in named.values() for name in names}
    return {
        target: tuple(dict.fromkeys([*names, *_printed(names), *([] if target in taken else [target])]))
        for target, names in named.items()
    }


def _printed(names: Iterable[str]) -> Iterator[str]:
    """Yield the names on invoices of models by these ids."""
    for name in names:
        yield from display_names(without_snapshot(name))


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
    """Return an export reconciled with the organisation's bookings of the same days. Raises BadExport, TooManyRows.

    `providers` are the configured provider names of this exporter; `same_models` pairs of the exporter's model name and
    ours.
    """
    matching = Matching(upstream_models=dict(models), models=tuple(same_models), organisation_id=organisation_id)
    # A month's export is some megabytes of JSON: parse it off the event loop.
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
    return await asyncio.to_thread(_reconcile, statement, rows, matching)


def _reconcile(statement: Statement, rows: Sequence[OurRow], matching: Matching) -> Reconciliation:
    return compare(statement, rows, matching)
