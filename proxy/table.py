"""Aligned tables: with lines and weight on a terminal, plain text everywhere else."""

import shutil
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

_PLAIN_WIDTH = 10_000
"""Wide enough that nothing wraps where a program reads."""


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Prints rows to standard output; `right` names the columns of figures."""
    terminal = sys.stdout.isatty()
    # Rich honours NO_COLOR by itself; markup is off, because cells hold what callers wrote.
    console = Console(
        width=shutil.get_terminal_size().columns if terminal else _PLAIN_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, show_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index in right else "left", no_wrap=not terminal)
    for row in rows:
        table.add_row(*row)
    console.print(table)
