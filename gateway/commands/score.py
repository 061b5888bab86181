"""`weighbridge classifier score`: how hard one's own prompts are, and where they would go."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import csv
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from cost.shown import percent
from gateway.commands.shared import USAGE, ConfigOption, fail, print_json, read_config
from gateway.table import print_table

if TYPE_CHECKING:
    from gateway.commands.scoring import Score

_WIDEST_BAR = 40
_SHOWN_ERRORS = 10


def score(
    file: Annotated[Path, typer.Argument(help="A JSONL file; `-` reads standard input.", allow_dash=True)],
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of rows, in the order of the lines.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a row for each line as CSV.")] = False,
) -> None:
    """Weigh prompts of your own: a line is the body of a chat completion (messages, tools).

    With a configuration the outlooks of its targets and the choice of `auto` are told, too. Nothing is called or kept.
    """
    if as_json and as_csv:
        fail("--json or --csv, not both", USAGE)
    from gateway.commands.scoring import scored

    # Scores need no target: without a configuration nothing is chosen.
    settings = read_config(config) if config is not None or os.environ.get("WEIGHBRIDGE_CONFIG") else None
    if str(file) == "-":
        found = list(scored(sys.stdin.buffer, settings))
    else:
        with _opened(file) as lines:
            found = list(scored(lines, settings))
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
    elif as_csv:
        _print_csv(found)
    else:
        _print_for_people(found)
    wrong = [each for each in found if each.error]
    if wrong:
        told = "".join(f"\n  line {each.line}: {each.error}" for each in wrong[:_SHOWN_ERRORS])
        more = f"\n  and {len(wrong) - _SHOWN_ERRORS} more" if len(wrong) > _SHOWN_ERRORS else ""
        fail(f"weighbridge: {len(wrong)} of {len(found)} lines could not be scored{told}{more}")


def _opened(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}", USAGE)


def _print_csv(found: "list[Score]") -> None:
    targets = sorted({name for each in found for name in each.outlooks})
    plain = ("line", "complexity", "kind", "classifier", "input_tokens", "expected_output_tokens", "choice", "why")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*plain, *(f"adequate {name}" for name in targets), "error"])
    for each in found:
        values = [getattr(each, name) for name in plain]
        writer.writerow([*values, *(each.outlooks.get(name) for name in targets), each.error])


def _print_for_people(found: "list[Score]") -> None:
    from gateway.commands.scoring import BINS, TIER_NAMES, histogram

    good = [each for each in found if each.complexity is not None]
    if not found:
        typer.echo("the file has no lines", err=True)
    if not good:
        return
    known = [each.complexity for each in good if each.complexity is not None]
    typer.echo(f"{len(good)} prompt{'' if len(good) == 1 else 's'}, mean complexity {sum(known) / len(known):.2f}\n")
    counts = histogram(known)
    for at, count in enumerate(counts):
        low, high = at / BINS, (at + 1) / BINS
        bar = "█" * round(_WIDEST_BAR * count / max(counts)) or ("▏" if count else "")
        # A tier's name stands at the complexity that it has by itself, tier / 3.
        named = [name for tier, name in enumerate(TIER_NAMES) if low <= min(tier / 3, 1 - 1e-9) < high]
        typer.echo(f"{low:.1f}-{high:.1f}  {bar:<{_WIDEST_BAR}}  {count:>6}  {''.join(named)}".rstrip())
    columns = [("kind of task", Counter(each.kind or "not told" for each in good))]
    if any(each.choice for each in good):
        columns.append(("would go to", Counter(each.choice or "nowhere" for each in good)))
    for title, tally in columns:
        typer.echo("")
        rows = [[name, str(count), percent(count / len(good), 0)] for name, count in tally.most_common()]
        print_table([title, "prompts", "share"], rows, right=(1, 2))
