"""`weighbridge classifier recalibrate|rollback|tunings`: refit from verdicts, look at it, accept it, take it back."""
# ruff: noqa: PLC0415 - imports stand in the commands, so that `--help` answers at once

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.commands.shared import ConfigOption, JsonOption, fail, open_engine, print_json
from gateway.table import print_table

if TYPE_CHECKING:
    from classifier.learning.recalibrate import Proposal, Report, TargetReport
    from classifier.learning.store import TuningRecord
    from gateway.configuration.gateway_config import GatewayConfig


def register(app: typer.Typer) -> None:
    """Add the commands to the group `classifier`."""
    app.command("recalibrate")(recalibrate)
    app.command("rollback")(rollback)
    app.command("tunings")(tunings)


async def recalibrate(
    team: Annotated[
        str | None, typer.Option(help="Learn this team's groups of prompts from its own verdicts, and nothing else.")
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Put the result in use; otherwise nothing changes.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refit targets to the verdicts on your own traffic, and show the gain on held-out requests."""
    import msgspec

    from gateway.configuration.environment import read_environment
    from gateway.configuration.settings import load

    # The matrices are small: threads of the linear algebra would only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    settings = load(config, read_environment(), secrets_from=None)
    proposal, version = await _proposed(settings, team, accept=accept)
    if as_json:
        print_json({"accepted": version, **msgspec.to_builtins(proposal.report)})
    else:
        print_report(proposal.report, version)
    if accept and version is None:
        fail("nothing was accepted")


async def _proposed(settings: "GatewayConfig", team_id: str | None, *, accept: bool) -> "tuple[Proposal, int | None]":
    from accounts.store import AccountStore
    from classifier.learning.store import LearningStore
    from gateway.commands.audit import audited
    from gateway.wiring.catalog import catalog_of, classifier_of
    from proxy.learning import tunings as moves

    catalog = catalog_of(settings)
    async with open_engine() as engine:
        if team_id is not None:
            await AccountStore(engine).get_team(team_id)
        proposal = await moves.propose(engine, classifier_of(settings), catalog, team_id)
        wanted = accept and proposal.report.improves
        if not wanted:
            return proposal, None
        async with audited(engine, "tuning.accepted", settings.accounts.operator) as change:
            store = LearningStore(change.within)
            before = await store.active_version()
            version = await moves.accept(store, proposal)
            change.tell("tuning", str(version), {"in_use": before}, {"in_use": version, "team_id": team_id})
        return proposal, version


async def rollback(
    version: Annotated[
        int | None,
        typer.Argument(min=0, help="The version to go back to, 0 for the models as trained; otherwise the one before."),
    ] = None,
) -> None:
    """Go back to an earlier tuning. Every server follows within `classifier.learning.poll_s`."""
    from classifier.learning.store import LearningStore
    from gateway.commands.audit import audited, operators
    from proxy.learning.tunings import AS_TRAINED, roll_back

    async with open_engine() as engine, audited(engine, "tuning.rolled_back", operators()) as change:
        store = LearningStore(change.within)
        before = await store.active_version()
        now = await roll_back(store, version)
        change.tell("tuning", str(now), {"in_use": before}, {"in_use": await store.active_version()})
    typer.echo("no tuning is in use now, as trained" if now == AS_TRAINED else f"tuning {now} is in use now")


async def tunings(as_json: JsonOption = False) -> None:
    """List what was accepted so far, newest first."""
    from classifier.learning.store import LearningStore

    async with open_engine() as engine:
        found = await LearningStore(engine).tunings()
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
    elif not found:
        typer.echo("no tunings yet", err=True)
    else:
        headings = ["version", "when", "in use", "verdicts", "what got better", "groups", "trained model"]
        print_table(headings, [_listed_row(record) for record in found], right=(0, 3, 5))


def _listed_row(record: "TuningRecord") -> list[str]:
    targets = record.metrics.get("targets", [])
    better = [each["target_id"] for each in targets if each.get("verdict") in {"better", "measured"}]
    made_at = datetime.fromtimestamp(record.at_us / 1_000_000, UTC)
    return [
        str(record.version),
        made_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "yes" if record.active else "",
        str(record.metrics.get("labels", "-")),
        ", ".join(better) or "-",
        str(sum(record.metrics.get("groups", {}).values())),
        record.artifact[:12],
    ]


_VERDICTS = {"better": "better", "worse": "not better, stays", "too-few": "too few verdicts"}


def print_report(report: "Report", version: int | None) -> None:
    """Print the change by target, measured on requests that the shown fit did not see."""
    typer.echo(
        f"{report.labels} verdicts on {report.requests} requests; "
        f"measured on the {report.held_out} verdicts of the newest requests\n"
    )
    headings = ["model", "", "verdicts", "held out", "log loss", "Brier", "calibration error", "pair accuracy"]
    print_table(headings, [_row(target) for target in report.targets], right=(2, 3))
    if any(target.change is not None for target in report.targets):
        typer.echo("\nin brackets: the 95 % interval of the change; lower is better, of pair accuracy higher")
    if report.groups:
        groups = ", ".join(f"{team_id} {count}" for team_id, count in sorted(report.groups.items()))
        typer.echo(f"\ngroups of similar prompts: {groups}")
    if report.lengths:
        typer.echo(f"\nanswer lengths from own traffic: {', '.join(report.lengths)}")
    for reason, count in sorted(report.dropped.items()):
        typer.echo(f"left out: {count} ({reason})", err=True)
    typer.echo("")
    if version is not None:
        typer.echo(f"tuning {version} is in use now; `weighbridge classifier rollback` takes it back")
    elif report.improves:
        typer.echo("nothing was changed; --accept puts it in use")
    else:
        typer.echo("nothing improved, so there is nothing to accept")


def _row(target: "TargetReport") -> list[str]:
    change = target.change
    name = f"{target.target_id} (new)" if target.is_new else target.target_id
    head = [name, _VERDICTS[target.verdict], str(target.labels), str(target.held_out)]
    if change is None:
        return [*head, "-", "-", "-", "-"]
    measures = ("log_loss", "brier", "ece", "pair_accuracy")
    return [*head, *(_moved(change, name) for name in measures)]


def _moved(change: Any, name: str) -> str:
    before, after = getattr(change.before, name), getattr(change.after, name)
    return f"{before:.3f} -> {after:.3f} [{getattr(change.low, name):+.3f}, {getattr(change.high, name):+.3f}]"
