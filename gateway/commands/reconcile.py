"""`weighbridge reconcile`: a provider's own usage and cost exports against our books, and the difference posted."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cost.times import wall_us
from gateway.commands.shared import USAGE, ConfigOption, JsonOption, fail, open_engine, print_json
from gateway.table import counted, print_table

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from cost.reconcile.matching import Matching, Reconciliation
    from cost.reconcile.reconciliation_report import Tolerance
    from cost.reconcile.statement import Statement

_DAY = ["%Y-%m-%d"]
_DIFFERS = 1


async def reconcile(
    *,
    provider: Annotated[Literal["openai", "anthropic"], typer.Argument(help="Whose exports they are.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Usage, costs, or both: pages of the API (JSON or JSON lines), or the dashboard's CSV.",
        ),
    ],
    first: Annotated[
        datetime | None, typer.Option("--from", formats=_DAY, help="The first day (UTC); all days of the files.")
    ] = None,
    last: Annotated[datetime | None, typer.Option("--to", formats=_DAY, help="The last day, included.")] = None,
    key_map: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="THEIRS=OURS", help="Their key or project, and our key; may be given often."),
    ] = None,
    model_map: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="THEIRS=OURS", help="Their model and ours, where the names differ."),
    ] = None,
    booked_as: Annotated[
        list[str] | None,
        typer.Option("--provider", metavar="NAME", help="What the configuration calls it, if not openai or anthropic."),
    ] = None,
    organisation: Annotated[
        str | None, typer.Option(help="Only this organisation's books; otherwise all that share the account.")
    ] = None,
    tolerance: Annotated[
        str, typer.Option(help="What may differ on a line: dollars such as 0.01, or a share such as 0.5%.")
    ] = "0",
    post: Annotated[bool, typer.Option("--post", help="Book the differences, so that both sides agree.")] = False,
    unmatched: Annotated[
        bool,
        typer.Option("--unmatched", help="With --post: although some lines are only theirs, and others only ours."),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a provider's own figures with ours by day, model and key. Exit status 1: they differ; 2: no telling."""
    from cost.reconcile.anthropic import read_anthropic
    from cost.reconcile.matching import Matching
    from cost.reconcile.openai import read_openai
    from cost.reconcile.reconciliation_report import tolerance_of
    from cost.reconcile.statement import BadExport

    try:
        allowed = tolerance_of(tolerance)
        keys, models = _pairs(key_map, "--map"), _pairs(model_map, "--model")
    except ValueError as error:
        fail(str(error), USAGE)
    providers = {provider, *(booked_as or ())}
    matching = Matching(
        upstream_models=_upstream_models(config, providers),
        keys=keys,
        models=models,
        organisation_id=organisation or "default",
    )
    try:
        statement = (read_openai if provider == "openai" else read_anthropic)(_contents(files))
        days = (None if first is None else first.date(), None if last is None else last.date())
        work = _reconciled(statement, matching, providers, organisation, days, allowed, post=post, unmatched=unmatched)
        reconciliation, posted = await work
    except BadExport as error:
        fail(str(error), USAGE)
    if as_json:
        print_json(_as_json(reconciliation, allowed, posted))
    else:
        _print(reconciliation, allowed, posted)
    raise typer.Exit(_status(reconciliation, allowed, posted))


class _Posted:
    """The result of `--post`: the number of entries posted, or the reason for none."""

    def __init__(self, entries: int, why: str = "", *, closed: bool = False) -> None:
        self.entries = entries
        self.why = why
        self.closed = closed


async def _reconciled(
    statement: "Statement",
    matching: "Matching",
    providers: set[str],
    organisation_id: str | None,
    days: tuple[date | None, date | None],
    tolerance: "Tolerance",
    *,
    post: bool,
    unmatched: bool,
) -> "tuple[Reconciliation, _Posted | None]":
    from cost.ledger.store import LedgerStore
    from cost.reconcile.ledger_side import booked, is_posted, posting_alone
    from cost.reconcile.matching import compare, days_between
    from cost.reconcile.posting import entries_of, postable, posting_id
    from cost.times import iso
    from gateway.commands.audit import note, operators

    days_covered = days_between(statement, *days)
    async with open_engine() as engine:
        async with posting_alone(engine) if post else engine.connect() as connection:
            rows = await booked(
                connection,
                first_day_us=days_covered[0],
                last_day_us=days_covered[-1],
                providers=providers,
                organisation_id=organisation_id,
            )
            found = compare(statement, rows, matching, first=days[0], last=days[1])
            owners = {matching.organisation_id, *(row.organisation_id for row in rows)}
            if not post:
                await _keep(engine, owners, providers, found, tolerance)
                return found, None
            if _is_split(found) and not unmatched:
                return found, _Posted(0, "name the lines that are the same, or give --unmatched")
            posting = posting_id(statement, matching, found)
            if await is_posted(connection, posting):
                return found, _Posted(0, f"these files were posted before, as {posting}")
            now_us = _now_us()
            entries = entries_of(found, posting, now_us)
            left = sum(line.differs for line in found.lines) - len(postable(found, now_us))
            await LedgerStore(engine).insert_within(connection, entries)
            why = (
                f"{left} differences are of days that are not over, or that the files do not tell all of"
                if left
                else ""
            )
            posted = _Posted(len(entries), why, closed=not left)
        said = {
            "entries": posted.entries,
            "providers": sorted(providers),
            "from": iso(days_covered[0]),
            "to": iso(days_covered[-1]),
        }
        await note(engine, operators(), "posting.posted", "posting", posting, said)
        await _keep(engine, owners, providers, found, tolerance, posted=True)
        return found, posted


async def _keep(
    engine: "AsyncEngine",
    organisations: set[str],
    providers: set[str],
    found: "Reconciliation",
    tolerance: "Tolerance",
    *,
    posted: bool = False,
) -> None:
    """Keep which days were compared, for the close of their month."""
    from cost.reconcile.coverage import keep_compared, outcomes

    now_us = _now_us()
    kept = outcomes(found, tolerance, now_us, posted=posted)
    async with engine.begin() as connection:
        for organisation in sorted(organisations):
            await keep_compared(connection, organisation, providers, kept, now_us)


def _is_split(found: "Reconciliation") -> bool:
    """Return True when some lines are only theirs and others only ours: mostly one thing under two names, whose cost
    would leave its teams.
    """
    return {"theirs", "ours"} <= {line.only for line in found.lines}


def _now_us() -> int:
    return wall_us()


def _contents(files: Sequence[Path]) -> list[tuple[str, bytes]]:
    from cost.reconcile.statement import MAX_BYTES, BadExport

    left, contents = MAX_BYTES, []
    for path in files:
        # Not by its size, for a pipe has none.
        with path.open("rb") as file:
            content = file.read(left + 1)
        left -= len(content)
        if left < 0:
            raise BadExport(f"together the files are larger than {MAX_BYTES // 1024 // 1024} MB; give a shorter range")
        contents.append((str(path), content))
    return contents


def _upstream_models(config: Path | None, providers: set[str]) -> dict[str, tuple[str, ...]]:
    """Map the provider's targets to the names that the provider may know them by."""
    from dashboards.finance.comparison import upstream_models
    from gateway.configuration.environment import read_environment
    from gateway.configuration.settings import load

    settings = load(config, read_environment(), secrets_from=None)
    return upstream_models(settings.providers.models, frozenset(providers))


def _pairs(given: Sequence[str] | None, option: str) -> tuple[tuple[str, str], ...]:
    pairs = [tuple(part.strip() for part in each.rpartition("=")[::2]) for each in given or ()]
    for pair, text in zip(pairs, given or (), strict=True):
        if not all(pair):
            raise ValueError(f"{option} is their name and ours, such as key_123=wb_key, not {text[:80]!r}")
    return tuple((theirs, ours) for theirs, ours in pairs)


def _status(reconciliation: "Reconciliation", tolerance: "Tolerance", posted: _Posted | None) -> int:
    from cost.reconcile.reconciliation_report import differing

    closed = posted is not None and posted.closed
    return 0 if closed or not differing(reconciliation, tolerance) else _DIFFERS


def _as_json(reconciliation: "Reconciliation", tolerance: "Tolerance", posted: _Posted | None) -> dict[str, Any]:
    from cost.reconcile.reconciliation_report import reconciliation_as_json

    plain = reconciliation_as_json(reconciliation, tolerance)
    if posted is not None:
        plain["posted"] = {"entries": posted.entries, "note": posted.why or None}
    return plain


def _print(reconciliation: "Reconciliation", tolerance: "Tolerance", posted: _Posted | None) -> None:
    from cost.reconcile.reconciliation_report import HEADINGS, RIGHT, differing, table_rows

    print_table(HEADINGS, table_rows(reconciliation), right=RIGHT, shrink=1)
    typer.echo("")
    for note in reconciliation.notes:
        typer.echo(f"- {note}")
    if _is_split(reconciliation):
        typer.echo("- some lines are on one side only; where they are the same, --model or --map THEIRS=OURS says so")
    count, days = len(differing(reconciliation, tolerance)), f"{reconciliation.first_day} to {reconciliation.last_day}"
    if count:
        typer.echo(f"{reconciliation.provider}, {days}: {count} of {len(reconciliation.lines)} lines differ")
    else:
        typer.echo(f"{reconciliation.provider}, {days}: the books agree")
    if posted is not None:
        typer.echo(f"posted {counted(posted.entries, 'entry', 'entries')}" + (f"; {posted.why}" if posted.why else ""))
