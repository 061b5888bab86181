"""`weighbridge ledger`: whether the books agree, and the roll-ups written anew where they do not."""
# ruff: noqa: PLC0415 - imports stand in the commands, so that `--help` answers at once

import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cost.times import DAY_US, wall_us
from gateway.commands.shared import JsonOption, fail, journal_dir, open_engine, print_json
from gateway.table import counted, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.ext.asyncio import AsyncEngine

    from cost.ledger.archiving import Archiving, Done
    from cost.ledger.journal_gaps import Gap
    from cost.ledger.postings import Posting
    from cost.ledger.verify import Difference, Verification

ledger_app = typer.Typer(help="The ledger, and whether its totals agree.", no_args_is_help=True, rich_markup_mode=None)

_FORMATS = ["%Y-%m-%d"]
_FROM_OPTION = typer.Option(
    "--from", metavar="DAY", formats=_FORMATS, help="The first UTC day; otherwise the very first."
)
_TO_OPTION = typer.Option("--to", metavar="DAY", formats=_FORMATS, help="The last UTC day; otherwise the very last.")
_FIRST_OPTION = typer.Option("--from", metavar="DAY", formats=_FORMATS, help="The first UTC day.")
_LAST_OPTION = typer.Option("--to", metavar="DAY", formats=_FORMATS, help="The last UTC day.")
_MONTH_OPTION = typer.Option("--month", metavar="MONTH", help="A UTC month, such as 2026-05.")
_KEEP_OPTION = typer.Option(
    "--keep-months", min=1, max=1_200, metavar="N", help="All months before the last N whole ones, in place of --month."
)
_PLACE_OPTION = typer.Option("--to", metavar="PLACE", help="A folder, or s3://BUCKET/PREFIX.")
_END_OF_TIME_US = 2**62


@ledger_app.command("verify")
async def verify(
    from_day: Annotated[datetime | None, _FROM_OPTION] = None,
    to_day: Annotated[datetime | None, _TO_OPTION] = None,
    read_files: Annotated[
        bool,
        typer.Option("--files/--no-files", help="Read the files of archived months, too; else compare their totals."),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Sum the ledger up anew and hold it against every roll-up. Exit status 1: they differ; 2: no telling.

    What waits in this host's journals is not in the ledger yet; it is counted apart. What was in journals once and is nowhere
    now, as after a restore, is a difference.
    """
    from cost.ledger.verify import check
    from gateway.ledger_places import open_archive

    days = _range(from_day, to_day)
    async with open_engine() as engine:
        found = await check(engine, *days, now_us=wall_us(), open_archive=open_archive if read_files else None)
        waits, gaps = await _waiting(engine), await _gaps(engine)
    if as_json:
        told = [msgspec.structs.asdict(each) for each in gaps]
        print_json(_plain(found) | {"agree": not (found.differences or gaps), "waiting": waits, "missing": told})
    else:
        _print(found)
        _print_waiting(waits)
        _print_gaps(gaps)
    if found.differences or gaps:
        raise typer.Exit(1)


@ledger_app.command("rebuild")
async def rebuild(
    from_day: Annotated[datetime, _FIRST_OPTION],
    to_day: Annotated[datetime, _LAST_OPTION],
) -> None:
    """Write the roll-ups of these days anew from the ledger, which is never changed. Gateways keep what they book meanwhile."""
    days = await _rebuilt(*_range(from_day, to_day))
    typer.echo(f"the roll-ups of {counted(days, 'day')} were rebuilt from the ledger")


@ledger_app.command("archive")
async def archive(
    month: Annotated[str | None, _MONTH_OPTION] = None,
    keep_months: Annotated[int | None, _KEEP_OPTION] = None,
    to: Annotated[str | None, _PLACE_OPTION] = None,
    as_json: JsonOption = False,
) -> None:
    """Put the entries of months that everybody signed off into Parquet files, read them back, and delete them here.

    Killed, it goes on when it is called again. Without --month and --keep-months: list what is archived. Exit status 1: a
    month stays, and why is told.
    """
    from cost.ledger.archiving import archived_list, clear_away, months_due

    if month is not None and keep_months is not None:
        fail("give --month or --keep-months", 2)
    async with open_engine() as engine:
        if month is None and keep_months is None:
            _print_archived(await archived_list(engine), as_json=as_json)
            return
        if to is None:
            fail("--to: where are the files to be? a folder, or s3://BUCKET/PREFIX", 2)
        work = _archiving(engine, to)
        left: dict[str, str] = {}
        if month is not None:
            done = [await _archive_one(engine, work, _month_us(month))]
        else:
            done, left = await _archive_each(engine, work, await months_due(engine, keep_months or 0, wall_us()))
        if done:
            await clear_away(engine)
        is_sqlite = engine.dialect.name == "sqlite"
    if as_json:
        told = {"archived": [each.month for each in done], "left": left}
        print_json(told if month is None else msgspec.structs.asdict(done[0]))
    else:
        _print_done(done, left, is_sqlite=is_sqlite)
    if left:
        raise typer.Exit(1)


async def _archive_each(
    engine: "AsyncEngine", work: "Archiving", months: "Sequence[int]"
) -> "tuple[list[Done], dict[str, str]]":
    """Archive months; one that cannot be does not keep the others. Returns what was done, and why not, by month."""
    from cost.ledger.archive_files import FileDamaged, PlaceUnreachable
    from cost.ledger.archived import month_text
    from cost.ledger.archiving import ArchiveImpossible

    done: list[Done] = []
    left: dict[str, str] = {}
    for month_us in months:
        try:
            done.append(await _archive_one(engine, work, month_us))
        except (ArchiveImpossible, FileDamaged, PlaceUnreachable) as error:
            left[month_text(month_us)] = str(error)
    return done, left


async def _archive_one(engine: "AsyncEngine", work: "Archiving", month_us: int) -> "Done":
    from cost.ledger.archived import month_text
    from cost.ledger.archiving import ArchiveImpossible
    from gateway.commands.audit import note, operators

    if await _waits(engine, month_us):
        raise ArchiveImpossible(
            f"journals of this host have entries of {month_text(month_us)}, or of before, which are not in the ledger yet"
        )
    done = await work.archive(month_us)
    told = {"rows": done.rows, "files": done.files, "where": done.where}
    await note(engine, operators(), "ledger.archived", "month", done.month, told)
    return done


def _print_done(done: "Sequence[Done]", left: dict[str, str], *, is_sqlite: bool) -> None:
    for each in done:
        entries = counted(each.rows, "entry", "entries")
        typer.echo(f"{each.month}: {entries} in {counted(each.files, 'file')} of {each.bytes:,} bytes, {each.where}")
    for why in left.values():
        typer.echo(f"weighbridge: {why}", err=True)
    if done:
        shrink = "VACUUM while no gateway runs" if is_sqlite else "VACUUM FULL ledger_entry or pg_repack"
        typer.echo(f"the room in the database is used again; {shrink} gives it back to the disk", err=True)
    elif not left:
        typer.echo("no month is due", err=True)


@ledger_app.command("restore")
async def restore(
    month: Annotated[str, _MONTH_OPTION],
    to: Annotated[str | None, _PLACE_OPTION] = None,
) -> None:
    """Put the entries of an archived month back into the ledger. The files stay; --to only where they have moved."""
    from gateway.commands.audit import note, operators

    async with open_engine() as engine:
        place = to or await _place_of(engine, _month_us(month))
        done = await _archiving(engine, place).restore(_month_us(month))
        told = {"rows": done.rows, "where": done.where}
        await note(engine, operators(), "ledger.restored", "month", done.month, told)
    typer.echo(f"{done.month}: {counted(done.rows, 'entry', 'entries')} are in the ledger again; {done.where} stays")


def _archiving(engine: "AsyncEngine", place: str) -> "Archiving":
    from importlib.metadata import version

    from cost.ledger.archiving import Archiving
    from gateway.ledger_places import open_codec, open_place

    return Archiving(engine, open_place(place), open_codec(), version=version("weighbridge"))


async def _waits(engine: "AsyncEngine", month_us: int) -> bool:
    """Return True where this host's journals have entries of the month that are not in the ledger yet."""
    from cost.ledger.journal_places import read_places
    from cost.ledger.segments import waiting
    from cost.times import next_month

    folder = journal_dir()
    if folder is None:
        return False
    found = waiting(folder, await read_places(engine))
    return any(
        each.oldest_at_us is not None and each.oldest_at_us < next_month(month_us) for each in found if each.entries
    )


async def _place_of(engine: "AsyncEngine", month_us: int) -> str:
    from cost.ledger.archived import month_text, place_of

    async with engine.connect() as connection:
        found = await place_of(connection, month_us)
    if found is None:
        fail(f"{month_text(month_us)} is not archived")
    return found[0]


def _month_us(text: str) -> int:
    from cost.times import start_of

    try:
        return start_of(datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date())
    except ValueError:
        fail("--month: a month is written like 2026-05", 2)


def _print_archived(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif not found:
        typer.echo("no month is archived", err=True)
    else:
        rows = [
            [
                each["month"],
                each["state"],
                f"{each['files']:,}",
                f"{each['rows']:,}",
                f"{each['bytes']:,}",
                each["where"],
            ]
            for each in found
        ]
        print_table(["month", "state", "files", "entries", "bytes", "where"], rows, right=(2, 3, 4))


@ledger_app.command("postings")
async def postings(
    from_day: Annotated[datetime | None, _FROM_OPTION] = None,
    to_day: Annotated[datetime | None, _TO_OPTION] = None,
    as_json: JsonOption = False,
) -> None:
    """List the corrections and reconciliations that were posted for these days."""
    from cost.ledger.postings import postings as listed
    from cost.shown import nano_money

    days = _range(from_day, to_day)
    async with open_engine() as engine:
        found = await listed(engine, *days)
    if as_json:
        print_json([_plain_posting(each) for each in found])
    elif not found:
        typer.echo("nothing was posted for these days", err=True)
    else:
        rows = [
            [
                each.posting_id,
                _moment(each.first_us)[:10],
                _moment(each.last_us)[:10],
                str(each.entries),
                f"{each.input_tokens:,}",
                f"{each.output_tokens:,}",
                nano_money(each.cost_nanousd),
                each.reason,
            ]
            for each in found
        ]
        headings = ["posting", "from", "to", "entries", "tokens in", "tokens out", "cost", "why"]
        print_table(headings, rows, right=(3, 4, 5, 6), shrink=7)


@ledger_app.command("reverse")
async def reverse(
    posting: Annotated[
        str, typer.Argument(help="The id of a correction or reconciliation, as `ledger postings` has it.")
    ],
) -> None:
    """Take a correction or a reconciliation back: post the same with every amount negative. Nothing is deleted."""
    from cost.ledger.postings import reverse as taken_back
    from cost.shown import nano_money
    from gateway.commands.audit import note, operators

    posting_id = posting.rstrip("/")
    async with open_engine() as engine:
        entries = await taken_back(engine, posting_id)
        await note(engine, operators(), "posting.reversed", "posting", posting_id, {"entries": len(entries)})
    cost = nano_money(sum(each.cost_nanousd or 0 for each in entries))
    typer.echo(f"{posting} is taken back: {counted(len(entries), 'entry', 'entries')}, {cost}")
    typer.echo(f"to have it again: weighbridge ledger reverse {posting}/reversal")


def _range(from_day: datetime | None, to_day: datetime | None) -> tuple[int, int]:
    if from_day is not None and to_day is not None and to_day < from_day:
        fail("--to is before --from", 2)
    end = _END_OF_TIME_US if to_day is None else _us(to_day) + DAY_US
    return 0 if from_day is None else _us(from_day), end


def _us(day: datetime) -> int:
    return int(day.replace(tzinfo=UTC).timestamp()) * 1_000_000


async def _gaps(engine: "AsyncEngine") -> "list[Gap]":
    """Return the entries that were in this host's journals once and are nowhere now."""
    from cost.ledger.journal_gaps import find_gaps

    folder = journal_dir()
    return [] if folder is None else await find_gaps(engine, folder, socket.gethostname())


def _print_gaps(gaps: "list[Gap]") -> None:
    from cost.ledger.journal_gaps import gaps_path

    for gap in gaps:
        if gap.entries is None:
            text = f"the journal of {gap.boot_id} is gone, and what it wrote after {_moment(gap.at_us)} with it"
        else:
            text = f"{counted(gap.entries, 'entry', 'entries')} of {gap.boot_id} are in no journal any more, and not in the ledger"
        typer.echo(f"missing: {text}", err=True)
    folder = journal_dir()
    if gaps and folder is not None:
        typer.echo(
            "such entries were lost with a restore: the database that it replaced has them, and providers' bills tell "
            f"their cost (`weighbridge reconcile`). Once that is done, delete {gaps_path(folder)}, if it is there",
            err=True,
        )


async def _waiting(engine: "AsyncEngine") -> dict[str, Any] | None:
    """Count entries that this host's journals have and the database does not yet; None without a configuration that names the folder."""
    from cost.ledger.journal_places import read_places
    from cost.ledger.segments import waiting

    folder = journal_dir()
    if folder is None:
        return None
    found = [each for each in waiting(folder, await read_places(engine)) if each.entries]
    oldest = [each.oldest_at_us for each in found if each.oldest_at_us is not None]
    return {
        "entries": sum(each.entries for each in found),
        "processes": len(found),
        "dead_processes": sum(not each.alive for each in found),
        "oldest_s": round(max(0.0, (wall_us() - min(oldest)) / 1_000_000), 3) if oldest else 0.0,
    }


def _print_waiting(waits: dict[str, Any] | None) -> None:
    if waits is None:
        typer.echo("journals were not counted: WEIGHBRIDGE_CONFIG is not set", err=True)
    elif waits["entries"]:
        entries, processes = (
            counted(waits["entries"], "entry", "entries"),
            counted(waits["processes"], "process", "processes"),
        )
        text = (
            f"not in the database yet: {entries} in journals of {processes}, the oldest for {waits['oldest_s']:,.0f} s"
        )
        dead = f"; {waits['dead_processes']:,} of them dead" if waits["dead_processes"] else ""
        typer.echo(text + dead, err=True)


def _plain_posting(each: "Posting") -> dict[str, Any]:
    from cost.prices import usd

    return {
        "posting": each.posting_id,
        "reason": each.reason,
        "entries": each.entries,
        "first": _moment(each.first_us),
        "last": _moment(each.last_us),
        "input_tokens": each.input_tokens,
        "output_tokens": each.output_tokens,
        "cost_usd": f"{usd(each.cost_nanousd):f}",
    }


async def _rebuilt(from_us: int, to_us: int) -> int:
    from cost.ledger.rebuild import rebuild as written_anew
    from gateway.commands.audit import note, operators

    async with open_engine() as engine:
        rebuilt = await written_anew(engine, from_us, to_us)
        await note(engine, operators(), "ledger.rebuilt", "ledger", "rollups", {"from_us": from_us, "to_us": to_us})
        return rebuilt


def _plain(found: "Verification") -> dict[str, Any]:
    from cost.prices import usd

    return {
        "agree": found.differences == 0,
        "entries": found.rows + found.archived,
        "archived": found.archived,
        "damaged": list(found.damaged),
        "unread": list(found.unread),
        "cost_usd": f"{usd(found.cost_nanousd):f}",
        "open_reserves": found.open_reserves,
        "differences": found.differences,
        "rows": [
            {
                "table": each.table,
                "key": {name: _moment(value) if name in _MOMENTS else value for name, value in each.key.items()},
                "column": each.column,
                "ledger": each.expected,
                "found": each.found,
            }
            for each in found.told
        ],
    }


def _print(found: "Verification") -> None:
    from cost.shown import fine_money

    checked = f"{counted(found.rows, 'entry', 'entries')}, {fine_money(found.cost_nanousd)}"
    if found.differences:
        headings = ["table", "when", "where", "figure", "ledger", "found", "difference"]
        print_table(headings, [_row(each) for each in found.told], right=(4, 5, 6))
        hidden = found.differences - len(found.told)
        more = f", of which the first {len(found.told):,} are shown" if hidden else ""
        typer.echo(
            f"\nthe books do not agree: {counted(found.differences, 'figure')} wrong{more}; checked: {checked}",
            err=True,
        )
    else:
        typer.echo(f"the books agree: {checked}")
    if found.archived:
        typer.echo(f"beside them in archived months: {counted(found.archived, 'entry', 'entries')}", err=True)
    for each in found.damaged:
        typer.echo(f"damaged: {each}", err=True)
    for each in found.unread:
        typer.echo(f"only the totals of its days were compared: {each}", err=True)
    if found.open_reserves:
        typer.echo(f"open for longer than an hour: {counted(found.open_reserves, 'reserve')}", err=True)


_MOMENTS = ("start_us", "day_us")


def _row(difference: "Difference") -> list[str]:
    key = difference.key
    when = next((_moment(key[name]) for name in _MOMENTS if name in key), "")
    where = " ".join(str(value) for name, value in key.items() if name not in _MOMENTS and value != "")
    money = difference.column.endswith("_nanousd") or difference.column == "sum of meters"
    figures = (difference.expected, difference.found, difference.found - difference.expected)
    column = difference.column.replace("_nanousd", "_usd")
    return [difference.table, when, where, column, *(_figure(each, money=money) for each in figures)]


def _figure(figure: int, *, money: bool) -> str:
    from cost.prices import usd

    return f"{usd(figure):.9f}" if money else str(figure)


def _moment(at_us: str | int) -> str:
    return datetime.fromtimestamp(int(at_us) // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%MZ")
