"""The command line. Each command imports what it needs itself, so that `--help` answers at once."""
# ruff: noqa: PLC0415 - imports stand in the commands, for the reason above

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

from proxy.commands.audit import audit_app
from proxy.commands.budgets import budgets_app
from proxy.commands.classifier import classifier_app
from proxy.commands.focus import focus_app
from proxy.commands.ledger import ledger_app
from proxy.commands.limits import limits_app
from proxy.commands.people import people_app
from proxy.commands.policy import policy_app
from proxy.commands.pools import pools_app
from proxy.commands.prices import prices_app
from proxy.commands.reconcile import reconcile
from proxy.commands.report import report_app
from proxy.commands.savings import savings
from proxy.commands.selfhosted import selfhosted_app
from proxy.commands.top import top
from proxy.commands.webhooks import webhooks_app

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from accounts.store import AccountStore, TeamRecord
    from proxy.configuration.settings import Environment, GatewayConfig
    from proxy.explain import Explanation

Result = TypeVar("Result")

_USAGE = 2
_FAILED = 1
_INTERRUPTED = 130
# What these find has the status 1; that they could not look has another.
_FINDERS = frozenset({"audit", "ledger", "reconcile", "savings"})


class _Weighbridge(TyperGroup):
    """Turns what can be expected to go wrong into a line or two on standard error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except Exception as error:
            told = _expected(error)
            if told is None:
                raise
            _fail(told, _USAGE if ctx.invoked_subcommand in _FINDERS else _FAILED)


def _expected(error: Exception) -> str | None:
    """The message for an error that the user can mend; None for one of ours.

    Only a command that got far enough to raise such an error has imported its module.
    """
    kinds = {
        "proxy.configuration.file": "ConfigError",
        "providers.catalog": "SecretMissing",
        "proxy.process.serve": "PortTaken",
        "proxy.demo.engine": "EngineMissing",
        "proxy.demo.run": "DemoFailed",
        "proxy.errors": "Refused",
        "proxy.gate.limits.rules": "LimitError",
        "proxy.webhooks.signature": "BadSecret",
        "accounts.errors": "AccountsError",
        "cost.errors": "PriceError",
        "selfhosted.registry.store": "RegistryError",
        "selfhosted.config": "PoolUnfit",
        "cost.postings": "PostingRefused",
        "cost.budgets.errors": "BudgetError",
        "cost.fleet.errors": "FleetError",
        "cost.reports.errors": "BadQuery",
        "cost.reconcile.books": "TooManyRows",
        "cost.reconcile.posting": "TooManyEntries",
        "classifier.learning.recalibrate": "TooFewLabels",
        "classifier.learning.store": "LearningError",
        "proxy.learning.tunings": "TuningRefused",
        "selfhosted.plans.errors": "PlanRefused",
        "selfhosted.simulate.errors": "SimulationRefused",
        "classifier.manifest": "ArtifactError",
        "classifier.training.data": "BadData",
        "classifier.training.splits": "NotDisjoint",
        "classifier.training.commands": "NothingToJudge",
    }
    for module, name in kinds.items():
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return str(error)
    refused = getattr(sys.modules.get("cost.errors"), "EntriesRefused", None)
    if refused is not None and isinstance(error, refused):
        return f"the database does not take these entries ({error}); are the amounts larger than anybody could owe?"
    database = getattr(sys.modules.get("sqlalchemy.exc"), "SQLAlchemyError", None)
    if database is not None and isinstance(error, database):
        # The driver's own message repeats the statement and sometimes the address with its password.
        return f"the database cannot be used ({type(error).__name__}); is its address right?"
    if isinstance(error, TimeoutError):
        return "no answer in time; is the database's address right?"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return None


app = typer.Typer(
    cls=_Weighbridge,
    help="Weighs each prompt, sends it to the cheapest capable model, and keeps the toll book.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
keys_app = typer.Typer(help="API keys of teams.", no_args_is_help=True, rich_markup_mode=None)
organisations_app = typer.Typer(
    help="Organisations: tenants that share nothing but the prices.", no_args_is_help=True, rich_markup_mode=None
)
teams_app = typer.Typer(help="Teams, which costs are booked to.", no_args_is_help=True, rich_markup_mode=None)
config_app = typer.Typer(help="The configuration file.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(keys_app, name="keys")
app.add_typer(organisations_app, name="organisations")
app.add_typer(teams_app, name="teams")
app.add_typer(config_app, name="config")
app.command("reconcile")(reconcile)
app.command("savings")(savings)
app.command("top")(top)
app.add_typer(pools_app, name="pools")
app.add_typer(selfhosted_app, name="selfhosted")
app.add_typer(report_app, name="report")
app.add_typer(people_app, name="people")
app.add_typer(policy_app, name="policy")
app.add_typer(budgets_app, name="budgets")
app.add_typer(limits_app, name="limits")
app.add_typer(prices_app, name="prices")
app.add_typer(ledger_app, name="ledger")
app.add_typer(audit_app, name="audit")
app.add_typer(webhooks_app, name="webhooks")
app.add_typer(focus_app, name="focus")
app.add_typer(classifier_app, name="classifier")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The configuration file; otherwise WEIGHBRIDGE_CONFIG.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Instead of server.host.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Instead of server.port.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=128, help="Processes that serve.")] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Serve two small local engines; needs no configuration.")
    ] = False,
    sample: Annotated[
        bool,
        typer.Option("--sample", help="Serve a made-up company's last thirty days, for looking at the dashboards."),
    ] = False,
) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    if sample:
        if config is not None or demo:
            _fail("--sample brings its own configuration; leave --config and --demo out", _USAGE)
        from proxy.demo.sample import serve_sample

        raise typer.Exit(serve_sample(host=host, port=port, workers=workers, requests=None))
    if demo:
        if config is not None:
            _fail("--demo brings its own configuration; leave --config out", _USAGE)
        from proxy.demo.run import serve_demo

        raise typer.Exit(serve_demo(host=host, port=port, workers=workers))
    from proxy.process.serve import serve as run

    environment, settings, path = _load(config, {"host": host, "port": port, "workers": workers})
    raise typer.Exit(run(settings, environment, path))


@app.command()
def demo(
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the rows and totals here.")] = None,
) -> None:
    """Send a dozen prompts through two small real engines and show the bill."""
    from proxy.demo.run import run_demo

    raise typer.Exit(run_demo(json_file))


@app.command()
def route(
    prompt: Annotated[str, typer.Argument(help="The prompt; `-` reads it from standard input.")],
    tier: Annotated[Literal["interactive", "batch"], typer.Option(help="What kind of request it is.")] = "interactive",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain where a prompt would go, without calling anything."""
    from proxy.explain import explain

    settings = _config_only(config)
    told = explain(settings, sys.stdin.read() if prompt == "-" else prompt, tier)
    if as_json:
        import msgspec

        _print_json(msgspec.to_builtins(told))
    else:
        _print_explanation(told)
    if told.refusal is not None:
        _fail(told.refusal)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(metadata.version("weighbridge"))


@organisations_app.command("create")
def create_organisation(
    organisation_id: Annotated[str, typer.Argument(metavar="ORGANISATION_ID", help="Such as acme.")],
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
) -> None:
    """Create an organisation. The one called `default` needs not be created."""

    async def create() -> None:
        from accounts.store import AccountStore
        from proxy.commands.audit import audited

        async with _engine() as engine, audited(engine, "organisation.created", organisation_id) as change:
            await AccountStore(change.within).create_organisation(organisation_id, name)
            change.tell("organisation", organisation_id, None, {"name": name or organisation_id})

    _run(create())
    typer.echo(
        f"created organisation {organisation_id}; next: weighbridge teams create TEAM_ID --organisation {organisation_id}"
    )


@organisations_app.command("list")
def list_organisations(as_json: JsonOption = False) -> None:
    """List the organisations."""

    async def read() -> list[dict[str, Any]]:
        async with _accounts() as store:
            return [_plain(each) for each in await store.list_organisations()]

    columns = {"organisation_id": "organisation", "name": "name", "created_at": "created"}
    _print_rows(_run(read()), columns, as_json=as_json, empty="no organisations yet")


@teams_app.command("create")
def create_team(
    team_id: Annotated[str, typer.Argument(metavar="TEAM_ID", help="Such as team_payments.")],
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    organisation: Annotated[str, typer.Option(help="The organisation it belongs to.")] = "default",
    models: Annotated[
        str | None, typer.Option(help="The only models it may use, with commas; all when left out.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a team."""
    allowed = [model.strip() for model in models.split(",") if model.strip()] if models is not None else None

    async def create() -> dict[str, Any]:
        from accounts.store import AccountStore
        from proxy.commands.audit import audited

        async with _engine() as engine, audited(engine, "team.set", organisation, team_id=team_id) as change:
            store = AccountStore(change.within)
            team = await store.create_team(team_id, name, organisation_id=organisation, allowed_models=allowed)
            change.tell("team", team_id, None, _team_state(team))
            return _plain(team)

    made = _run(create())
    if as_json:
        _print_json(made)
    else:
        typer.echo(f"created team {made['team_id']}; next: weighbridge keys create {made['team_id']}")


@teams_app.command("list")
def list_teams(as_json: JsonOption = False) -> None:
    """List the teams."""

    async def read() -> list[dict[str, Any]]:
        async with _accounts() as store:
            return [_plain(team) for team in await store.list_teams()]

    columns = {"team_id": "team", "name": "name", "organisation_id": "organisation", "allowed_models": "models"}
    columns |= {"quality_floor": "floor", "escalation": "escalation", "learning": "learning", "shadow_share": "shadow"}
    columns |= {"weight": "weight", "spill_over": "spill-over"}
    _print_rows(_run(read()), {**columns, "created_at": "created"}, as_json=as_json, empty="no teams yet")


@teams_app.command("set")
def set_team(
    team_id: Annotated[str, typer.Argument(metavar="TEAM_ID", help="The team to change.")],
    *,
    quality_floor: Annotated[
        str | None,
        typer.Option(metavar="SHARE|none", help="The share of the reference's quality to keep; none: the gateway's."),
    ] = None,
    escalation: Annotated[
        Literal["off", "whole", "all"] | None,
        typer.Option(help="Ask a better target after a weak answer: never, for whole replies, or for streams too."),
    ] = None,
    learning: Annotated[
        Literal["off", "numbers", "prompts"] | None,
        typer.Option(
            help="What may be kept to learn from: nothing, numbers, or the prompts too. Less deletes the rest."
        ),
    ] = None,
    shadow_share: Annotated[
        float | None, typer.Option(help="The share of requests that the reference answers too, to be compared.")
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(help="Its share of a target that is short, beside the other teams' weights; 1 unless set."),
    ] = None,
    spill_over: Annotated[
        bool | None,
        typer.Option(
            "--spill-over/--no-spill-over",
            help="Whether its requests may go to a paid target when our own would keep them waiting.",
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Change what a team chose. Every server follows within seconds."""
    given = {"escalation": escalation, "learning": learning, "shadow_share": shadow_share}
    given |= {"weight": weight, "spill_over": spill_over}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if quality_floor is not None:
        changes["quality_floor"] = _floor(quality_floor)
    if not changes:
        _fail("nothing to change: give at least one option, see --help", _USAGE)

    async def change() -> dict[str, Any]:
        async with _engine() as engine:
            from accounts.store import AccountStore
            from classifier.learning.store import LearningStore
            from proxy.commands.audit import audited

            action = "team.policy_changed" if set(changes) - {"weight"} else "team.set"
            async with audited(engine, action, team_id=team_id, reason=reason) as change:
                store = AccountStore(change.within)
                before = await store.get_team(team_id)
                team = await store.update_team(team_id, **changes)
                change.tell(
                    "team", team_id, _team_state(before), _team_state(team), organisation_id=team.organisation_id
                )
            kept = LearningStore(engine)
            # At once, and on every call: a deletion that was interrupted is finished by asking again.
            if learning == "off":
                await kept.forget_team(team_id)
            elif learning == "numbers":
                await kept.forget_prompts(team_id)
            return _plain(team)

    changed = _run(change())
    if as_json:
        _print_json(changed)
    else:
        shown = ("quality_floor", "escalation", "learning", "shadow_share", "weight", "spill_over")
        typer.echo(f"{team_id}: " + ", ".join(f"{name} {_cell(name, changed[name])}" for name in shown))


def _floor(text: str) -> float | None:
    if text.strip().lower() == "none":
        return None
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        _fail(f"--quality-floor is a number above 0 and at most 1, or none, not {text[:40]!r}", _USAGE)


@keys_app.command("create")
def create_key(
    team_id: Annotated[str, typer.Argument(metavar="TEAM_ID", help="The team that the key is for.")],
    name: Annotated[str, typer.Option(help="What the key is used for.")] = "key",
    expires_at: Annotated[datetime | None, typer.Option(help="When it stops working, UTC.")] = None,
    role: Annotated[
        Literal["member", "finance", "admin"],
        typer.Option(
            help="member calls models and reads its team's figures; finance reads all teams' figures and changes "
            "nothing; admin also sets prices and budgets."
        ),
    ] = "member",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key for a team. The key is shown this once."""
    from datetime import UTC

    from proxy.configuration.settings import peppers, read_environment

    environment = read_environment()
    has_file = config is not None or environment.config is not None
    pepper = peppers(_config_only(config) if has_file else None, environment)[0]
    expiry = expires_at.replace(tzinfo=UTC) if expires_at is not None else None

    async def create() -> dict[str, Any]:
        from accounts.store import AccountStore
        from proxy.changes.keys import told
        from proxy.commands.audit import audited

        async with _engine() as engine, audited(engine, "key.created", team_id=team_id) as change:
            store = AccountStore(change.within)
            minted = await store.create_key(team_id, name, pepper, expires_at=expiry, role=role)
            owner = (await store.get_team(team_id)).organisation_id
            made = await store.key_of(owner, team_id, minted.key_id)
            change.tell("key", made.key_id, None, told(made), organisation_id=owner)
            return {"key_id": minted.key_id, "team_id": team_id, "name": name, "role": role, "key": minted.plaintext}

    made = _run(create())
    if as_json:
        _print_json(made)
    else:
        # The key alone on standard output, so that a script can take it.
        typer.echo(made["key"])
        typer.echo(f"{made['key_id']} for {team_id}. This is the only time the key is shown.", err=True)


@keys_app.command("list")
def list_keys(
    team: Annotated[str | None, typer.Option(help="Only this team's.")] = None, as_json: JsonOption = False
) -> None:
    """List keys, without the keys themselves."""

    async def read() -> list[dict[str, Any]]:
        async with _accounts() as store:
            return [_plain(key) for key in await store.list_keys(team)]

    columns = {"key_id": "key id", "team_id": "team", "name": "name", "role": "role", "last4": "ends in"}
    columns |= {"created_at": "created", "expires_at": "expires", "revoked_at": "revoked"}
    _print_rows(_run(read()), columns, as_json=as_json, empty="no keys yet")


@keys_app.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="Such as key_1a2b…, from `keys list`.")],
) -> None:
    """Refuse a key from now on. Every server refuses it within 5 seconds."""

    async def revoke() -> None:
        from accounts.store import AccountStore
        from proxy.changes.keys import told
        from proxy.commands.audit import audited

        async with _engine() as engine, audited(engine, "key.revoked") as change:
            store = AccountStore(change.within)
            before = {key.key_id: key for key in await store.list_keys()}
            await store.revoke_key(key_id)
            after = next(key for key in await store.list_keys() if key.key_id == key_id)
            owner = (await store.get_team(after.team_id)).organisation_id
            was, now = told(before[key_id]), told(after)
            change.tell("key", key_id, was, now, team_id=after.team_id, organisation_id=owner)

    _run(revoke())
    typer.echo(f"revoked {key_id}")


@config_app.command("check")
def check_config(
    file: Annotated[Path, typer.Argument(help="The file to check.")],
    show: Annotated[bool, typer.Option("--show", help="Print what is in effect, with secrets masked.")] = False,
) -> None:
    """Check a configuration file: everything that is wrong is told at once."""
    import os

    from proxy.configuration.settings import load, read_environment, secrets_in, shown

    environment = read_environment()
    settings = load(file, environment, secrets_from=None)
    missing = sorted({secret.name for secret in secrets_in(settings, os.environ) if not secret.is_set})
    if not missing:
        # Where all secrets are, what they lead to is looked at as well.
        load(file, environment)
    if show:
        import yaml

        typer.echo(yaml.safe_dump(shown(settings, os.environ), sort_keys=False, allow_unicode=True), nl=False)
    else:
        typer.echo(f"{file}: ok")
    if missing:
        typer.echo(f"not set in this environment, and needed to serve: {', '.join(missing)}", err=True)


def _load(config: Path | None, overrides: dict[str, Any]) -> "tuple[Environment, GatewayConfig, Path]":
    """The environment with the command line laid over it, the configuration, and where that came from."""
    from proxy.configuration.settings import load, read_environment

    given = {name: value for name, value in overrides.items() if value is not None}
    environment = read_environment().model_copy(update={**given, "config": config} if config is not None else given)
    settings = load(None, environment)
    assert environment.config is not None  # noqa: S101 - `load` refuses to go on without a file
    return environment, settings, environment.config


def _config_only(config: Path | None) -> "GatewayConfig":
    """The configuration without its providers' secrets, which this command does not use."""
    from proxy.configuration.settings import load, read_environment

    return load(config, read_environment(), secrets_from=None)


@asynccontextmanager
async def _accounts() -> "AsyncIterator[AccountStore]":
    from accounts.store import AccountStore

    async with _engine() as engine:
        yield AccountStore(engine)


@asynccontextmanager
async def _engine() -> "AsyncIterator[AsyncEngine]":
    from proxy.configuration.settings import read_environment
    from proxy.db import make_engine, migrate

    environment = read_environment()
    environment.data_dir.mkdir(parents=True, exist_ok=True)
    engine = make_engine(environment.database())
    try:
        await migrate(engine)
        yield engine
    finally:
        await engine.dispose()


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


def _plain(record: Any) -> dict[str, Any]:
    """A record as JSON has it."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(record)
    if isinstance(plain.get("allowed_models"), list):
        plain["allowed_models"].sort()
    plain.update(plain.pop("settings", {}))
    return plain


def _team_state(team: "TeamRecord") -> dict[str, Any]:
    """A team with its policy, as the audit log keeps it."""
    from proxy.changes.policy import policy_of
    from proxy.changes.teams import told

    return told(team) | policy_of(team)


def _print_json(value: Any) -> None:
    """Money that is a Decimal is written as the exact number it is."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.Encoder(decimal_format="number").encode(value), indent=2).decode())


def _print_rows(rows: list[dict[str, Any]], columns: dict[str, str], *, as_json: bool, empty: str) -> None:
    if as_json:
        _print_json(rows)
    elif not rows:
        typer.echo(empty, err=True)
    else:
        from proxy.table import print_table

        print_table(list(columns.values()), [[_cell(name, row[name]) for name in columns] for row in rows])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_at"):
        # Whole seconds are enough for people; JSON has the rest.
        return str(value).partition(".")[0].removesuffix("Z") + "Z"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _print_explanation(told: "Explanation") -> None:
    from proxy.table import print_table

    typer.echo(
        f"complexity {told.complexity:.3f} ({told.classifier}), about {told.input_tokens} tokens in, "
        f"{told.expected_output_tokens} expected out"
    )
    if told.outlooks:
        _print_outlooks(told)
    if told.candidates:
        rows = [
            [
                str(rank),
                each["target"],
                each["reason"],
                f"{each['capability']:.2f}",
                _money(each["expected_cost_usd"]),
                _money(each["at_most_usd"]),
            ]
            for rank, each in enumerate(told.candidates, 1)
        ]
        typer.echo("\nwould be tried, in this order:")
        print_table(["", "target", "why", "capability", "expected cost", "at most"], rows, right=(3, 4, 5))
    if told.rejected:
        typer.echo("\nnot candidates:")
        print_table(["target", "obstacle", "why"], [list(each.values()) for each in told.rejected])


def _print_outlooks(told: "Explanation") -> None:
    """What each measured target would make of the prompt, and whether that was near the line."""
    from proxy.table import print_table

    if told.reference_adequate is None:
        typer.echo("\nmeasured outcomes, not used: there is no measured reference to compare them with")
    else:
        near = "a close call" if told.close_call else "no close call"
        typer.echo(
            f"\nto keep {told.quality_floor:.0%} of the reference's quality a target may lose {told.tolerance:.3f}; {near}"
        )
    rows = [
        [
            each["target"],
            f"{each['adequate']:.3f}",
            f"{each['low']:.3f} to {each['high']:.3f}",
            "-" if each["loss"] is None else f"{each['loss']:+.3f}",
            str(each["expected_output_tokens"]),
        ]
        for each in told.outlooks
    ]
    print_table(["target", "adequate", "between", "loses", "tokens out"], rows, right=(1, 2, 3, 4))


def _money(dollars: str | None) -> str:
    return "unknown" if dollars is None else f"${float(dollars):.6f}"


def _fail(message: str, status: int = _FAILED) -> NoReturn:
    typer.echo(f"weighbridge: {message}" if "\n" not in message else message, err=True)
    raise typer.Exit(status)


if __name__ == "__main__":
    app()
