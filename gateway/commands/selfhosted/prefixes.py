"""`weighbridge selfhosted prefixes`: which teams begin their prompts so that no cache can keep them."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost.shown import percent
from cost.times import DAY_US, wall_us
from gateway.commands.shared import open_engine, print_json

if TYPE_CHECKING:
    from cost.reports.scope import ReadScope
    from gateway.configuration.gateway_config import GatewayConfig
    from selfhosted.prefixes.prefix_report import PrefixReport

_DAYS = 7
_MOST_DAYS = 92


def prefixes(
    team: Annotated[str | None, typer.Option(help="Only this team's.")] = None,
    organisation: Annotated[
        str | None, typer.Option(help="Whose teams; `default` if left out, and of a team it is known.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=_MOST_DAYS, help="UTC days until today.")] = _DAYS,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The configuration file; otherwise WEIGHBRIDGE_CONFIG.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell which system prompts break their own cache, and what that costs a month. No prompt is kept or shown."""
    from gateway.configuration.environment import read_environment
    from gateway.configuration.settings import load
    from selfhosted.prefixes.prefix_report import prefixes_as_json

    settings = load(config, read_environment(), secrets_from=None)
    scope, report = asyncio.run(_reported(settings, organisation, team, days))
    if as_json:
        print_json({"organisation_id": scope.organisation_id, "team_id": scope.team_id, **prefixes_as_json(report)})
    elif not report.findings:
        typer.echo("nothing was counted in these days: no request had a system prompt, or none was served", err=True)
    else:
        _print(report)


async def _reported(
    settings: "GatewayConfig", organisation: str | None, team: str | None, days: int
) -> "tuple[ReadScope, PrefixReport]":
    from cost.price_book.book import price_book
    from cost.price_book.store import PriceStore
    from gateway.commands.scopes import scope_of
    from providers.catalog import configured_prices
    from selfhosted.prefixes.prefix_report import rates_of, stability
    from selfhosted.prefixes.store import PrefixStore

    now_us = wall_us()
    end_us = now_us - now_us % DAY_US + DAY_US
    start_us = end_us - days * DAY_US
    async with open_engine() as engine:
        scope = await scope_of(engine, organisation, team)
        habits = await PrefixStore(engine).read(scope, start_us, end_us)
        configured = configured_prices(settings.providers)
        book = price_book([*configured.entries(), *await PriceStore(engine).overrides()])
    rates = rates_of(settings.cost.pools, book, now_us)
    return scope, stability(habits, rates, start_us=start_us, end_us=end_us, now_us=now_us)


def _print(report: "PrefixReport") -> None:
    from cost.shown import money
    from gateway.table import counted, print_table

    rows = [
        [
            each.team_id,
            each.target_id,
            each.skeleton[:8] or "(various)",
            f"{each.requests:,}",
            percent(each.share_broken),
            "-" if each.first_break_tokens is None else f"{each.first_break_tokens:,}",
            ", ".join(each.kinds) or "-",
            f"{each.tokens_a_month:,}",
            "unknown" if each.usd_a_month is None else money(each.usd_a_month),
        ]
        for each in report.findings
    ]
    headings = ["team", "model", "prompt", "requests", "broken", "breaks after", "what varies"]
    print_table([*headings, "tokens a month", "cost a month"], rows, right=(3, 4, 5, 7, 8))
    advised = [each for each in report.findings if each.advice]
    for each in advised:
        typer.echo(f"\n{each.team_id}, prompt {each.skeleton[:8]}: {each.advice}", nl=False)
    if advised:
        typer.echo("")
    typer.echo(
        f"\nfrom {counted(round(report.days), 'day')}; tokens that were computed again for nothing, a month of 30"
    )
