"""`weighbridge classifier`: train the model that weighs prompts, judge it, mend its probabilities, ask it why."""
# ruff: noqa: PLC0415 - imports stand in the commands, so that `--help` answers at once

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost.shown import percent
from gateway.commands import learning, measure
from gateway.commands.score import score
from gateway.commands.shared import USAGE, JsonOption, fail, print_json
from gateway.table import print_table

if TYPE_CHECKING:
    from classifier.training.commands import Recalibrated

classifier_app = typer.Typer(
    help="The model that classifies prompts: train, evaluate and explain it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_TRAINING_NEEDS = frozenset({"pyarrow", "scipy", "onnx"})
_REPORT = Path("var/classifier-report")
_MOST_CONTRIBUTIONS = 20

DataOption = Annotated[Path, typer.Option(help="A folder with prompts.parquet and outcomes.parquet.")]
ArtifactOption = Annotated[
    Path | None, typer.Option("--artifact", help="A folder with an artifact; the packaged one when left out.")
]
SeedOption = Annotated[int, typer.Option(min=0, help="The same seed and data give the same numbers.")]


@classifier_app.command("train")
def train(
    data: DataOption,
    out: Annotated[Path, typer.Option(help="Where the artifact is written.")],
    seed: SeedOption = 0,
    measure: Annotated[
        bool, typer.Option(help="Also cross-validate, to record the quality in the manifest. Takes minutes.")
    ] = True,
) -> None:
    """Train the classifier on prompts with outcomes, and write the artifact."""
    with _training():
        from classifier.training import commands

        with redirect_stdout(sys.stderr):
            commands.train(data, out, seed, _progress(), measure=measure)


@classifier_app.command("evaluate")
def evaluate(
    data: Annotated[
        Path | None,
        typer.Option(help="A folder with prompts.parquet and outcomes.parquet; without it, what the manifest tells."),
    ] = None,
    cross_validate: Annotated[
        bool, typer.Option(help="Also train anew on parts of the data and judge on the others. Takes minutes.")
    ] = True,
    split: Annotated[
        list[str] | None,
        typer.Option(help="Only this split of cross-validation, such as 10-fold; may be given several times."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the report is written.")] = _REPORT,
    artifact: ArtifactOption = None,
    seed: SeedOption = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON and nothing else.")] = False,
) -> None:
    """Judge the classifier: one table, and a report with pictures."""
    if data is None:
        _print_manifest(artifact, as_json=as_json)
        return
    with _training():
        import msgspec

        from classifier.training import commands
        from classifier.training.evaluation_report import told, write_report

        unknown = sorted(set(split or ()) - set(commands.SPLITS))
        if unknown:
            fail(f"--split: there is no {', '.join(unknown)}; known: {', '.join(commands.SPLITS)}", USAGE)
        say = _progress()
        # Before the minutes of measuring: a place that cannot be written to is told at once.
        out.mkdir(parents=True, exist_ok=True)
        # Training tells how far it is; standard output is for the rows.
        with redirect_stdout(sys.stderr):
            found = commands.evaluate(
                data,
                artifact_dir=artifact,
                cross_validate=commands.cross_validation(data, seed, say) if cross_validate else None,
                splits=[each for each in commands.SPLITS if not split or each in split],
                seed=seed,
                say=say,
            )
        if as_json:
            print_json(msgspec.to_builtins(found.rows))
        else:
            typer.echo(told(found))
        say(f"the report is in {write_report(out, found)}")


@classifier_app.command("calibrate")
def calibrate(
    data: DataOption,
    accept: Annotated[bool, typer.Option("--accept", help="Write what was found better; needs --out.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where the mended artifact is written.")] = None,
    artifact: ArtifactOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Mend the probabilities with labelled prompts, and show the change on the half that was not fitted to."""
    if accept and out is None:
        fail("--accept needs --out, a folder for the mended artifact", USAGE)
    with _training():
        import msgspec

        from classifier.training import commands

        found = commands.calibrate(data, artifact_dir=artifact, seed=seed, say=_progress())
        if as_json:
            print_json([{**msgspec.to_builtins(each), "better": each.better} for each in found])
        else:
            _print_calibration(found)
        if accept and out is not None:
            written = commands.accept(found, artifact or commands.PACKAGED, out)
            typer.echo(f"wrote {out}; mended: {', '.join(written) or 'nothing'}", err=True)


@classifier_app.command("study-new-models")
def study_new_models(
    data: DataOption,
    out: Annotated[Path, typer.Option(help="Where the figures and the picture are written.")] = _REPORT,
    as_json: JsonOption = False,
) -> None:
    """Leave models out, weigh them by few questions, and tell how far off that is. Takes minutes."""
    with _training():
        import msgspec

        from classifier.training import commands

        with redirect_stdout(sys.stderr):
            found = commands.study_new_models(data, out, _progress())
        if as_json:
            print_json(msgspec.to_builtins(found))
            return

        rows = [
            [
                each.what,
                each.prior,
                {0: "all", -1: "none"}.get(each.questions, str(each.questions)),
                f"{each.value:.4f}",
                f"{each.spread:.4f}",
            ]
            for each in found
        ]
        print_table(["measure", "prior", "questions", "mean", "± between draws"], rows, right=(2, 3, 4))


@classifier_app.command("explain")
def explain(
    prompt: Annotated[str, typer.Argument(help="The prompt; `-` reads it from standard input.")],
    system: Annotated[str, typer.Option(help="A system message that goes with it.")] = "",
    every: Annotated[
        bool, typer.Option("--all", help="Every ability that the artifact has, not only a few known ones.")
    ] = False,
    artifact: ArtifactOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a prompt's score, and the features that moved it. Nothing is kept."""
    from classifier.asking.resolution import resolve
    from classifier.config import ClassifierSection
    from classifier.explanation import EXPLAINED, contributions
    from classifier.onnx_classifier import OnnxClassifier, load_classifier
    from classifier.prediction import Prompt

    classifier = load_classifier(ClassifierSection(artifact_dir=artifact))
    if isinstance(classifier, OnnxClassifier):
        known = classifier.manifest.abilities
        classifier.adopt({name: name for name in known if every or name in EXPLAINED})
    asked = Prompt(text=sys.stdin.read() if prompt == "-" else prompt, system=system)
    found = resolve(asked)
    prediction = classifier.classify(asked)
    moved = contributions(classifier, asked) if isinstance(classifier, OnnxClassifier) else []
    largest = moved[:_MOST_CONTRIBUTIONS]
    facts: dict[str, Any] = {
        "ask": found.shown,
        "ask_place": found.place,
        "complexity": prediction.complexity,
        "kind": prediction.kind,
        "source": prediction.source,
        "fallback_reason": classifier.fallback_reason,
        "expected_output_tokens": prediction.expected_output_tokens,
        "output_tokens_p90": prediction.output_tokens_p90,
        "adequate": {name: outlook.adequate for name, outlook in sorted(prediction.outlooks.items())},
        "contributions": [{"name": each.name, "effect": each.effect} for each in largest],
    }
    if as_json:
        print_json(facts)
    else:
        _print_explained(facts)


classifier_app.command("score")(score)
learning.register(classifier_app)
measure.register(classifier_app)


def _print_explained(facts: dict[str, Any]) -> None:
    from classifier.asking.location import PLACES

    typer.echo(f"read as the question, {PLACES[facts['ask_place']]}: {facts['ask']}")
    typer.echo(
        f"complexity {facts['complexity']:.3f} ({facts['kind'] or 'no clear kind' if facts['source'] == 'onnx' else facts['source']}), "
        f"{facts['expected_output_tokens']} tokens expected out, nine times in ten at most {facts['output_tokens_p90']}"
    )
    if facts["fallback_reason"] is not None:
        typer.echo(f"the rule classified, not the trained model: {facts['fallback_reason']}")
    if facts["contributions"]:
        typer.echo(
            "\nwhat moved the complexity, largest first: by so much it would be lower without the word, "
            "or with the usual value of the fact"
        )
        rows = [[each["name"], f"{each['effect']:+.3f}"] for each in facts["contributions"]]
        print_table(["feature", "effect"], rows, right=(1,))
    if facts["adequate"]:
        typer.echo("\nhow likely each model's answer is adequate:")
        rows = [[name, f"{share:.3f}"] for name, share in facts["adequate"].items()]
        print_table(["target", "P(adequate)"], rows, right=(1,))


def _print_calibration(found: "list[Recalibrated]") -> None:
    columns = ["target", "fitted on", "judged on", "Brier before", "after", "ECE before", "after", ""]
    rows = []
    for each in found:
        counts = [str(each.fitted_on), str(each.n)]
        numbers = (each.brier_before, each.brier_after, each.ece_before, each.ece_after)
        rows.append([each.model, *counts, *(f"{one:.4f}" for one in numbers), "better" if each.better else "no better"])
    print_table(columns, rows, right=(1, 2, 3, 4, 5, 6))


def _print_manifest(artifact: Path | None, *, as_json: bool) -> None:
    """Print the measures of training, on prompts that the measured model had not seen."""
    import importlib.resources

    from classifier.manifest import ArtifactError, read_artifact

    try:
        if artifact is not None:
            metrics = read_artifact(artifact).manifest.metrics
        else:
            with importlib.resources.as_file(importlib.resources.files("classifier") / "artifacts") as packaged:
                metrics = read_artifact(packaged).manifest.metrics
    except ArtifactError as error:
        fail(f"the artifact cannot be used: {error}")
    rows = metrics.get("rows", [])
    if not rows:
        typer.echo("the manifest tells no measurements: it was trained without them; --data DIR measures", err=True)
    if as_json:
        print_json(rows)
    elif rows:
        columns = list(rows[0])
        cells = [[_figure(column, row.get(column, "-")) for column in columns] for row in rows]
        print_table(columns, cells, right=tuple(range(2, len(columns))))
        _print_cascades(metrics.get("cascades", []))
        _print_difficulty(metrics.get("difficulty", {}))
    elif metrics:
        print_json(metrics)


def _print_cascades(found: list[dict[str, Any]]) -> None:
    """Print quality and cost of two cheap answers before a dear one, beside single models, `auto` and the cheapest
    right answer.
    """
    for each in found:
        typer.echo(
            f"\ntwo cheap answers first, {each['split']}, {each['n']} prompts of {', '.join(each['sources'])}; costs as shares of "
            f"{each['reference']}'s; where it says three, of the mistakes that both make all, three fifths or none are the same"
        )
        rows = [[name, _spot(spot), "", ""] for name, spot in zip(each["targets"], each["single"], strict=True)]
        rows.append(["the cheapest right one", _spot(each["oracle"]), "", ""])
        rows.append(["the two cheapest, then the reference", " | ".join(map(_spot, each["always"])), "", ""])
        for row in each["rows"]:
            asked = (" | ".join(map(_spot, row[name]["spots"])) for name in ("unasked", "asked"))
            rows.append([f"auto, minimum {percent(row['floor'], 0)}", _spot(row["auto"]), *asked])
        print_table(
            ["who answers", "quality at cost", "two first unasked, in batches", "two first where wanted"],
            rows,
        )


def _spot(spot: dict[str, float]) -> str:
    return f"{spot['quality']:.4f} at {spot['cost']:.3f}"


def _print_difficulty(found: dict[str, Any]) -> None:
    """Print how well complexity orders prompts of known tiers; measures that training was stopped before are left out."""
    if not found:
        return
    held = found["held kinds"]
    orders = [
        ("kinds never learned from", held["whole"]),
        *((f"  in {name}", each) for name, each in held["languages"].items()),
        ("  with tools", held["with_tools"]),
        ("  with a history", held["with_history"]),
        ("  by length alone", found["held kinds, length alone"]),
        *((f"every kind left out once, by {name}", each) for name, each in found.get("kinds left out", {}).items()),
        ("always the same model", found["always the same model"]),
    ]
    typer.echo("\npairs of prompts of different tiers in the right order: all, and those two tiers apart or three")
    rows = [[name, str(each["n"]), f"{each['every']:.3f}", f"{each['clear']:.3f}"] for name, each in orders]
    print_table(["prompts of known tiers", "n", "all", "clear"], rows, right=(1, 2, 3))
    typer.echo("\nmean change of complexity when a prompt is worded differently:")
    print_table(["change", "mean"], [[name, f"{each:.3f}"] for name, each in held["changes"].items()], right=(1,))
    if "shapes" in found:
        _print_shapes(found["shapes"])
    for name in ("chat, held out by row", "chat, never seen"):
        if name in found:
            typer.echo(f"\n{name}: pairs of origins in the right order")
            kinds = list(next(iter(found[name].values())))
            rows = [[part, *(f"{shares[kind]:.3f}" for kind in kinds)] for part, shares in found[name].items()]
            print_table(["by", *kinds], rows, right=tuple(range(1, len(kinds) + 1)))


def _print_shapes(found: dict[str, Any]) -> None:
    """Print how well complexity orders prompts in the shapes in which programs and people send them."""
    typer.echo("\npairs in the right order, of held prompts in the shapes of frameworks and people:")
    print_table(["shape", "all"], [[name, f"{each:.3f}"] for name, each in found["rows"].items()], right=(1,))
    typer.echo("\nthe same prompts in each held template:")
    print_table(["template", "all"], [[name, f"{each:.3f}"] for name, each in found["templates"].items()], right=(1,))
    typer.echo("\nchoices between two targets that are turned by what leaves the task as it is, and the order then:")
    rows = [[name, f"{each['turned']:.3f}", f"{each['order']:.3f}"] for name, each in found["changes"].items()]
    print_table(["change", "turned", "all"], rows, right=(1, 2))


def _figure(column: str, value: object) -> str:
    """Format a figure with the digits of its column."""
    return f"{value:.{1 if column.startswith('cpt') else 4}f}" if isinstance(value, float) else str(value)


def _progress() -> Callable[[str], None]:
    """Print progress to standard error, so that standard output holds the result alone."""
    started = time.monotonic()
    return lambda line: typer.echo(f"{time.monotonic() - started:7.1f} s  {line}", err=True)


@contextmanager
def _training() -> Iterator[None]:
    """Yield a context that reports a missing training library with what to install; serving needs none of them."""
    try:
        yield
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        if name not in _TRAINING_NEEDS:
            raise
        fail(f"this needs the train extra ({name} is not installed): pip install 'weighbridge[train]'")
