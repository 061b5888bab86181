"""`weighbridge import`: other gateways' configurations and databases, and what became of each of their lines."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import contextlib
import os
import re
import tempfile
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from gateway.commands.shared import FAILED, USAGE, JsonOption, fail, print_json
from gateway.table import counted, print_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy.ext.asyncio import AsyncEngine

    from accounts.keys import Pepper
    from gateway.configuration.gateway_config import GatewayConfig
    from gateway.from_litellm.models import Models
    from gateway.from_litellm.source import Source, Variables
    from gateway.from_litellm.tables import Theirs
    from gateway.from_litellm.told import Account

import_app = typer.Typer(help="From another gateway to this one.", no_args_is_help=True, rich_markup_mode=None)

_PORT: Final = 5_432
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:@+=-]+")
_CONFIG: Final = "WEIGHBRIDGE_CONFIG"
_DRY = typer.Option("--dry-run", help="Tell what would become of each line, and write nothing.")


@import_app.command("litellm")
async def import_litellm(
    file: Annotated[Path | None, typer.Argument(metavar="CONFIG_YAML", help="LiteLLM's configuration.")] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="LiteLLM's PostgreSQL (or env:NAME, where that is found), which is only read: its models, organisations, teams, users, keys, limits, budgets and what was spent.",
        ),
    ] = None,
    dry_run: Annotated[bool, _DRY] = False,
    out: Annotated[Path, typer.Option(help="Where our configuration is written.")] = Path("weighbridge.yaml"),
    secrets: Annotated[
        Path | None,
        typer.Option(help="A new file for literal secrets, as NAME=value lines that only its owner can read."),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            metavar="DAY", formats=["%Y-%m-%d"], help="Days before it become one; the first of January unless given."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write our configuration for LiteLLM's, and bring its accounts. Exit status 1: something was not possible, which the table names."""
    from gateway.from_litellm.told import Account

    if file is None and database is None:
        fail("name LiteLLM's config.yaml, its --database, or both", USAGE)
    account, today = Account(), datetime.now(UTC)
    first = date(today.year, 1, 1) if since is None else since.date()
    with _configuration(out):
        theirs = None if database is None else await _theirs(database, first)
    models = _translated(account, file, theirs, out, secrets, dry_run=dry_run)
    if theirs is not None:
        with _configuration(out):
            await _accounts(theirs, models, account, first, today, dry_run=dry_run)
    _show(account, as_json=as_json)
    if account.counts()["not possible"]:
        raise typer.Exit(FAILED)


async def _theirs(named: str, since: date) -> "Theirs":
    from gateway.configuration.environment import resolve_secret
    from gateway.from_litellm.tables import read_theirs
    from settings.secret_ref import is_reference

    url = named
    if is_reference(named):
        try:
            url = resolve_secret(named)
        except (LookupError, OSError):
            fail(f"{named} is not set", USAGE)
    _refuse_ours(url)
    return await read_theirs(url, since)


def _refuse_ours(url: str) -> None:
    """End the command where LiteLLM's database would be ours, too: DATABASE_URL is read by both."""
    from gateway.configuration.environment import read_environment

    ours, theirs = urlsplit(read_environment().database()), urlsplit(url)
    if ours.hostname is not None and (ours.hostname, ours.port or _PORT, ours.path) == (
        theirs.hostname,
        theirs.port or _PORT,
        theirs.path,
    ):
        fail("this is our own database (WEIGHBRIDGE_DATABASE_URL, else DATABASE_URL): give ours another one", USAGE)


def _translated(
    account: "Account", file: Path | None, theirs: "Theirs | None", out: Path, secrets: Path | None, *, dry_run: bool
) -> "Models":
    """Translate the file, and write what came of it unless it is only to be told."""
    from gateway.configuration.environment import read_environment
    from gateway.from_litellm.checked import sound
    from gateway.from_litellm.configuration import as_yaml, translate
    from gateway.from_litellm.secrets import Secrets
    from gateway.from_litellm.source import Source, Variables, add_documents, read_source
    from gateway.from_litellm.tables import documents_of

    variables = Variables(os.environ)
    source = Source([]) if file is None else read_source(file, account, variables)
    if theirs is not None:
        add_documents(source, documents_of(theirs, _salt_key(source, variables), account), variables)
    moved = Secrets(account, variables)
    translated = translate(source, account, moved, variables)
    written = sound(translated.written, read_environment(), account)
    if not dry_run:
        # Who brings accounts again, on the day of the switch, has changed the file since.
        _write(out, as_yaml(written), may_differ=theirs is not None)
        # Also where it is empty: the next command reads it.
        if secrets is not None:
            _write(secrets, _lines(moved.moved), mode=0o600, may_differ=theirs is not None)
    _say_what_to_set(moved.moved, moved.referred, secrets, dry_run=dry_run)
    return translated.models


def _salt_key(source: "Source", variables: "Variables") -> str | None:
    """Return what LiteLLM seals its database with: its salt key, else its master key."""
    settings = source.section("general_settings")
    for name in ("LITELLM_SALT_KEY", "LITELLM_MASTER_KEY"):
        if (found := variables.value_of(name)) is not None:
            return found
    for key in ("salt_key", "master_key"):
        resolved = variables.resolved(settings[key].value) if key in settings else None
        if isinstance(resolved, str):
            return resolved
    return None


@contextlib.contextmanager
def _configuration(out: Path) -> "Iterator[None]":
    """Have what was written be the configuration, where none is named: our database and pepper are found by it."""
    if os.environ.get(_CONFIG) or not out.is_file():
        yield
        return
    os.environ[_CONFIG] = str(out)
    try:
        yield
    finally:
        os.environ.pop(_CONFIG)


async def _accounts(
    theirs: "Theirs", models: "Models", account: "Account", since: date, now: datetime, *, dry_run: bool
) -> None:
    from accounts.store import AccountStore
    from gateway.commands.keys import configured, pepper_for_a_key
    from gateway.from_litellm.whole import import_accounts

    async with _our_engine(dry_run=dry_run) as engine:
        known = await AccountStore(engine).keys_by_pepper()
        read = configured(None)
        peppers = [_no_pepper()] if dry_run and not known else [pepper_for_a_key(read, known)]
        await import_accounts(
            engine, _all_peppers(read, peppers), theirs, models, account, since=since, now=now, dry_run=dry_run
        )


def _no_pepper() -> "Pepper":
    """Return a pepper for a dry run, which makes none."""
    import secrets as randomness

    from accounts.keys import MIN_PEPPER_BYTES, Pepper

    return Pepper(id="dry-run", secret=randomness.token_bytes(MIN_PEPPER_BYTES))


def _all_peppers(config: "GatewayConfig | None", first: "list[Pepper]") -> "list[Pepper]":
    """Return the pepper for new keys and, after it, those that older keys were made under."""
    from gateway.configuration.environment import read_environment
    from gateway.configuration.file import ConfigError
    from gateway.configuration.peppers import peppers

    try:
        others = peppers(config, read_environment())
    except (ConfigError, LookupError):
        return first
    return [*first, *(each for each in others if each.id != first[0].id)]


@contextlib.asynccontextmanager
async def _our_engine(*, dry_run: bool) -> "AsyncIterator[AsyncEngine]":
    """Open our database; for a dry run where there is none yet, one that is thrown away."""
    from gateway.commands.config import database_at_hand
    from gateway.commands.shared import open_engine
    from gateway.configuration.environment import read_environment
    from gateway.database import make_engine, migrate

    if not dry_run or database_at_hand(read_environment()) is not None:
        async with open_engine() as engine:
            yield engine
        return
    with tempfile.TemporaryDirectory(prefix="weighbridge-import-") as folder:
        thrown_away = make_engine(f"sqlite+aiosqlite:///{folder}/weighbridge.sqlite")
        try:
            await migrate(thrown_away)
            yield thrown_away
        finally:
            await thrown_away.dispose()


def _write(path: Path, text: str, mode: int = 0o644, *, may_differ: bool = False) -> None:
    """Write a new file; one that says the same may be there already, and with `may_differ` any, which stays."""
    try:
        if path.exists():
            if path.read_text(encoding="utf-8") == text:
                return
            if not may_differ:
                fail(f"{path} is there already and says something else: name another file, or move it", USAGE)
            typer.echo(f"{path} is there already and says something else: it stays", err=True)
            return
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}", USAGE)
    typer.echo(f"wrote {path}", err=True)


def _lines(moved: dict[str, str]) -> str:
    """Return lines that a shell and an environment file of containers read alike."""
    return "".join(
        f"{name}={value}\n" if _PLAIN.fullmatch(value) else f"{name}='{value}'\n"
        for name, value in sorted(moved.items())
        if _fits_a_line(value)
    )


def _fits_a_line(value: str) -> bool:
    return "'" not in value and value.isprintable()


def _say_what_to_set(moved: dict[str, str], referred: set[str], secrets: Path | None, *, dry_run: bool) -> None:
    if moved:
        where = (
            f" (they are in {secrets})"
            if secrets is not None and not dry_run
            else "; --secrets FILE writes them to a file"
        )
        typer.echo(f"literal secrets that have to be set: {', '.join(sorted(moved))}{where}", err=True)
    if unfit := sorted(name for name, value in moved.items() if not _fits_a_line(value)):
        typer.echo(f"in no file, as they fit no line; set them yourself: {', '.join(unfit)}", err=True)
    missing = sorted(name for name in referred if name not in moved and not os.environ.get(name))
    if missing:
        typer.echo(f"not set in this environment, and needed to serve: {', '.join(missing)}", err=True)


def _show(account: "Account", *, as_json: bool) -> None:
    """Print what became of each line, and how many became what."""
    import msgspec

    from gateway.from_litellm.told import rows_of

    told = account.in_order()
    if as_json:
        found: list[dict[str, Any]] = [msgspec.structs.asdict(each) for each in told]
        print_json(found)
    else:
        print_table(["line", "where", "became", "how"], rows_of(told), shrink=3)
    counts = account.counts()
    lines = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
    typer.echo(f"{counted(len(told), 'line')}: {lines}", err=True)
