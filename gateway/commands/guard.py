"""`weighbridge guard`: what the rules find in a text, and the rules that organisations and teams add."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.commands.shared import (
    USAGE,
    ConfigOption,
    JsonOption,
    fail,
    open_engine,
    print_json,
    print_rows,
    read_config,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from guard.inspector import OwnRules
    from guard.ruleset import Ruleset

guard_app = typer.Typer(
    help="What must not leave in a request: a dry run, and the rules of organisations and teams.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
TeamOption = Annotated[str | None, typer.Option("--team", metavar="TEAM_ID", help="A team's own rules.")]
OrganisationOption = Annotated[
    str, typer.Option("--organisation", metavar="ID", help="The organisation whose rules are meant.")
]
_MOST_BYTES: Final = 20_000_000


@guard_app.command("check")
async def check(
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The text; `-` or nothing: what comes on standard input.")
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option("--file", help="A file with the text, or with a request.")] = None,
    wire: Annotated[
        str | None,
        typer.Option(
            "--wire", help="The text is a request's body: chat, messages, responses, embeddings and the like."
        ),
    ] = None,
    team: TeamOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what each rule finds in a text, and send nothing. Values are shown by their ends alone."""
    from guard.inspector import Guard

    said = _read(text, file)
    section = read_config(config).guard
    own = None if team is None else await _own(team)
    rules = await Guard(section, b"a dry run's masks are nobody's").rules_for(own)
    if not rules.rules:
        fail(
            "no rules: `guard.rules` of the configuration is empty, and nobody added any (`weighbridge guard set`)",
            USAGE,
        )
    for rule in (*rules.services, *rules.plugins):
        typer.echo(f"{rule.name}: its {'plug-in' if rule.kind == 'plugin' else 'service'} is not asked here", err=True)
    found = _findings(rules, wire, said)
    print_rows(
        found,
        {"kind": "found", "action": "then", "role": "in", "place": "where", "value": "value"},
        as_json=as_json,
        empty="nothing is found",
    )


@guard_app.command("kinds")
def kinds(as_json: JsonOption = False) -> None:
    """List the kinds that `entities` of a rule may name."""
    from guard.kinds import KINDS

    rows = [{"name": each.name, "group": each.group, "title": each.title} for each in KINDS.values()]
    print_rows(rows, {"name": "kind", "group": "group", "title": "what it is"}, as_json=as_json, empty="no kinds")


@guard_app.command("show")
async def show(
    team: TeamOption = None, organisation: OrganisationOption = "default", as_json: JsonOption = False
) -> None:
    """Show the rules that an organisation or a team adds to the configuration's."""
    from accounts.store import AccountStore
    from guard.inspector import read_rules

    async with open_engine() as engine:
        organisation, team_id = await _place(engine, organisation, team)
        rules = read_rules(await AccountStore(engine).guard_of(organisation, team_id))
    rows = [rule.model_dump(exclude_defaults=True) for rule in rules]
    if as_json:
        print_json(rows)
        return
    plain = [{name: _cell(each.get(name)) for name in ("name", "kind", "input", "output", "on_error")} for each in rows]
    columns = {"name": "rule", "kind": "kind", "input": "input", "output": "output", "on_error": "on error"}
    print_rows(plain, columns, as_json=False, empty="no rules are added; the configuration's hold")


@guard_app.command("set")
async def set_rules(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML with a list `rules`, as in the configuration's `guard`.")
    ],
    *,
    team: TeamOption = None,
    organisation: OrganisationOption = "default",
) -> None:
    """Replace the rules that an organisation or a team adds. They tighten; servers follow within `accounts.fresh_s`."""
    import yaml

    from guard.inspector import BadRules, checked_rules

    try:
        document = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError) as error:
        fail(f"{file} cannot be read: {type(error).__name__}", USAGE)
    rules = document.get("rules") if isinstance(document, dict) else document
    if not isinstance(rules, list):
        fail(f"{file} has no list `rules`", USAGE)
    try:
        found = checked_rules(rules)
    except BadRules as error:
        fail(str(error), USAGE)
    await _change(organisation, team, [rule.model_dump(exclude_defaults=True) for rule in found])
    typer.echo(f"set: {len(found)}; the rules hold in every process within seconds")


@guard_app.command("remove")
async def remove_rules(*, team: TeamOption = None, organisation: OrganisationOption = "default") -> None:
    """Take away the rules that an organisation or a team added; those above still hold."""
    await _change(organisation, team, [])
    typer.echo("the rules that were added are taken away")


async def _change(organisation: str, team: str | None, rules: list[dict[str, Any]]) -> None:
    from accounts.store import AccountStore
    from api.guard.change import audit_record
    from gateway.commands.audit import audited
    from guard.inspector import checked_rules, read_rules, stored

    found = checked_rules(rules)
    async with open_engine() as engine:
        organisation, team_id = await _place(engine, organisation, team)
        action = "guard.set" if found else "guard.removed"
        async with audited(engine, action, organisation, team_id=team_id) as change:
            store = AccountStore(change.within)
            before = read_rules(await store.guard_of(organisation, team_id))
            await store.set_guard(organisation, team_id, stored(found))
            change.tell("guard", team_id or organisation, audit_record(before) or None, audit_record(found) or None)


async def _place(engine: "AsyncEngine", organisation: str, team: str | None) -> tuple[str, str]:
    """Return whose rules are meant. An unknown team or organisation raises."""
    from accounts.store import AccountStore
    from accounts.tables import WHOLE_ORGANISATION

    store = AccountStore(engine)
    if team is None:
        await store.check_organisation(organisation)
        return organisation, WHOLE_ORGANISATION
    found = await store.get_team(team)
    return found.organisation_id, found.team_id


async def _own(team: str) -> "OwnRules":
    """Return the rules that a team and its organisation add."""
    from accounts.store import AccountStore

    async with open_engine() as engine:
        organisation, team_id = await _place(engine, "default", team)
        store = AccountStore(engine)
        return await store.guard_of(organisation), await store.guard_of(organisation, team_id)


def _read(text: str | None, file: Path | None) -> str:
    import sys

    if text is not None and text != "-":
        return text
    try:
        said = sys.stdin.buffer.read(_MOST_BYTES + 1) if file is None else file.read_bytes()
    except OSError as error:
        fail(f"{file} cannot be read: {type(error).__name__}", USAGE)
    if len(said) > _MOST_BYTES:
        fail(f"that is more than {_MOST_BYTES:,} bytes", USAGE)
    return said.decode("utf-8", "replace")


def _findings(rules: "Ruleset", wire: str | None, said: str) -> list[dict[str, Any]]:
    """Return what is found, in the order of the text; a request's body is walked as its wire's."""
    import msgspec

    from guard.dry_run import body_of, dry_run
    from guard.walker import TooMuch

    try:
        found = dry_run(rules, wire or "chat", body_of(said) if wire is None else said.encode())
    except msgspec.MsgspecError:
        fail("that is no request: it is no JSON object", USAGE)
    except (TooMuch, RecursionError):
        fail("that has more texts, or is nested more deeply, than is read", USAGE)
    rows: list[dict[str, Any]] = [
        {
            "kind": each.kind,
            "action": each.action or "-",
            "role": each.role,
            "place": (wire is not None and each.path) or "-",
            "value": each.value,
        }
        for each in found.hits
    ]
    rows += [
        {"kind": media, "action": "unseen", "role": "-", "place": "-", "value": f"{count} not looked at"}
        for media, count in found.unseen.items()
    ]
    return rows


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)
