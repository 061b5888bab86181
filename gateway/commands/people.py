"""`weighbridge people`: who may sign in to the dashboards. The first administrator is let in here."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from accounts.access import NamedRole, OrganisationRole, TeamRole
from gateway.commands.shared import (
    ConfigOption,
    JsonOption,
    open_accounts,
    open_engine,
    print_json,
    print_rows,
    read_config,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from accounts.keys import Pepper
    from accounts.people.links import OneTimeLinks
    from accounts.people.person import Person
    from accounts.people.sign_in_config import SignInSection

people_app = typer.Typer(
    help="People who sign in to the dashboards with their e-mail address.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
EmailArgument = Annotated[str, typer.Argument(metavar="EMAIL", help="Their e-mail address.")]
_DAY_S = 86_400
_HOUR_S = 3_600
_MINUTE_S = 60


class _Settings(NamedTuple):
    """The configured sign-in settings."""

    section: "SignInSection"
    peppers: "tuple[Pepper, ...]"
    base: str
    operator: str


@people_app.command("invite")
async def invite(
    email: EmailArgument,
    *,
    organisation: Annotated[str, typer.Option(help="The organisation they belong to.")] = "default",
    role: Annotated[
        Literal["none", NamedRole] | None,
        typer.Option(
            help="admin sees and changes everything of the organisation; finance reads it all; operator runs the gateway; "
            "none: only what their teams let them. none for somebody new; somebody known keeps theirs.",
        ),
    ] = None,
    team: Annotated[str | None, typer.Option(help="A team of the organisation they belong to.")] = None,
    team_role: Annotated[TeamRole, typer.Option(help="What they are in the team.")] = "member",
    name: Annotated[str | None, typer.Option(help="Their name; otherwise the beginning of the address.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Invite somebody: print a one-time link for choosing a password. Also for the first administrator."""
    settings = await _settings(config)
    chosen: OrganisationRole | None = "" if role == "none" else role
    person, link = await _invite(settings, organisation, email, chosen, team, team_role, name)
    if as_json:
        print_json({**_plain(person), "link": link, "link_expires_s": settings.section.link_s})
    else:
        _print_link(settings, person, link)


@people_app.command("link")
async def link(email: EmailArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Make a new one-time link for somebody who lost the first one or forgot their password. Earlier links stop working."""
    settings = await _settings(config)
    async with open_engine() as engine:
        person = await _known(engine, email)
        made = await _link(engine, settings, person)
    if as_json:
        print_json({**_plain(person), "link": made, "link_expires_s": settings.section.link_s})
    else:
        _print_link(settings, person, made)


@people_app.command("list")
async def list_people(
    organisation: Annotated[str | None, typer.Option(help="Only this organisation's.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List people with their roles and teams."""
    from accounts.people.people import PeopleStore

    async with open_engine() as engine:
        store = PeopleStore(engine)
        found = await (store.all() if organisation is None else store.of_organisation(organisation))
        teams = await store.teams_of(person.person_id for person in found)
    rows = [{**_plain(person), "teams": teams[person.person_id]} for person in found]
    if not as_json:
        for row in rows:
            row["teams"] = ", ".join(f"{team} ({role})" for team, role in row["teams"].items()) or "-"
            row["role"] = row["role"] or "-"
    columns = {"email": "e-mail", "name": "name", "organisation_id": "organisation", "role": "role", "teams": "teams"}
    columns |= {"signed_in_at": "signed in last", "disabled_at": "disabled"}
    print_rows(
        rows, columns, as_json=as_json, empty="no people yet; first: weighbridge people invite EMAIL --role admin"
    )


@people_app.command("disable")
async def disable(email: EmailArgument) -> None:
    """Disable somebody. Their sessions and open links end at once."""
    from api.people.change import disable_person
    from gateway.commands.audit import console, log_of

    async with open_engine() as engine:
        person = await _known(engine, email)
        owner = person.organisation_id
        person = await disable_person(log_of(engine), console(owner), owner, person.email)
    typer.echo(f"disabled {person.email}: their sessions and links have ended")


@people_app.command("enable")
async def enable(email: EmailArgument) -> None:
    """Enable somebody again."""
    from api.people.change import enable_person
    from gateway.commands.audit import console, log_of

    async with open_engine() as engine:
        person = await _known(engine, email)
        owner = person.organisation_id
        person = await enable_person(log_of(engine), console(owner), owner, person.email)
    typer.echo(f"enabled {person.email}")


@people_app.command("sign-out")
async def sign_out(email: EmailArgument, config: ConfigOption = None) -> None:
    """End all sessions of somebody; they can sign in again."""
    from accounts.people.sessions import Sessions
    from cost.times import wall_us
    from gateway.commands.audit import audited

    settings = await _settings(config)

    async with open_engine() as engine:
        person = await _known(engine, email)
        action = "person.signed_out_everywhere"
        async with audited(engine, action, person.organisation_id) as change:
            sessions = Sessions(change.within, settings.section, settings.peppers, now_us=wall_us)
            ended = await sessions.close_all(person.person_id)
            change.tell("person", person.person_id, {"sessions": ended}, {"sessions": 0})
    typer.echo(f"{person.email}: {ended} {'session' if ended == 1 else 'sessions'} ended")


@people_app.command("unlock")
async def unlock(email: EmailArgument, config: ConfigOption = None) -> None:
    """Forget somebody's failed sign-ins, so that they need not wait. The password stays."""
    from accounts.people.passwords import Passwords
    from accounts.people.sign_in import SignIn
    from cost.times import wall_us
    from gateway.commands.audit import note

    settings = await _settings(config)

    async with open_engine() as engine:
        person = await _known(engine, email)
        passwords = Passwords(min_chars=settings.section.password_min_chars)
        door = SignIn(engine, settings.section, settings.peppers, passwords, now_us=wall_us)
        await door.unlock(person.email)
        after = {"email": person.email}
        await note(engine, person.organisation_id, "person.unlocked", "person", person.person_id, after)
    typer.echo(f"{person.email} can try again at once")


async def _invite(
    settings: _Settings,
    organisation_id: str,
    email: str,
    role: "OrganisationRole | None",
    team_id: str | None,
    team_role: "TeamRole",
    name: str | None,
) -> "tuple[Person, str]":
    from msgspec import UNSET

    from accounts.errors import UnknownTeam
    from accounts.store import AccountStore
    from api.people.change import put_person
    from api.people.members_change import put_member
    from gateway.commands.audit import console, log_of

    async with open_engine() as engine:
        log, actor = log_of(engine), console(organisation_id)
        team = None if team_id is None else await AccountStore(engine).get_team(team_id)
        if team is not None and team.organisation_id != organisation_id:
            raise UnknownTeam(f"organisation {organisation_id!r} has no team {team_id!r}")
        person, _ = await put_person(
            log,
            actor,
            organisation_id,
            email,
            operator=settings.operator,
            name=UNSET if name is None else name,
            role=UNSET if role is None else role,
        )
        if team is not None:
            await put_member(log, actor, team, person.email, team_role)
        return person, await _link(engine, settings, person)


async def _link(engine: "AsyncEngine", settings: _Settings, person: "Person") -> str:
    from accounts.people.links import link_url
    from api.people.change import make_link
    from gateway.commands.audit import console, log_of

    owner = person.organisation_id
    token = await make_link(log_of(engine), console(owner), owner, person.email, _links(engine, settings))
    return link_url(settings.base, token)


def _links(engine: "AsyncEngine", settings: _Settings) -> "OneTimeLinks":
    from accounts.people.links import OneTimeLinks
    from accounts.people.passwords import Passwords
    from cost.times import wall_us

    passwords = Passwords(min_chars=settings.section.password_min_chars)
    return OneTimeLinks(engine, settings.section, settings.peppers, passwords, now_us=wall_us)


async def _known(engine: "AsyncEngine", email: str) -> "Person":
    from accounts.people.people import PeopleStore
    from accounts.people.people_errors import UnknownPerson

    person = await PeopleStore(engine).find(email)
    if person is None:
        raise UnknownPerson(f"there is nobody with the address {email[:80]!r}")
    return person


async def _settings(path: Path | None) -> _Settings:
    from accounts.people.links import own_address
    from accounts.people.sign_in_config import SignInSection
    from accounts.store import DEFAULT_ORGANISATION
    from gateway.configuration.environment import read_environment
    from gateway.configuration.gateway_config import ServerConfig
    from gateway.configuration.peppers import first_peppers

    environment = read_environment()
    config = read_config(path) if path is not None or environment.config is not None else None
    section = SignInSection() if config is None else config.sign_in
    server = ServerConfig() if config is None else config.server
    async with open_accounts() as accounts:
        peppers = first_peppers(config, environment, await accounts.keys_by_pepper())
    return _Settings(
        section=section,
        peppers=peppers,
        base=section.public_url
        or own_address(
            environment.host or server.host,
            server.port if environment.port is None else environment.port,
            "http" if server.tls is None else "https",
        ),
        operator=DEFAULT_ORGANISATION if config is None else config.accounts.operator,
    )


def _plain(person: "Person") -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(person)
    return plain


def _print_link(settings: _Settings, person: "Person", link: str) -> None:
    # The link alone on standard output, so that a script can take it.
    typer.echo(link)
    told = f"for {person.name} <{person.email}> of {person.organisation_id}, for {_duration(settings.section.link_s)}, once"
    typer.echo(f"{told}; whoever has it chooses the password, so send it to nobody else", err=True)
    if settings.section.public_url is None:
        typer.echo(
            "set sign_in.public_url in the configuration, so that the link works on other machines too", err=True
        )


def _duration(seconds: int) -> str:
    for unit_s, unit in ((_DAY_S, "day"), (_HOUR_S, "hour"), (_MINUTE_S, "minute")):
        if seconds >= unit_s and seconds % unit_s == 0:
            count = seconds // unit_s
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{seconds} seconds"
