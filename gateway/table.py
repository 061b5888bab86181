"""Aligned tables: with lines and weight on a terminal, plain text everywhere else."""

import shutil
import sys
from collections.abc import Sequence

_PLAIN_WIDTH = 10_000
"""A width at which nothing wraps, for output that a program reads."""

_GAP = 2
_NARROWEST = 6


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), shrink: int | None = None
) -> None:
    """Print rows to standard output as an aligned table.

    `right` names the columns of figures, `shrink` the one that is cut when a terminal is too narrow for all.
    """
    # Tables are drawn by few commands, and looked up by all: `--help` answers without rich.
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    terminal = sys.stdout.isatty()
    # Rich honours NO_COLOR by itself; markup is off, because cells hold what callers wrote.
    console = Console(
        width=shutil.get_terminal_size().columns if terminal else _PLAIN_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    if terminal and shrink is not None:
        others = sum(widths) - widths[shrink] + _GAP * (len(widths) - 1)
        widths[shrink] = max(_NARROWEST, min(widths[shrink], console.width - others))
    table = Table(
        box=box.SIMPLE_HEAD if terminal else None,
        pad_edge=False,
        show_edge=False,
        padding=(0, _GAP - 1 if terminal else _GAP, 0, 0),
    )
    for index, heading in enumerate(headings):
        table.add_column(
            heading,
            justify="right" if index in right else "left",
            no_wrap=not terminal or shrink is not None,
        )
    for row in rows:
        table.add_row(*(_cut(cell, width) for cell, width in zip(row, widths, strict=True)))
    console.print(table)


def counted(number: int, one: str, many: str | None = None) -> str:
    """Format a count with its noun: `1 entry`, `2,000 entries`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "…"
