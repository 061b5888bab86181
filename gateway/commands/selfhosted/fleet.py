"""`weighbridge selfhosted status|drain|undrain`: who is in our pools, and who takes nothing new."""
# ruff: noqa: PLC0415 - imports stand in the commands, so that `--help` answers at once

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cost.shown import percent
from gateway.commands.shared import USAGE, ConfigOption, JsonOption, fail, open_engine, print_json, read_config

if TYPE_CHECKING:
    from selfhosted.config import PoolConfig
    from selfhosted.registry.store import SharedState

PoolArgument = Annotated[str, typer.Argument(metavar="POOL", help="A pool's name, as in selfhosted.pools.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A replica's name, as `status` shows it.")]

_NOT_SERVING: Final = 3


def status(
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A running gateway, such as http://127.0.0.1:8080: it knows how replicas are."
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(help="Holds an admin key of the operator's organisation; `-` reads it from standard input."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show pools and replicas. Without --url: what the database has, which is who registered, not how they are.

    The exit status is 3 when a running gateway says that a pool has nobody who can serve.
    """
    from gateway.commands.asking import asked, key_of

    if url is None:
        if key_file is not None:
            fail("--key-file goes with --url: the database needs no key", USAGE)
        known = _known(config)
        if as_json:
            print_json(known)
        else:
            _print_known(known)
        return
    if key_file is None:
        fail("--url needs --key-file with an admin key of the operator's organisation", USAGE)
    told = asyncio.run(asked(url, "/v1/fleet", key_of(key_file)))
    if as_json:
        print_json(told)
    else:
        _print_told(told)
    if any(pool["state"] in {"down", "empty"} for pool in told["data"]):
        raise typer.Exit(_NOT_SERVING)


def drain(pool: PoolArgument, name: NameArgument, config: ConfigOption = None) -> None:
    """Give a replica nothing new; it finishes what it has. Every gateway follows within seconds."""
    chosen = _pool(pool, config)
    _check_name(name)

    async def order() -> "tuple[bool, SharedState]":
        from api.fleet.drain import drain_replica
        from gateway.commands.audit import console, log_of, operators
        from selfhosted.registry.store import RegistryStore

        async with open_engine() as engine:
            new = await drain_replica(log_of(engine), console(operators(config)), pool, name)
            return new, await RegistryStore(engine).read([pool])

    new, state = asyncio.run(order())
    typer.echo(f"{pool}/{name}: drains{'' if new else ' already'}; `weighbridge selfhosted undrain {pool} {name}`")
    if all(each["name"] != name for each in _known_pool(chosen, state)["replicas"]):
        typer.echo(
            f"no {name} is configured or registered: the order waits for one, so check the name, which a running gateway "
            "knows (`weighbridge selfhosted status --url`)",
            err=True,
        )


def undrain(pool: PoolArgument, name: NameArgument, config: ConfigOption = None) -> None:
    """Let a replica take work again. One that says itself that it drains goes on to."""
    _pool(pool, config)
    _check_name(name)

    async def take_back() -> bool:
        from api.fleet.drain import undrain_replica
        from gateway.commands.audit import console, log_of, operators

        async with open_engine() as engine:
            return await undrain_replica(log_of(engine), console(operators(config)), pool, name)

    if not asyncio.run(take_back()):
        fail(f"there is no order to drain {name} in {pool}; `weighbridge selfhosted status` lists them")
    typer.echo(f"{pool}/{name}: takes work again")


def _pools(config: Path | None) -> "tuple[PoolConfig, ...]":

    return read_config(config).selfhosted.pools


def _pool(name: str, config: Path | None) -> "PoolConfig":
    """Check the pool's name, as a misspelt one would drain nothing."""
    pools = {each.name: each for each in _pools(config)}
    if name not in pools:
        fail(f"there is no pool {name[:64]!r}; the configuration has: {', '.join(pools) or 'none'}", USAGE)
    return pools[name]


def _check_name(name: str) -> None:
    import re

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        fail("a replica's name has 1 to 64 letters, digits, dots, dashes and underscores", USAGE)


def _known(config: Path | None) -> list[dict[str, Any]]:
    pools = _pools(config)

    async def read() -> "SharedState":
        from selfhosted.registry.store import RegistryStore

        async with open_engine() as engine:
            return await RegistryStore(engine).read([pool.name for pool in pools])

    state = asyncio.run(read())
    return [_known_pool(pool, state) for pool in pools]


def _known_pool(pool: "PoolConfig", state: "SharedState") -> dict[str, Any]:
    from selfhosted.health.fleet_view import told_wish

    wish = next((each for each in state.wishes if each.pool == pool.name), None)
    leader = wish.holder if wish is not None and wish.lease_until_us > state.now_us else None
    orders = {name for of, name in state.orders if of == pool.name}
    replicas: list[dict[str, Any]] = [
        {"name": each.name, "url": each.url, "source": "configured", "draining": each.name in orders, "seen_s": None}
        for each in pool.replicas
    ]
    ttl_us = 0 if pool.registration is None else int(pool.registration.ttl_s * 1_000_000)
    replicas += [
        {
            "name": each.name,
            "url": each.url,
            "source": "registered",
            "draining": each.draining or each.name in orders,
            "seen_s": round((state.now_us - each.seen_us) / 1_000_000, 1),
        }
        for each in state.registrations
        if each.pool == pool.name and abs(state.now_us - each.seen_us) <= ttl_us
    ]
    names = {each["name"] for each in replicas}
    return {
        "name": pool.name,
        "targets": list(pool.served),
        **told_wish(wish),
        "leader": leader,
        "sources": [name for name in ("dns", "kubernetes", "registration") if getattr(pool, name) is not None],
        "replicas": sorted(replicas, key=lambda each: str(each["name"])),
        "orders_elsewhere": sorted(orders - names),
    }


def _print_known(pools: Sequence[dict[str, Any]]) -> None:
    from gateway.table import print_table

    if not pools:
        typer.echo("no pools: the configuration has none under selfhosted.pools", err=True)
    for pool in pools:
        desired = "nobody decides how many" if pool["desired"] is None else f"should have {pool['desired']}"
        typer.echo(f"{pool['name']}: {', '.join(pool['targets'])}; {desired}; leader {pool['leader'] or 'none'}")
        rows = [
            [
                each["name"],
                each["url"],
                each["source"],
                "draining" if each["draining"] else "",
                "" if each["seen_s"] is None else f"{each['seen_s']:g} s ago",
            ]
            for each in pool["replicas"]
        ]
        if rows:
            print_table(["replica", "address", "source", "order", "seen"], rows)
        if pool["orders_elsewhere"]:
            typer.echo(f"also ordered to drain: {', '.join(pool['orders_elsewhere'])}")
        asked = [name for name in pool["sources"] if name != "registration"]
        if asked:
            typer.echo(f"those behind {' and '.join(asked)} are known to a running gateway: --url")
        typer.echo("")


def _print_told(told: dict[str, Any]) -> None:
    from gateway.table import print_table

    if not told["data"]:
        typer.echo("the gateway has no pools: its configuration has none under selfhosted.pools", err=True)
    for pool in told["data"]:
        desired = "" if pool["desired"] is None else f" of {pool['desired']} wanted"
        load = ", ".join(f"{pool[name]} {name}" for name in ("running", "waiting") if pool[name] is not None)
        shares = [("kv", pool["kv_usage"]), ("prefix hits", pool["prefix_hit_rate"])]
        load = ", ".join([load, *(f"{name} {percent(share, 0)}" for name, share in shares if share is not None)]).strip(
            ", "
        )
        typer.echo(
            f"{pool['name']}: {pool['state']}; {pool['counts']['ready']} ready{desired}; {load or 'load unknown'}"
        )
        rows = [
            [
                each["name"],
                each["url"],
                each["source"],
                each["state"],
                *(_cell(each["stats"], name) for name in ("running", "waiting", "kv_usage", "age_s")),
                each["why"],
            ]
            for each in pool["replicas"]
        ]
        if rows:
            headings = ["replica", "address", "source", "state", "running", "waiting", "kv", "read", "why"]
            print_table(headings, rows, right=(4, 5, 6, 7), shrink=8)
        for problem in pool["problems"]:
            typer.echo(f"! {problem['source']}: {problem['text']}")
        typer.echo("")
    if told["registry"]["problem"]:
        typer.echo(f"! {told['registry']['problem']}")


def _cell(stats: dict[str, Any] | None, name: str) -> str:
    value = None if stats is None else stats[name]
    if value is None:
        return "unknown" if name == "running" else "-"
    return percent(value, 0) if name == "kv_usage" else f"{value:g} s" if name == "age_s" else f"{value:g}"
