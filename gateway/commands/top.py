"""`weighbridge top`: the operators' page in a terminal, over GET /v1/operations."""
# ruff: noqa: PLC0415 - imports stand in the commands, so that `--help` answers at once

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.commands.shared import fail

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

PATH: Final = "/v1/operations"
_MOST_ROWS: Final = 200
_MOST_INCIDENTS: Final = 10
_MOST_REFUSED: Final = 10
_TEXTS: Final = frozenset({"last error", "why"})
"""Columns of free text, which take the remaining width."""
_OUT_OF_USE: Final = ("open", "half-open", "paced")
"""States of a circuit other than closed, the worst first."""
_STYLES: Final = {
    "ok": "green", "ready": "green", "closed": "green",
    "degraded": "yellow", "recovering": "yellow", "unpriced": "yellow", "slow": "yellow", "saturated": "yellow", "partly_failing": "yellow", "starting": "yellow", "suspect": "yellow", "paced": "yellow", "draining": "yellow", "half-open": "yellow", "warn": "yellow",
    "failing": "red", "down": "red", "open": "red", "empty": "red", "bad": "red",
}  # fmt: skip


async def top(
    url: Annotated[str, typer.Option(metavar="URL", help="A running gateway.")] = "http://127.0.0.1:8080",
    key_file: Annotated[
        Path | None,
        typer.Option(help="Holds an admin key of the operator's organisation; `-` reads it from standard input."),
    ] = None,
    every: Annotated[float, typer.Option(min=0.5, max=60, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, print, and end: for scripts and reports.")] = False,
) -> None:
    """Show what is down, slow, saturated or failing: models, pools, queues, and what they stand on. Ctrl-C ends it."""
    from gateway.commands.asking import asked, key_of

    if key_file is None:
        fail("--key-file is needed: a file with an admin key of the operator's organisation", 2)
    key = key_of(key_file)
    if once or not sys.stdout.isatty():
        _console().print(screen(await asked(url, PATH, key), url))
    else:
        await _live(url, key, every)


async def _live(url: str, key: str, every_s: float) -> None:
    """Refresh the screen; while the gateway does not answer, the last state stays and is marked as such."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from gateway.commands.asking import NotAnswered, asked, asked_again

    told = await asked(url, PATH, key)
    with Live(screen(told, url), console=_console(), screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(every_s)
            try:
                told = await asked_again(url, PATH, key)
                live.update(screen(told, url), refresh=True)
            except NotAnswered as error:
                old = Text(f"{error}; what follows is old", style="bold red")
                live.update(Group(old, screen(told, url)), refresh=True)


def screen(told: Mapping[str, Any], url: str) -> "RenderableType":
    """Render the whole screen, the gravest first. Pure; names are never interpreted as markup."""
    from rich.console import Group

    parts: list[RenderableType] = [_head(told, url), *_incidents(told["incidents"]), _targets(told["targets"])]
    pools = told["pools"]["data"] if told["pools"] else ()
    if pools:
        parts.append(_pools(pools))
    if told["queues"]:
        parts.append(_queues(told["queues"]))
    if told["refusals"]["data"]:
        parts.append(_refusals(told["refusals"]["data"]))
    return Group(*parts)


def _head(told: Mapping[str, Any], url: str) -> "RenderableType":
    from rich.text import Text

    process, recent, stores, spend = told["process"], told["recent"], told["stores"], told["spend"]
    redis = stores["redis"]
    facts = [
        f"{process['in_flight']:,} in flight",
        f"{recent['attempts']:,} attempts in {_seconds(recent['window_s'])}",
        f"failed {_share(recent['failed_share'])}",
        f"refused {_count(told['refusals']['refusals'])}",
        f"first token {_seconds(recent['ttft_p50_s'])} / 95 % {_seconds(recent['ttft_p95_s'])}",
        f"spent this hour {_money(spend['spent_nanousd'])} (usual {_money(spend['usual_nanousd'])})",
    ]
    ground = [
        f"database {'ok' if stores['database']['answers'] else 'AWAY'}",
        f"redis {('ok' if redis['answers'] else 'AWAY') if redis['configured'] else 'none'}",
        f"journal {stores['journal']['waiting']:,} waiting",
        f"limits {process['limits']}",
        f"processes {process['live_processes']}",
        f"classified by {told['classifier']['in_use']}",
    ]
    state = "draining" if process["draining"] else "refusing" if process["is_refusing"] else "serving"
    text = Text(overflow="fold")
    text.append("weighbridge ", style="bold")
    text.append(f"{process['version']} at {url}, {told['at']}, ")
    text.append(state, style="green" if state == "serving" else "bold yellow")
    text.append("\n" + " · ".join(facts) + "\n")
    for place, fact in enumerate(ground):
        text.append(" · " if place else "")
        text.append(fact, style="bold red" if "AWAY" in fact else "dim")
    return text


def _incidents(incidents: Sequence[Mapping[str, Any]]) -> Iterable["RenderableType"]:
    from rich.text import Text

    if not incidents:
        yield Text("Nothing is down, slow, saturated or failing.", style="green")
    for incident in incidents[:_MOST_INCIDENTS]:
        line = Text(overflow="fold")
        kind = incident["kind"] if incident.get("state") != "recovering" else "recovering"
        line.append(f"{kind:>11} ", style="bold " + _STYLES.get(incident["severity"], ""))
        line.append(_word(f"{incident['subject']}: {incident['text']}"))
        line.append(f" (since {incident['since']}{_hit(incident)})", style="dim")
        yield line
    if len(incidents) > _MOST_INCIDENTS:
        yield Text(f"            and {len(incidents) - _MOST_INCIDENTS} more", style="dim")


def _hit(incident: Mapping[str, Any]) -> str:
    """Format whom it hurt, and the number of further lines that it stands for."""
    from dashboards.ui.incident_words import hit_words

    more = f"{len(incident['also'])} more followed" if incident["also"] else ""
    return "".join(f", {each}" for each in (hit_words(incident), more) if each)


def _targets(targets: Sequence[Mapping[str, Any]]) -> "RenderableType":
    table = _table(
        "Models", ("model", "state", "breakers"), ("attempts", "failed", "first token", "95 %", "last error")
    )
    for target in targets[:_MOST_ROWS]:
        recent = target["recent"]
        errors = [error for each in target["deployments"] for error in each["errors"]]
        last = max(errors, key=lambda error: error["at_us"], default=None)
        states = [each["breaker"]["state"] for each in target["deployments"]]
        table.add_row(
            _word(target["target_id"]),
            _state(target["state"]),
            _state(next((state for state in _OUT_OF_USE if state in states), "closed"), _breakers(states)),
            f"{recent['attempts']:,}",
            _share(recent["failed_share"]),
            _seconds(recent["ttft_p50_s"]),
            _seconds(recent["ttft_p95_s"]),
            "" if last is None else _word(f"{last['text']} ({last['at'][11:19]})"),
        )
    return table


def _pools(pools: Sequence[Mapping[str, Any]]) -> "RenderableType":
    table = _table("Pools", ("pool", "replica", "state"), ("running", "waiting", "KV", "prefix hits", "why"))
    for pool in pools:
        desired = "?" if pool["desired"] is None else pool["desired"]
        table.add_row(
            _word(pool["name"]),
            f"{pool['counts']['ready']} ready, {desired} wanted",
            _state(pool["state"]),
            _count(pool["running"]),
            _count(pool["waiting"]),
            _share(pool["kv_usage"]),
            _share(pool["prefix_hit_rate"]),
            "",
        )
        for replica in pool["replicas"][:_MOST_ROWS]:
            stats = replica["stats"] or {}
            table.add_row(
                "",
                _word(replica["name"]),
                _state(replica["state"]),
                _count(stats.get("running")),
                _count(stats.get("waiting")),
                _share(stats.get("kv_usage")),
                _share(stats.get("prefix_hit_rate")),
                _word(replica["why"]),
            )
    return table


def _queues(queues: Sequence[Mapping[str, Any]]) -> "RenderableType":
    table = _table("Queues", ("queue",), ("waiting", "interactive", "batch", "in flight", "full", "wait"))
    for queue in queues[:_MOST_ROWS]:
        capacity = queue["capacity_tokens"]
        table.add_row(
            _word(queue["name"]),
            f"{queue['waiting']:,}",
            f"{queue['waiting_by_tier']['interactive']:,}",
            f"{queue['waiting_by_tier']['batch']:,}",
            f"{queue['in_flight']:,}",
            _share(queue["in_flight_tokens"] / capacity if capacity else None),
            _seconds(queue["predicted_wait_s"]),
        )
    return table


def _refusals(refusals: Sequence[Mapping[str, Any]]) -> "RenderableType":
    table = _table("Refused in ten minutes", ("team", "key", "model", "reason"), ("status", "refused"))
    for each in refusals[:_MOST_REFUSED]:
        table.add_row(
            *(_word(each[name] or "—") for name in ("team_id", "key_id", "model", "reason")),
            str(each["status"]),
            f"{each['refusals']:,}",
        )
    return table


def _table(title: str, words: Sequence[str], figures: Sequence[str]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        expand=bool(_TEXTS & set(figures)),
    )
    for word in words:
        table.add_column(word, overflow="ellipsis", no_wrap=True)
    for figure in figures:
        is_text = figure in _TEXTS
        table.add_column(
            figure,
            justify="left" if is_text else "right",
            overflow="ellipsis",
            no_wrap=True,
            ratio=1 if is_text else None,
        )
    return table


def _console() -> Any:
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False)


def _word(text: str) -> Any:
    """Return the plain text of a name, which may look like markup or contain control characters that a terminal would
    obey.
    """
    from rich.text import Text

    return Text("".join(char if char.isprintable() else "·" for char in text))


def _state(state: str, text: str = "") -> Any:
    from rich.text import Text

    return Text(text or state, style=_STYLES.get(state, ""))


def _breakers(states: Sequence[str]) -> str:
    told = [f"{states.count(state)} {state}" for state in _OUT_OF_USE if state in states]
    return ", ".join(told) or ("all closed" if states else "none")


def _count(value: float | None) -> str:
    return "—" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    from dashboards.ui.formats import share

    return share(value)


def _seconds(value: float | None) -> str:
    from dashboards.ui.formats import seconds

    return seconds(value)


def _money(value: int | None) -> str:
    from dashboards.ui.formats import money

    return money(value)
