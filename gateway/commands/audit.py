"""`weighbridge audit`: who changed what, and whether the log of it is as it was written; and how commands write it."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from gateway.commands.shared import USAGE, JsonOption, fail, open_engine, print_json, read_config
from gateway.table import counted, print_table

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from accounts.audit.entry import Actor, Entry
    from accounts.audit.log import AuditLog, Change, Filters, Scope
    from accounts.audit.verify import VerifyResult

audit_app = typer.Typer(
    help="The audit log: who changed what, and whether the log is intact.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
OrganisationOption = Annotated[str | None, typer.Option(help="Only this organisation's entries; otherwise all.")]
ActorOption = Annotated[str, typer.Option(help="Who: an id, or a part of a name.")]
ActionOption = Annotated[str, typer.Option(help="What: such as key.revoked, or only key.")]
ObjectOption = Annotated[str, typer.Option("--object", help="On what: an id, or a kind such as budget.")]
TeamOption = Annotated[str, typer.Option(help="In which team.")]
FromOption = Annotated[str, typer.Option("--from", metavar="DAY", help="The first day, UTC.")]
ToOption = Annotated[str, typer.Option("--to", metavar="DAY", help="The last day, UTC.")]
_BROKEN = 1


@audit_app.command("list")
async def list_entries(
    *,
    organisation: OrganisationOption = None,
    actor: ActorOption = "",
    action: ActionOption = "",
    object_: ObjectOption = "",
    team: TeamOption = "",
    first_day: FromOption = "",
    last_day: ToOption = "",
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 50,
    before: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="Only entries before this one, to go on reading.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List entries, the newest first."""
    from accounts.audit.log import AuditLog, Scope
    from api.audit.listing import entry_as_json

    filters = _filters(actor, action, object_, team, first_day, last_day)
    scope = Scope(organisation_id=organisation)
    async with open_engine() as engine:
        # Who asks on the command line waits until all of it was looked through.
        page = await AuditLog(engine).search(scope, filters, before_number=before, limit=limit, most_s=math.inf)
    found = page.entries
    if as_json:
        print_json([entry_as_json(entry) for entry in found])
    elif found:
        _print(found)
    else:
        typer.echo("no such entries", err=True)


@audit_app.command("export")
async def export(
    *,
    organisation: OrganisationOption = None,
    actor: ActorOption = "",
    action: ActionOption = "",
    object_: ObjectOption = "",
    team: TeamOption = "",
    first_day: FromOption = "",
    last_day: ToOption = "",
    kind: Annotated[
        Literal["ndjson", "csv"],
        typer.Option("--format", help="ndjson can be verified later, csv is for spreadsheets."),
    ] = "ndjson",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Otherwise standard output.")
    ] = None,
) -> None:
    """Write entries out, the oldest first. A whole log as ndjson is verified by `weighbridge audit verify --file`."""
    from accounts.audit.log import Scope

    filters = _filters(actor, action, object_, team, first_day, last_day)
    scope = Scope(organisation_id=organisation)
    if output is None:
        await _exported(scope, filters, kind, sys.stdout.buffer)
        return
    with output.open("xb") as file:
        await _exported(scope, filters, kind, file)
    typer.echo(f"wrote {output}", err=True)


@audit_app.command("verify")
async def verify(
    *,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An export as ndjson; otherwise the database is checked.")
    ] = None,
    part: Annotated[
        bool,
        typer.Option(
            "--part", help="The file has only the entries of an organisation or a filter, so numbers are missing."
        ),
    ] = False,
    head: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER:HASH",
            help="An entry's hash that was noted elsewhere: from an earlier verification, an export or the server's log.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that no entry was changed, removed, put in or moved. Ends with status 1 where one was.

    Who can write to the database can write a whole new chain: only a hash that was noted elsewhere (`--head`) shows that.
    """
    from accounts.audit.log import AuditLog
    from accounts.audit.verify import parse_anchor, verify_lines

    anchors = [parse_anchor(text) for text in head or ()]
    if part and file is None:
        fail("--part goes with --file: the database has all entries", USAGE)
    if file is None:
        async with open_engine() as engine:
            verdict = await AuditLog(engine).verify(anchors)
    else:
        with file.open("rb") as lines:
            verdict = verify_lines(lines, anchors, part=part)
    if as_json:
        print_json(_plain(verdict))
    else:
        _print_verdict(verdict)
    if not verdict.sound:
        raise typer.Exit(_BROKEN)


def console(organisation_id: str) -> "Actor":
    """Return the actor of a command: the user of this command line, as the operating system knows them."""
    import os
    import pwd
    import socket

    from accounts.audit.entry import Actor

    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        # In a container the number may have no name.
        name = f"uid {uid}"
    return Actor(
        kind="console", actor_id=name, name=name, organisation_id=organisation_id, address=socket.gethostname()
    )


@asynccontextmanager
async def audited(
    engine: "AsyncEngine", action: str, organisation_id: str = "default", *, team_id: str = "", reason: str = ""
) -> "AsyncIterator[Change]":
    """Run a command's change and its audit entry in one transaction. Where the owner is known only inside, `tell`
    names it.
    """
    async with log_of(engine).change(console(organisation_id), action, team_id=team_id, reason=reason) as change:
        yield change


async def note(
    engine: "AsyncEngine", owner: str, action: str, object_kind: str, object_id: str, after: dict[str, Any]
) -> None:
    """Add an audit entry for something already done, such as postings, which have transactions of their own in the
    ledger.
    """
    await log_of(engine).note(console(owner), action, object_kind, object_id, after=after)


def operators(config: Path | None = None) -> str:
    """Return the organisation that runs the gateway; its log holds entries on what concerns all organisations."""
    from gateway.configuration.environment import read_environment

    if config is None and read_environment().config is None:
        from accounts.store import DEFAULT_ORGANISATION

        return DEFAULT_ORGANISATION
    return read_config(config).accounts.operator


def log_of(engine: "AsyncEngine") -> "AuditLog":
    """Return the audit log."""
    from accounts.audit.log import AuditLog

    return AuditLog(engine)


def _filters(actor: str, action: str, object_: str, team: str, first_day: str, last_day: str) -> "Filters":
    from api.audit.listing import BadFilter, filters_from

    given = {"actor": actor, "action": action, "object": object_, "team": team, "from": first_day, "to": last_day}
    try:
        return filters_from(given)
    except BadFilter as error:
        fail(f"--{error.param}: {error}", USAGE)


async def _exported(scope: "Scope", filters: "Filters", kind: str, file: BinaryIO) -> None:
    from accounts.audit.log import AuditLog
    from api.audit.listing import pieces

    async with open_engine() as engine:
        async for piece in pieces(AuditLog(engine), scope, filters, kind):
            file.write(piece)
    file.flush()


def _plain(verdict: "VerifyResult") -> dict[str, Any]:
    return {
        "sound": verdict.sound,
        "entries": verdict.entries,
        "number": verdict.number,
        "hash": verdict.hash,
        "breaks": [{"number": each.number, "what": each.what} for each in verdict.breaks],
    }


def _print_verdict(verdict: "VerifyResult") -> None:
    for each in verdict.breaks:
        typer.echo(f"entry {each.number}: {each.what}", err=True)
    entries = counted(verdict.entries, "entry", "entries")
    if not verdict.sound:
        typer.echo(f"{entries} checked; the log was changed after it was written", err=True)
        return
    typer.echo(f"{entries}, all intact; keep this elsewhere for the next check:")
    typer.echo(f"  --head {verdict.number}:{verdict.hash}")


def _print(found: "list[Entry]") -> None:
    from api.audit.listing import name_of
    from cost.times import iso

    rows = [
        [
            str(each.number),
            iso(each.at_us),
            each.organisation_id,
            f"{each.actor_kind} {each.actor_name}",
            each.action,
            name_of(each) if each.object_kind in {"person", "member"} else each.object_id,
            each.team_id or "-",
            _changed(each),
            each.reason.splitlines()[0] if each.reason else "-",
        ]
        for each in found
    ]
    print_table(
        ["number", "at", "organisation", "who", "what", "of", "team", "changed", "why"], rows, right=(0,), shrink=7
    )


def _changed(entry: "Entry") -> str:
    if bool(entry.before) != bool(entry.after):
        return "new" if entry.after else "gone"
    return ", ".join(each.name for each in entry.differences()) or "-"
