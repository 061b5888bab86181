"""`weighbridge pools show|hours|true-up`: what our own GPUs cost, and whom."""
# ruff: noqa: PLC0415 - imports stand in the commands, so that `--help` answers at once

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost.times import wall_us
from gateway.commands.shared import ConfigOption, JsonOption, open_engine, print_json
from gateway.table import print_table

if TYPE_CHECKING:
    from api.savings_calculator import SavingsCalculator
    from cost.config import CostSection
    from cost.fleet.cost_adjustment import Posting
    from cost.fleet.pool_config import PoolSection

pools_app = typer.Typer(
    help="Our own GPUs: the hours they were up, and their bill.", no_args_is_help=True, rich_markup_mode=None
)

_HOURS = ["%Y-%m-%dT%H:%M", "%Y-%m-%d"]
_PLACES = Decimal("0.01")


@pools_app.command("show")
async def show(
    days: Annotated[int, typer.Option(min=1, max=92, help="UTC days until today.")] = 7,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show each pool, and the bill of its last days beside what is booked."""
    section = _section(config)
    found = await _pool_rows(section, days)
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("no pools: the configuration has none under cost.pools", err=True)
    else:
        _print_pools(found)


async def _pool_rows(section: "CostSection", days: int) -> list[dict[str, Any]]:
    from api.savings_calculator import SavingsCalculator
    from cost.times import DAY_US

    now = wall_us()
    today = now - now % DAY_US
    async with open_engine() as engine:
        claims = SavingsCalculator(engine, lambda: section, wall_us, operator="", evidence=lambda _target_id: "none")
        records = await claims.fleet.hours.read(section.pools, today - (days - 1) * DAY_US, today + DAY_US)
        return [
            {
                **_told_pool(pool),
                "days": [
                    await _day(claims, pool, records[pool.name], today - ago * DAY_US, now)
                    for ago in range(days - 1, -1, -1)
                ],
            }
            for pool in section.pools
        ]


def _told_pool(pool: "PoolSection") -> dict[str, Any]:
    from fractions import Fraction

    from cost.fleet.bill import bill_of, usd_per_million
    from cost.prices import usd
    from cost.times import HOUR_US

    return {
        "pool": pool.name,
        "targets": list(pool.targets),
        "organisation_id": pool.organisation,
        "replicas": pool.replicas,
        "gpus_per_replica": pool.gpus_per_replica,
        "usd_per_gpu_hour": pool.usd_per_gpu_hour,
        "overhead": pool.overhead,
        "usd_per_replica_hour": usd(bill_of(pool, HOUR_US).nanousd),
        "usd_per_million_fully_busy": usd_per_million(pool, Fraction(1)),
    }


async def _day(
    claims: "SavingsCalculator", pool: "PoolSection", record: Any, day_us: int, now_us: int
) -> dict[str, Any]:
    from cost.fleet.cost_adjustment import pending
    from cost.prices import usd
    from cost.times import day_of

    day = await claims.fleet.day(pool, day_us, record, now_us)
    found = pending(day)
    return {
        "day": day_of(day_us).isoformat(),
        "replica_hours_up": _hours(day.up_us),
        "replica_hours_busy": _hours(found.allocation.busy_us),
        "bill_usd": usd(found.bill.nanousd),
        "booked_usd": usd(day.booked_nanousd),
        "idle_usd": usd(found.allocation.idle_nanousd),
        "revision": 0 if day.last is None else day.last.revision,
        "overfull": found.allocation.overfull,
    }


def _print_pools(found: list[dict[str, Any]]) -> None:
    from cost.shown import money

    for pool in found:
        typer.echo(
            f"{pool['pool']}: {', '.join(pool['targets'])}; {pool['replicas']} x {pool['gpus_per_replica']} GPUs at "
            f"{money(pool['usd_per_gpu_hour'])} an hour, overhead {pool['overhead']}; idle hours are "
            f"{pool['organisation_id']}'s"
        )
        prices = ", ".join(f"{name} ${amount}" for name, amount in pool["usd_per_million_fully_busy"].items())
        typer.echo(
            f"a million tokens if it were always busy: {prices}; planned rates are that by the expected utilisation\n"
        )
        rows = [
            [
                each["day"],
                str(each["replica_hours_up"]),
                str(each["replica_hours_busy"]) + (" !" if each["overfull"] else ""),
                money(each["bill_usd"]),
                money(each["booked_usd"]),
                money(each["idle_usd"]),
                str(each["revision"] or "not posted"),
            ]
            for each in pool["days"]
        ]
        headings = ["day", "hours up", "hours busy", "bill", "booked", "idle", "revision"]
        print_table(headings, rows, right=range(1, 7))
        typer.echo("")


@pools_app.command("hours")
async def hours(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="A pool's name, as in cost.pools.")],
    start: Annotated[datetime, typer.Option("--from", formats=_HOURS, help="The first hour, UTC.")],
    end: Annotated[datetime, typer.Option("--to", formats=_HOURS, help="The hour after the last one, UTC.")],
    replicas: Annotated[int, typer.Option(min=0, help="How many replicas were up, 0 for none.")],
    config: ConfigOption = None,
) -> None:
    """Enter how many replicas were up in some hours. It counts before what was recorded and configured."""
    from cost.fleet.hours import HoursStore
    from cost.fleet.pool_config import pool_named
    from cost.times import iso
    from gateway.commands.audit import note

    section = _section(config)
    start_us, end_us = _us(start), _us(end)
    pool_named(section.pools, pool)
    async with open_engine() as engine:
        count = await HoursStore(engine).enter(pool, start_us, end_us, replicas)
        told = {"from": iso(start_us), "to": iso(end_us), "replicas": replicas, "hours": count}
        await note(engine, _operator(config), "pool.hours_entered", "pool", pool, told)
    typer.echo(f"{pool}: {replicas} replicas up in {count} hours; days that are posted already are corrected by")
    typer.echo(f"  weighbridge pools true-up {pool} --day DAY")


def _operator(config: Path | None) -> str:
    from gateway.commands.audit import operators

    return operators(config)


@pools_app.command("true-up")
async def true_up(
    pool: Annotated[str | None, typer.Argument(metavar="POOL", help="A pool's name; otherwise all of them.")] = None,
    day: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The UTC day; otherwise yesterday.")
    ] = None,
    rebill: Annotated[
        bool, typer.Option("--rebill", help="Price a posted day anew, at the rate that is configured now.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Post the difference between a day's rows and its bill. A gateway does this every night."""
    section = _section(config)
    chosen = (datetime.now(UTC) - timedelta(days=1)).date() if day is None else day.date()
    names = [each.name for each in section.pools] if pool is None else [pool]
    postings = await _posted(section, _operator(config), names, chosen, rebill=rebill)
    if as_json:
        print_json([_as_json(posting) for posting in postings])
    elif not postings:
        typer.echo("no pools: the configuration has none under cost.pools", err=True)
    else:
        _print_postings(postings)


async def _posted(
    section: "CostSection", owner: str, names: Sequence[str], day: date, *, rebill: bool
) -> "list[Posting]":
    from api.savings_calculator import SavingsCalculator
    from gateway.commands.audit import note

    async with open_engine() as engine:
        claims = SavingsCalculator(engine, lambda: section, wall_us, operator="", evidence=lambda _target_id: "none")
        found = [await claims.rounds.true_up(name, day, rebill=rebill) for name in names]
        for each in found:
            if each.posted:
                told = {"day": day, "revision": each.revision, "changed_nanousd": each.changed_nanousd}
                await note(engine, owner, "pool.trued_up", "pool", each.pool, {**told, "rebill": rebill})
        return found


def _as_json(posting: "Posting") -> dict[str, Any]:
    from cost.prices import usd

    return {
        "pool": posting.pool,
        "day": posting.day.isoformat(),
        "posted": posting.posted,
        "revision": posting.revision,
        "bill_usd": usd(posting.bill_nanousd),
        "changed_usd": usd(posting.changed_nanousd),
        "idle_usd": usd(posting.idle_nanousd),
        "replica_hours_up": _hours(posting.up_us),
        "replica_hours_busy": _hours(posting.busy_us),
        "overfull": posting.overfull,
    }


def _print_postings(postings: "list[Posting]") -> None:
    from cost.shown import money

    rows = []
    for each in map(_as_json, postings):
        state = f"revision {each['revision']} posted" if each["posted"] else "adds up already"
        amounts = [money(each[name]) for name in ("bill_usd", "changed_usd", "idle_usd")]
        rows.append([each["pool"], each["day"], *amounts, str(each["replica_hours_up"]), state])
    print_table(["pool", "day", "bill", "changed by", "idle", "hours up", ""], rows, right=(2, 3, 4, 5))
    for posting in postings:
        if posting.overfull:
            typer.echo(
                f"! {posting.pool}: tokens took longer than replicas were up; the weights or the hours are wrong"
            )


def _section(config: Path | None) -> "CostSection":
    from gateway.configuration.environment import read_environment
    from gateway.configuration.settings import load

    return load(config, read_environment(), secrets_from=None).cost


def _hours(time_us: int) -> Decimal:
    from cost.times import HOUR_US

    return (Decimal(time_us) / HOUR_US).quantize(_PLACES)


def _us(moment: datetime) -> int:
    return int(moment.replace(tzinfo=UTC).timestamp()) * 1_000_000
