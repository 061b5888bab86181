"""A plan's users, its year and the bills that it is compared with, of `weighbridge selfhosted plan`."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from cost.shown import money, percent
from gateway.commands.shared import amount_option, read_config

if TYPE_CHECKING:
    from gateway.configuration.gateway_config import GatewayConfig
    from planner.plans.comparators import Comparator
    from planner.plans.crowd import CrowdLoad
    from planner.plans.planning import Plan, Question
    from planner.plans.year import Elsewhere, ReservedPrice, Year

_SHOWN_MODELS: Final = 3
_WHOLE: Final = 10
"""A rate from which on tenths say enough."""
_ANY_CONTEXT: Final = 10_000_000


def year_for(
    asked: "Question",
    answer: "Plan",
    load: "CrowdLoad | None",
    *,
    hours: str | None,
    reserved_usd_hour: str | None,
    config: Path | None,
) -> "Year":
    """Return the plan's year beside each comparator and, for users, beside routing without GPUs. Raises PlanRefused."""
    from planner.plans.year import elsewhere_at, hours_given, usual_hours, year_of

    elsewhere = [elsewhere_at(each, answer, batch=asked.batch) for each in asked.comparators]
    if load is not None:
        elsewhere += _routed(config, asked.comparators, answer)
    return year_of(
        answer,
        hours=usual_hours() if hours is None else hours_given(hours),
        reserved=_reserved(asked, reserved_usd_hour),
        elsewhere=elsewhere,
        saving=asked.saving,
        fewest_requests_per_s=0.0 if load is None else load.team_requests_per_s,
    )


def _reserved(asked: "Question", given: str | None) -> "ReservedPrice | None":
    """Return the price as given, or the table's; none where only the price on demand is one's own: the two would not belong together."""
    from planner.plans.year import ReservedPrice, reserved_prices

    if given is not None:
        return ReservedPrice(
            usd_per_hour=amount_option(given, "--reserved-usd-hour", 0, 10_000), source="as given", as_of="as given"
        )
    return reserved_prices().get(asked.gpu.name) if asked.usd_per_gpu_hour is None else None


def _routed(config: Path | None, comparators: "Sequence[Comparator]", answer: "Plan") -> "list[Elsewhere]":
    """Return the bill of routing between the configuration's models, or else those whose prices and answers are known here."""
    from gateway.configuration.environment import read_environment
    from gateway.wiring.catalog import catalog_of, classifier_of
    from gateway.wiring.policy import build_policy
    from planner.plans.year import Elsewhere
    from planner.savings.routed import routed
    from planner.savings.workload import with_capabilities

    given = config is not None or read_environment().config is not None
    settings = read_config(config) if given else _known_models(comparators)
    policy = build_policy(settings.policy, settings.cost)
    catalog = with_capabilities(catalog_of(settings), classifier_of(settings), policy)
    work = answer.work
    found = routed(
        catalog,
        policy,
        input_tokens=work.input_tokens,
        cached_tokens=round(work.cached),
        output_tokens=work.output_tokens,
    )
    if found is None:
        typer.echo(
            "! routing without GPUs has no bill: the models of the configuration cannot serve all such requests",
            err=True,
        )
        return []
    names = [f"{name} {percent(share, 0)}" for name, share in found.shares.items()]
    more = "" if len(names) <= _SHOWN_MODELS else f" and {len(names) - _SHOWN_MODELS} more"
    return [
        Elsewhere(
            name="routed",
            title=f"routed without GPUs: {', '.join(names[:_SHOWN_MODELS])}{more}",
            as_of="your prices" if given else comparators[0].as_of,
            usd_per_request=found.usd_per_request,
        )
    ]


def _known_models(comparators: "Sequence[Comparator]") -> "GatewayConfig":
    """Return a configuration of the models with a known price, the first comparator being the baseline."""
    from gateway.configuration.gateway_config import GatewayConfig
    from planner.plans.comparators import COMPARATORS

    offers = {each.name: each for each in (*comparators, *(offer for offer in COMPARATORS.values() if not offer.gone))}
    models = [
        {
            "model_id": name,
            "provider": "known",
            "max_context_tokens": _ANY_CONTEXT,
            "prices": {
                "input": str(each.input_usd),
                "output": str(each.output_usd),
                **({} if each.cached_input_usd is None else {"cached_input": str(each.cached_input_usd)}),
            },
            "deployments": [{"kind": "scripted"}],
        }
        for name, each in offers.items()
    ]
    return GatewayConfig.model_validate(
        {
            "cost": {"reference_target": comparators[0].name},
            "policy": {"auto": list(offers)},
            "providers": {"models": models},
        }
    )


def year_as_json(load: "CrowdLoad | None", year: "Year") -> dict[str, Any]:
    """Return both as plain values."""
    from decimal import Decimal

    import msgspec

    plain = msgspec.to_builtins({"users": load, "year": year}, builtin_types=(Decimal,))
    plain["year"]["cheapest"] = None if year.cheapest is None else year.cheapest.how
    found: dict[str, Any] = plain
    return found


def print_crowd(load: "CrowdLoad") -> None:
    """Print what the users ask for, and the team's part in it."""
    from gateway.table import counted

    typer.echo(
        f"{counted(load.users, 'user')}: {load.think_s:g} s of thought and {load.response_s:,.1f} s until an answer has come make "
        f"{_rate(load.requests_per_s)} (users / (think time + response time))"
    )
    if load.team_peak is not None:
        typer.echo(
            f"one team's peak, {counted(load.team_peak, 'user')}: {_rate(load.team_requests_per_s)}, the work of "
            f"{counted(load.team_replicas, 'replica')}; its limit: {load.team_requests_per_s * 60:,.0f} requests and "
            f"{load.team_tokens_per_minute:,} tokens a minute"
        )
    typer.echo("")


def _rate(requests_per_s: float) -> str:
    return f"{requests_per_s:,.1f} requests/s" if requests_per_s >= _WHOLE else f"{requests_per_s:.3g} requests/s"


def _lies(year: "Year") -> str:
    return (
        "no replica lies on two nodes" if year.nodes_a_replica == 1 else f"a replica takes {year.nodes_a_replica} nodes"
    )


def print_year(year: "Year") -> None:
    """Print the ways to buy the nodes for a year, and the bills elsewhere."""
    from gateway.table import counted, print_table

    floor = (
        f"; no hour has less than one team's peak, {_rate(year.fewest_requests_per_s)}"
        if year.fewest_requests_per_s
        else ""
    )
    typer.echo(
        f"\na year: {year.requests:,} requests, the mean hour {percent(year.mean_share, 0)} of the busiest ({year.hours_source}){floor}\n"
        f"{'' if year.fewest_nodes == year.nodes else f'{year.fewest_nodes:,} to '}{counted(year.nodes, 'node')} of {year.gpus_a_node} "
        f"GPUs, paid as whole nodes: {year.gpus:,} GPUs at the peak; {_lies(year)}"
    )
    if year.purchases:
        cheapest = year.cheapest
        rows = [
            [
                each.how if each.how != "both" else f"{each.reserved_nodes:,} reserved, the others by the hour",
                f"{each.mean_nodes:,.1f}",
                money(each.usd_per_year),
                "cheapest" if each is cheapest else "",
            ]
            for each in year.purchases
        ]
        print_table(["bought", "nodes paid for", "a year", ""], rows, right=(1, 2))
    for what, price, source in (
        ("on demand", year.on_demand_usd, year.on_demand_source),
        ("reserved", year.reserved_usd, year.reserved_source),
    ):
        typer.echo(f"  {what}: {'' if price is None else f'{money(price)} a GPU and hour, '}{source}")
    rows = [
        [
            each.title,
            each.as_of,
            money(each.usd_per_year),
            "-" if each.saving is None else percent(each.saving, 0),
            each.verdict,
        ]
        for each in year.alternatives
    ]
    typer.echo("\nours answers all of them with this one model, however hard they are; `savings simulate` routes")
    print_table(["instead", "as of", "a year", "saved", f"{percent(year.saving_target, 0)} less"], rows, right=(2, 3))
