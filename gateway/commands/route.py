"""`weighbridge route`: where a prompt would go and why, without calling anything."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost.shown import percent, rounded_money
from gateway.commands.shared import ConfigOption, JsonOption, fail, print_json, read_config
from gateway.table import print_table
from providers.target import Tier

if TYPE_CHECKING:
    from gateway.commands.explain import Explanation


def route(
    prompt: Annotated[str, typer.Argument(help="The prompt; `-` reads it from standard input.")] = "",
    tier: Annotated[Tier, typer.Option(help="What kind of request it is.")] = "interactive",
    request: Annotated[
        Path | None,
        typer.Option(help="A file with a request's body, or its messages, as JSON: conversations and tool loops."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain where a prompt would go, without calling anything."""
    from gateway.commands.explain import explain
    from proxy.errors import BadRequest

    if bool(prompt) == (request is not None):
        fail("Give a prompt, or a request with --request.")
    settings = read_config(config)
    try:
        body = None if request is None else _body(request)
        told = explain(settings, sys.stdin.read() if prompt == "-" else prompt, tier, body=body)
    except BadRequest as error:
        fail(error.message)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(told))
    else:
        _print_explanation(told)
    if told.refusal is not None:
        fail(told.refusal)


def _body(path: Path) -> bytes:
    """Return the body of a request to `auto` from a file."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        fail(f"{path} cannot be read as JSON: {error}")
    fields = found if isinstance(found, dict) else {"messages": found}
    return json.dumps({**fields, "model": "auto"}).encode()


def _print_explanation(told: "Explanation") -> None:
    from classifier.asking.location import PLACES
    from dashboards.ui.words import MARGIN_WORDS
    from proxy.plan.evidence import EVIDENCE_WORDS, evidence_notes

    typer.echo(f"read as the question, {PLACES[told.ask_place]}: {told.ask}")
    typer.echo(
        f"complexity {told.complexity:.3f} ({told.kind or told.classifier}), about {told.input_tokens} tokens in, "
        f"{told.expected_output_tokens} expected out"
    )
    if told.loop_steps or told.struggle:
        how = (
            f"it struggles: {told.struggle}, raised {told.raises} {'time' if told.raises == 1 else 'times'}"
            if told.struggle
            else "it makes progress"
        )
        typer.echo(f"a tool loop of {told.loop_steps} steps; {how} (what its turn began with is not known here)")
    if told.outlooks:
        _print_outlooks(told)
    if told.candidates:
        rows = [
            [
                str(rank),
                each["target"],
                each["reason"],
                EVIDENCE_WORDS[each["evidence"]],
                _money(each["margin_usd"], digits=9),
                MARGIN_WORDS.get(each["margin_why"], each["margin_why"]),
                _money(each["expected_cost_usd"]),
                _money(each["at_most_usd"]),
            ]
            for rank, each in enumerate(told.candidates, 1)
        ]
        typer.echo("\nwould be tried, in this order:")
        headings = ["", "model", "why", "known", "one more costs", "because", "expected cost", "at most"]
        print_table(headings, rows, right=(4, 6, 7))
        if any(each["margin_why"] == "own-room" for each in told.candidates):
            typer.echo(
                "(nothing is watched here: a pool with replicas under `cost.pools` is taken to have room; booked is the "
                "expected cost)"
            )
    if told.two_first:
        typer.echo(f"\nwith two cheap answers first (`escalation: agreement`): {told.two_first}")
    if told.rejected:
        typer.echo("\nnot candidates:")
        print_table(["model", "obstacle", "why"], [list(each.values()) for each in told.rejected])
    for note in evidence_notes(told.evidence, trained=told.classifier == "onnx"):
        typer.echo(f"\nby the file alone, whatever a tuning has learned since: {note}")


def _print_outlooks(told: "Explanation") -> None:
    """Print the predicted outcome of each measured target."""
    if told.reference_adequate is None:
        why = (
            "nothing was compared"
            if told.refusal
            else "not used, as nothing is known of the baseline model to compare them with"
        )
        typer.echo(f"\nwhat is known of the models; {why}")
    else:
        asked = f"this prompt asks for a chance of {told.reference_adequate - (told.tolerance or 0.0):.3f} or more"
        if told.stand_in:
            typer.echo(
                "\nnothing is known of the baseline model, so models are held against the best that the classifier has a row of, "
                f"with a chance of {told.reference_adequate:.3f}: {asked}"
            )
        else:
            typer.echo(
                f"\nat a minimum quality of {percent(told.quality_floor, 0)} {_worth(told.willing_usd)}, so {asked}"
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


def _worth(willing_usd: str | None) -> str:
    """Say what one more good answer may cost: a limit that is none, and one of nothing, are no prices."""
    if willing_usd is None:
        return "nothing limits what one more good answer may cost"
    if not float(willing_usd):
        return "no more is paid for a better answer than for the cheapest model's"
    return f"one more good answer may cost up to {_money(willing_usd)}"


def _money(dollars: str | None, digits: int = 6) -> str:
    return "unknown" if dollars is None else rounded_money(float(dollars), digits)
