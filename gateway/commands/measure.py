"""`weighbridge classifier measure`: weigh a model that nobody has outcomes of, by questions that a program can check."""
# ruff: noqa: PLC0415 - imports stand in the commands, so that `--help` answers at once

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.commands.shared import USAGE, ConfigOption, JsonOption, fail, open_engine, print_json, read_config
from gateway.table import print_table

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from classifier.measuring.result import Result
    from classifier.measuring.store import Measurement, MeasurementStore, Order, Tally

_POLL_S: Final = 1.0
_UNCLAIMED_S: Final = 15.0
_FEWEST_FOR_RATE: Final = 3


def register(app: typer.Typer) -> None:
    """Add the command to the group `classifier`."""
    app.command("measure")(measure)


async def measure(  # noqa: PLR0917 - a command's options
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A model_id of the configuration.")],
    questions: Annotated[int, typer.Option(help="How many questions to ask; 100 to 200 place a model.")] = 200,
    budget: Annotated[str, typer.Option(metavar="USD", help="The most that it may cost, such as 0.50.")] = "1",
    at_once: Annotated[int, typer.Option(help="Questions that are asked at the same time.")] = 4,
    max_tokens: Annotated[int, typer.Option(help="The most tokens of one answer.")] = 2_048,
    anew: Annotated[bool, typer.Option("--new", help="Begin anew where one stopped, in place of going on.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Show the last measurement and ask nothing.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the one that runs.")] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Put the row in use; of a measurement that has ended, without asking anew.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw it beside known models, as SVG.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a target questions whose answers are known, and fit its ability. A running gateway asks them."""
    from classifier.measuring.store import Order

    settings = read_config(config)
    known = [model.model_id for model in settings.providers.models]
    if target not in known:
        fail(f"there is no model {target} in the configuration; there are {', '.join(known)}", USAGE)
    order = Order(
        target_id=target,
        questions=questions,
        budget_nanousd=_nanousd(budget),
        at_once=at_once,
        max_tokens=max_tokens,
    )
    found = await _measured(settings.accounts.operator, order, anew=anew, show=show, stop=stop, accept=accept)
    _tell(found, plot, as_json=as_json)


async def _measured(
    operator: str, order: "Order", *, anew: bool, show: bool, stop: bool, accept: bool
) -> "Measurement":
    from classifier.measuring.store import MeasurementStore

    async with open_engine() as engine:
        store = MeasurementStore(engine)
        last = await store.last_of(order.target_id)
        if (show or stop) and last is None:
            fail(f"{order.target_id} was never measured")
        if stop:
            await _stopped(engine, operator, last)
        is_ready = last is not None and last.state != "running" and last.tuning_version is None and last.result
        if not show and not stop and not (accept and is_ready):
            last = await _run(engine, store, operator, order, anew=anew)
        assert last is not None  # noqa: S101 - there is one by now
        if accept:
            await _accepted(engine, operator, last)
        return await store.find(last.measurement_id)


async def _stopped(engine: "AsyncEngine", operator: str, last: "Measurement | None") -> None:
    from dashboards.operations.measurement_change import stop_measurement
    from gateway.commands.audit import console, log_of

    if last is None or not await stop_measurement(log_of(engine), console(operator), operator, last.measurement_id):
        fail("no measurement of it runs")


async def _accepted(engine: "AsyncEngine", operator: str, found: "Measurement") -> None:
    from dashboards.operations.measurement_change import accept_measurement
    from gateway.commands.audit import console, log_of

    await accept_measurement(log_of(engine), console(operator), operator, found.measurement_id)


async def _run(
    engine: "AsyncEngine", store: "MeasurementStore", operator: str, order: "Order", *, anew: bool
) -> "Measurement":
    """Order it, or join the one that runs, and tell how far it is until it ends."""
    from dashboards.operations.measurement_change import order_measurement
    from gateway.commands.audit import console, log_of

    last = await store.last_of(order.target_id)
    if last is not None and last.state == "running":
        typer.echo(f"it runs already ({last.measurement_id}); following it", err=True)
        found = last
    else:
        found, goes_on = await order_measurement(log_of(engine), console(operator), operator, order, anew=anew)
        typer.echo(f"{'going on with' if goes_on else 'ordered'} {found.measurement_id}", err=True)
    async with _stopping_on_interrupt(engine, operator, found):
        return await _followed(store, found)


@contextlib.asynccontextmanager
async def _stopping_on_interrupt(engine: "AsyncEngine", operator: str, found: "Measurement") -> AsyncIterator[None]:
    try:
        yield
    except asyncio.CancelledError:
        with contextlib.suppress(typer.Exit):
            await _stopped(engine, operator, found)
        typer.echo("\nstopped; the same command goes on where it was", err=True)
        raise


async def _followed(store: "MeasurementStore", found: "Measurement") -> "Measurement":
    began = time.monotonic()
    first: Tally | None = None
    is_told = False
    while found.state == "running":
        await asyncio.sleep(_POLL_S)
        found = await store.find(found.measurement_id)
        tally = await store.tally(found.measurement_id)
        first = first or tally
        if not found.touched_us and time.monotonic() - began > _UNCLAIMED_S and not is_told:
            is_told = True
            typer.echo(
                "no gateway works on it yet: start one on this database with `weighbridge serve`; it waits for that",
                err=True,
            )
        _print_progress(found, tally, tally.scored - first.scored, time.monotonic() - began)
    typer.echo("", err=True)
    return found


def _print_progress(found: "Measurement", tally: "Tally", done: int, seconds: float) -> None:
    import sys

    from cost.prices import usd

    left = max(0, found.questions - tally.scored)
    rest = f"about {_words(left * seconds / done)} left" if done >= _FEWEST_FOR_RATE and left else "…"
    line = (
        f"{tally.scored} of {found.questions} answered, {tally.right} right"
        f"{f', {tally.failed} failed' if tally.failed else ''}, "
        f"${usd(tally.spent_nanousd):.4f} of ${usd(found.budget_nanousd):.2f}, {rest}"
    )
    # One line that changes on a terminal; a log gets a line now and then.
    if sys.stderr.isatty():
        typer.echo(f"\r\x1b[2K{line}", err=True, nl=False)
    elif int(seconds) % 10 == 0:
        typer.echo(line, err=True)


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 - a minute and a half


def _tell(found: "Measurement", plot: Path | None, *, as_json: bool) -> None:
    from dashboards.operations.measurement_change import read_result

    result = read_result(found)
    if as_json:
        import msgspec

        told: dict[str, Any] = {
            "measurement_id": found.measurement_id,
            "state": found.state,
            "reason": found.reason,
            "tuning_version": found.tuning_version,
            "result": None if result is None else msgspec.to_builtins(result),
        }
        print_json(told)
    else:
        _print(found, result)
    if plot is not None and result is not None and result.mean is not None:
        from classifier.measuring.drawing import svg_of

        plot.write_text(svg_of(result), encoding="utf-8")
        typer.echo(f"wrote {plot}", err=True)
    if result is None or result.ability is None:
        fail(found.reason or (result.too_few if result is not None and result.too_few else "there is no result"))


def _print(found: "Measurement", result: "Result | None") -> None:
    from classifier.measuring.drawing import bars_of

    if found.reason:
        typer.echo(f"{found.state}: {found.reason}")
    if result is None:
        return
    _print_scores(result)
    _print_speed(result)
    if result.shown:
        _print_shown(result)
    if result.mean is not None:
        mean = result.mean
        before = "never measured before" if result.before is None else f"{result.before:.3f} until now"
        typer.echo(f"\nmean chance of a right answer: {mean.value:.3f} [{mean.low:.3f}, {mean.high:.3f}], {before}")
        typer.echo("beside known models, on the mix of prompts that the classifier was made of:\n")
        for line in bars_of(result):
            typer.echo(line)
    for note in result.notes:
        typer.echo(f"\n{note}")
    _print_next(found, result)


def _print_scores(result: "Result") -> None:
    from cost.prices import usd

    typer.echo(
        f"{result.target_id}: {result.right} of {result.scored} right, {result.unparsed} not in the asked form, "
        f"{result.refused} refused, {result.failed} failed; ${usd(result.spent_nanousd):.4f} spent\n"
    )
    rows = [
        [
            each.source,
            str(each.asked),
            f"{each.right / each.asked:.3f}",
            f"{each.low:.3f} to {each.high:.3f}",
            _share(each.known_median),
            _share(each.known_best),
        ]
        for each in result.sources
    ]
    headings = ["source", "asked", "right", "between", "known models' median", "best"]
    print_table(headings, rows, right=(1, 2, 3, 4, 5))


def _print_speed(result: "Result") -> None:
    told = []
    if result.ttft_p50_s is not None and result.ttft_p90_s is not None:
        told.append(f"first token {result.ttft_p50_s:.2f} s (one in ten {result.ttft_p90_s:.2f} s or later)")
    if result.tpot_p50_s is not None and result.tpot_p90_s is not None:
        told.append(f"{1000 * result.tpot_p50_s:.1f} ms a token (one in ten {1000 * result.tpot_p90_s:.1f} or more)")
    if result.output_tokens_p50 is not None:
        told.append(f"{result.output_tokens_p50:.0f} tokens an answer")
    if told:
        typer.echo(f"\nmedians with {result.at_once} at once: {'; '.join(told)}")
    if result.token_ratio is not None:
        typer.echo(f"it counts {result.token_ratio:.2f} tokens of a prompt where we estimate one")


def _print_shown(result: "Result") -> None:
    typer.echo("\nanswers without the asked form, which count as wrong:")
    rows = [[each.question_id, each.expected[:40], " ".join(each.said.split())[:80]] for each in result.shown]
    print_table(["question", "right is", "it said"], rows)


def _print_next(found: "Measurement", result: "Result") -> None:
    if found.tuning_version is not None:
        typer.echo(
            f"\ntuning {found.tuning_version} was made of it; `weighbridge classifier rollback` takes the newest back"
        )
    elif result.ability is not None:
        typer.echo(f"\nnothing was changed; `weighbridge classifier measure {found.target_id} --accept` puts it in use")
    if found.state == "stopped":
        typer.echo("the same command goes on where it stopped, with a larger --budget where that was why")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _nanousd(text: str) -> int:
    from cost.amounts import BadAmount, amount_in

    try:
        return int(amount_in(text) * 1_000_000_000)
    except BadAmount as error:
        fail(f"--budget: {error}", USAGE)
