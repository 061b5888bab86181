"""`weighbridge keys`: API keys of teams, made, listed and revoked."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from accounts.caller import Role
from gateway.commands.shared import (
    ConfigOption,
    JsonOption,
    fail,
    open_accounts,
    open_engine,
    plain,
    print_json,
    print_rows,
    read_config,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from accounts.keys import Pepper
    from gateway.configuration.gateway_config import GatewayConfig

ExpiresAtOption = Annotated[datetime | None, typer.Option(help="When it stops working, UTC.")]
ExpiresInOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Lifetime from now, such as 90d, 12h or 30m; `never`: no expiry.")
]
ReasonOption = Annotated[str, typer.Option(help="Why, for the audit log.")]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY_ID", help="Such as key_1a2b…, from `keys list`.")]
_UNITS_S: Final = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LEAST_SECRET: Final = 16
_LEAST_LETTERS: Final = 6
keys_app = typer.Typer(help="API keys of teams.", no_args_is_help=True, rich_markup_mode=None)


@keys_app.command("create")
async def create_key(
    team_id: Annotated[str, typer.Argument(metavar="TEAM_ID", help="The team that the key is for.")],
    name: Annotated[str, typer.Option(help="What the key is used for.")] = "key",
    expires_at: ExpiresAtOption = None,
    expires_in: ExpiresInOption = None,
    role: Annotated[
        Role,
        typer.Option(
            help="member calls models and reads its team's figures; finance reads all teams' figures and changes "
            "nothing; admin also sets prices and budgets."
        ),
    ] = "member",
    models: Annotated[
        str | None,
        typer.Option(help="The only models it may use, separated by commas; all of the team's when left out."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key for a team. The key is shown this once."""
    from accounts.store import AccountStore
    from api.keys.change import audit_record
    from gateway.commands.audit import audited

    read = configured(config)
    only = _models(models, read)
    expiry = _expiry(expires_at, expires_in)

    async with open_engine() as engine, audited(engine, "key.created", team_id=team_id) as change:
        store = AccountStore(change.within)
        pepper = pepper_for_a_key(read, await store.keys_by_pepper())
        minted = await store.create_key(team_id, name, pepper, expires_at=expiry, role=role, models=only)
        owner = (await store.get_team(team_id)).organisation_id
        created = await store.key_of(owner, team_id, minted.key_id)
        change.tell("key", created.key_id, None, audit_record(created), organisation_id=owner)
    made: dict[str, Any] = {
        "key_id": minted.key_id,
        "team_id": team_id,
        "name": name,
        "role": role,
        "models": only,
        "key": minted.plaintext,
    }
    if as_json:
        print_json(made)
    else:
        # The key alone on standard output, so that a script can take it.
        typer.echo(made["key"])
        typer.echo(f"{made['key_id']} for {team_id}. This is the only time the key is shown.", err=True)


@keys_app.command("import")
async def import_key(
    team_id: Annotated[str, typer.Argument(metavar="TEAM_ID", help="The team that the key is for.")],
    name: Annotated[str, typer.Option(help="What the key is used for.")] = "imported",
    from_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The variable that holds the key, such as LITELLM_MASTER_KEY.")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(metavar="HEX", help="Its SHA-256 instead, as LiteLLM's database has it (`token`).")
    ] = None,
    expires_in: ExpiresInOption = None,
    role: Annotated[Role, typer.Option(help="As of `keys create`.")] = "member",
    models: Annotated[str | None, typer.Option(help="As of `keys create`.")] = None,
    config: ConfigOption = None,
) -> None:
    """Let another gateway's key, or one of your own choice, work here (`accounts.imported_keys`). The key itself is not stored."""
    import os

    from accounts.keys import token_of
    from accounts.store import AccountStore
    from api.keys.change import audit_record
    from gateway.commands.audit import audited

    if (from_env is None) == (sha256 is None):
        fail("say where the key is: --from-env NAME, or --sha256 HEX", 2)
    plaintext = "" if from_env is None else os.environ.get(from_env, "").strip()
    if from_env is not None:
        _check_importable(plaintext, from_env)
    token = sha256.strip().lower() if sha256 is not None else token_of(plaintext)
    read = configured(config)
    only, expiry = _models(models, read), _expiry(None, expires_in)
    async with open_engine() as engine, audited(engine, "key.imported", team_id=team_id) as change:
        store = AccountStore(change.within)
        pepper = pepper_for_a_key(read, await store.keys_by_pepper())
        key_id = await store.import_key(
            team_id, name, pepper, token, last4=plaintext[-4:], expires_at=expiry, role=role, models=only
        )
        owner = (await store.get_team(team_id)).organisation_id
        made = await store.key_of(owner, team_id, key_id)
        change.tell("key", key_id, None, audit_record(made), organisation_id=owner)
    typer.echo(key_id)
    if read is None or not read.accounts.imported_keys:
        typer.echo("note: such keys work where the configuration has `accounts: {imported_keys: true}`", err=True)


def _check_importable(plaintext: str, variable: str) -> None:
    """End the command at a key that nobody could present, or that anybody could guess."""
    from accounts.keys import may_be_imported

    if not plaintext:
        fail(f"{variable} is not set", 2)
    if not may_be_imported(plaintext):
        fail(f"{variable} holds no key: 8 to 256 printable ASCII characters, not beginning with `wb-`", 2)
    if len(plaintext) < _LEAST_SECRET or len(set(plaintext)) < _LEAST_LETTERS:
        fail(
            f"{variable} holds a key that can be guessed: it has fewer than {_LEAST_SECRET} characters, or few different ones. Make a new one: weighbridge keys create TEAM_ID --role ROLE",
            2,
        )


@keys_app.command("list")
async def list_keys(
    team: Annotated[str | None, typer.Option(help="Only this team's.")] = None, as_json: JsonOption = False
) -> None:
    """List keys, without the keys themselves; those that this configuration's peppers do not verify are warned of."""
    from accounts.unverified_keys import unverified

    columns = {"key_id": "key id", "team_id": "team", "name": "name", "role": "role", "last4": "ends in"}
    columns |= {"models": "models", "pepper_id": "pepper"}
    columns |= {"created_at": "created", "expires_at": "expires", "blocked_at": "blocked", "revoked_at": "revoked"}
    known = _known_peppers()
    async with open_accounts() as store:
        rows = [plain(key) for key in await store.list_keys(team)]
        told = None if known is None else unverified(await store.keys_by_pepper(), known)
    print_rows(rows, columns, as_json=as_json, empty="no keys yet")
    if told is not None:
        typer.echo(f"warning: {told}", err=True)


def pepper_for_a_key(config: "GatewayConfig | None", keys_by_pepper: "Mapping[str, int]") -> "Pepper":
    """Return the pepper for a new key. Raises ConfigError where no key of the database was made under one that is known here: a gateway
    that verifies those would refuse the new one.
    """
    from accounts.unverified_keys import unverified
    from gateway.configuration.environment import read_environment
    from gateway.configuration.file import ConfigError, Problem
    from gateway.configuration.peppers import first_peppers

    known = first_peppers(config, read_environment(), keys_by_pepper)
    told = unverified(keys_by_pepper, known)
    if told is not None and keys_by_pepper.keys().isdisjoint(pepper.id for pepper in known):
        raise ConfigError([Problem("", 0, "", f"no key was made: here {told}")])
    return known[0]


def _known_peppers() -> "tuple[Pepper, ...] | None":
    """Return the peppers of the configuration and environment; None where they give none here."""
    from gateway.configuration.environment import read_environment
    from gateway.configuration.file import ConfigError
    from gateway.configuration.peppers import peppers

    try:
        return peppers(configured(None), read_environment())
    except (ConfigError, LookupError):
        return None


def configured(config: "Path | None") -> "GatewayConfig | None":
    """Return the configuration, where one is named here or in the environment."""
    from gateway.configuration.environment import read_environment

    return read_config(config) if config is not None or read_environment().config is not None else None


def _models(text: str | None, config: "GatewayConfig | None") -> list[str] | None:
    """Return the names; end the command at one that no model of the configuration has, where there is one to ask."""
    names = None if text is None else sorted({name.strip() for name in text.split(",") if name.strip()})
    if names and config is not None:
        from gateway.wiring.catalog import catalog_of
        from settings.words import closest

        catalog = catalog_of(config)
        for name in names:
            if name not in catalog:
                near = closest(name, catalog.targets)
                fail(
                    f"there is no model {name[:80]!r}; "
                    + (f"did you mean {near}?" if near else "the file's `providers.models` has those that there are"),
                    2,
                )
    return names


@keys_app.command("set")
async def set_key(
    key_id: KeyArgument,
    models: Annotated[
        str | None, typer.Option(help="The only models it may use, separated by commas; `all` for all of the team's.")
    ] = None,
    expires_at: ExpiresAtOption = None,
    expires_in: ExpiresInOption = None,
    config: ConfigOption = None,
) -> None:
    """Change which models a key may use, or when it stops working. Every server follows within 5 seconds."""
    from accounts.errors import UnknownKeyId
    from accounts.store import AccountStore
    from api.keys.change import audit_record
    from gateway.commands.audit import audited

    if models is None and expires_at is None and expires_in is None:
        fail("nothing to change: give at least one option, see --help", 2)
    only = None if models is None or models.strip() == "all" else _models(models, configured(config))
    ends = _expiry(expires_at, expires_in)

    async with open_engine() as engine, audited(engine, "key.changed") as change:
        store = AccountStore(change.within)
        before = {key.key_id: key for key in await store.list_keys()}.get(key_id)
        if before is None:
            raise UnknownKeyId(f"there is no key {key_id[:80]!r}")
        owner = (await store.get_team(before.team_id)).organisation_id
        after = before
        if models is not None:
            after = await store.set_key_models(owner, before.team_id, key_id, only)
        if expires_at is not None or expires_in is not None:
            after = await store.set_expiry(owner, before.team_id, key_id, ends)
        was, now = audit_record(before), audit_record(after)
        change.tell("key", key_id, was, now, team_id=before.team_id, organisation_id=owner)
    may_use = "all models of its team" if after.models is None else ", ".join(after.models) or "no model"
    end = "no end" if after.expires_at is None else f"until {after.expires_at:%Y-%m-%dT%H:%M:%SZ}"
    typer.echo(f"{key_id}: {may_use}; {end}")


@keys_app.command("block")
async def block_key(key_id: KeyArgument, reason: ReasonOption = "") -> None:
    """Refuse a key until `keys unblock`. Every server follows within 5 seconds."""
    await _block(key_id, reason, blocked=True)


@keys_app.command("unblock")
async def unblock_key(key_id: KeyArgument, reason: ReasonOption = "") -> None:
    """Let a blocked key work again."""
    await _block(key_id, reason, blocked=False)


async def _block(key_id: str, reason: str, *, blocked: bool) -> None:
    from accounts.errors import UnknownKeyId
    from accounts.store import AccountStore
    from api.keys.change import audit_record, blocked_with
    from gateway.commands.audit import audited

    async with (
        open_engine() as engine,
        audited(engine, "key.blocked" if blocked else "key.unblocked", reason=reason) as change,
    ):
        store = AccountStore(change.within)
        keys = {key.key_id: key for key in await store.list_keys()}
        before = keys.get(key_id)
        if before is None:
            raise UnknownKeyId(f"there is no key {key_id[:80]!r}")
        owner = (await store.get_team(before.team_id)).organisation_id
        others = blocked_with(before, keys.values(), blocked=blocked)
        after = await store.block_key(owner, before.team_id, key_id, blocked=blocked)
        was, now = audit_record(before), audit_record(after) | others
        change.tell("key", key_id, was, now, team_id=before.team_id, organisation_id=owner)
    typer.echo(f"{'blocked' if blocked else 'unblocked'} {', '.join([key_id, *others.get('also', ())])}")


def _expiry(expires_at: datetime | None, expires_in: str | None) -> datetime | None:
    """Return when a key stops working; end the command at a time that is none or lies behind."""
    from datetime import UTC

    from accounts.store import utc_now
    from api.keys.change import ends_after

    if expires_at is not None and expires_in is not None:
        fail("a key ends at --expires-at or after --expires-in, not both", 2)
    if expires_in is None or expires_in == "never":
        ends = None if expires_at is None else expires_at.replace(tzinfo=UTC)
    else:
        number, unit = expires_in[:-1], expires_in[-1:]
        if not number.isdecimal() or len(number) > 6 or unit not in _UNITS_S:  # noqa: PLR2004
            fail(f"--expires-in is a time such as 90d, 12h, 30m or never, not {expires_in[:40]!r}", 2)
        ends = ends_after(utc_now(), int(number) * _UNITS_S[unit])
    if ends is not None and ends <= utc_now():
        fail("the key would have stopped working already; choose a later time", 2)
    return ends


@keys_app.command("revoke")
async def revoke_key(key_id: KeyArgument) -> None:
    """Refuse a key from now on. Every server refuses it within 5 seconds."""
    from accounts.store import AccountStore
    from api.keys.change import audit_record
    from gateway.commands.audit import audited

    async with open_engine() as engine, audited(engine, "key.revoked") as change:
        store = AccountStore(change.within)
        before = {key.key_id: key for key in await store.list_keys()}
        await store.revoke_key(key_id)
        after = next(key for key in await store.list_keys() if key.key_id == key_id)
        owner = (await store.get_team(after.team_id)).organisation_id
        was, now = audit_record(before[key_id]), audit_record(after)
        change.tell("key", key_id, was, now, team_id=after.team_id, organisation_id=owner)
    typer.echo(f"revoked {key_id}")
